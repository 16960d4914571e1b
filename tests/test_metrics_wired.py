"""Each documented metric has something to tell once it has happened."""

from __future__ import annotations

import time
from pathlib import Path

from prometheus_client import CollectorRegistry

from tests.core.scripted import Clock, Origin, get, ok
from vllm_http_cache import Cache, FileStorage
from vllm_http_cache.metrics import Metrics
from vllm_http_cache.storage.toolbox import sweep, trim

BODY = b"x" * 100_000


def test_a_cache_and_its_storage_tell_all_of_it(tmp_path: Path) -> None:
    registry, clock = CollectorRegistry(), Clock()
    clock.now = time.time()
    storage = FileStorage(tmp_path, clock=clock)
    metrics = Metrics(registry)
    storage.observe(metrics)

    def value(name: str, **labels: str) -> float:
        return registry.get_sample_value(f"vllm_http_cache_{name}", labels) or 0

    with Cache(storage, clock=clock, metrics=metrics) as cache:
        origin = Origin(ok(BODY, cache_control="max-age=60"))
        for number in range(5):
            for _ in range(2):
                fetched = cache.fetch(get(f"http://origin.test/{number}"), origin.send)
                while fetched.body.read():
                    pass
                fetched.body.close()
        origin.answer = lambda _: ok(BODY, cache_control="no-store")
        cache.fetch(get("http://origin.test/passed"), origin.send).body.close()
        clock.now += 61
        origin.answer = lambda _: ok(BODY, cache_control="max-age=60")
        fetched = cache.fetch(get("http://origin.test/0"), origin.send)
        fetched.refuse()
        sweep(storage)
        trim(storage, 0)
        (tmp_path / ".vllm-http-cache").rename(tmp_path / "gone")
        (tmp_path / ".vllm-http-cache").write_text("a file in its place")
        fetched = cache.fetch(get("http://origin.test/1"), origin.send)
        while fetched.body.read():
            pass
    assert value("requests_total", outcome="hit", forward="") == 5
    assert value("requests_total", outcome="forwarded", forward="uri-miss") >= 6
    assert value("body_bytes_total", source="cache") == 5 * len(BODY)
    assert value("body_bytes_total", source="origin") >= 6 * len(BODY)
    assert value("validations_total", result="replaced") == 1
    assert value("evictions_total", reason="size") >= 4
    assert value("held_bytes") > 0 and value("held_keys") == 5
    assert sum(s.value for m in registry.collect() if "storage_errors" in m.name for s in m.samples) > 0
