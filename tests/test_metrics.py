"""What operators see of a cache's doings."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from vllm_http_cache.metrics import Metrics, default

TWO_PROCESSES = """
import os
from vllm_http_cache.metrics import default
for _ in range(2):
    if pid := os.fork():
        os.waitpid(pid, 0)
    else:
        default().answered("hit", octets_from_cache=10)
        default().holds(octets=4096, keys=7)
        os._exit(0)
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
registry = CollectorRegistry()
MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""

FOLDER_GONE = """
import os, shutil, sys
from tests.core.scripted import Origin, fetch, ok
from vllm_http_cache import Settings, open_cache

def now(moment):
    if moment == sys.argv[1]:
        shutil.rmtree(os.environ["PROMETHEUS_MULTIPROC_DIR"])

now("before the cache")
cache, origin = open_cache(Settings(path=sys.argv[2])), Origin(ok(cache_control="max-age=60"))
now("before a request")
for _ in range(2):
    assert fetch(cache, origin) == b"body"
now("before a fork")
if pid := os.fork():
    assert os.waitpid(pid, 0)[1] == 0
    assert len(origin) == 1
else:
    assert fetch(cache, origin) == b"body"
    assert fetch(cache, origin) == b"body"
    os._exit(0)
"""


def test_each_doing_is_counted() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.answered("hit", octets_from_cache=100)
    metrics.answered("hit", octets_from_cache=50)
    metrics.answered("forwarded", "uri-miss")
    metrics.received(30)
    metrics.forwarded(0.3)
    metrics.validated("confirmed")
    metrics.evicted("size", 3)
    metrics.storage_failed("write")

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"vllm_http_cache_{name}", labels)

    assert value("held_bytes") is None, "nobody has told yet"
    metrics.holds(octets=4096, keys=7)
    assert value("requests_total", outcome="hit", forward="") == 2
    assert value("requests_total", outcome="forwarded", forward="uri-miss") == 1
    assert value("body_bytes_total", source="cache") == 150
    assert value("body_bytes_total", source="origin") == 30
    assert value("forward_seconds_bucket", le="0.25") == 0
    assert value("forward_seconds_bucket", le="0.5") == 1
    assert value("validations_total", result="confirmed") == 1
    assert value("evictions_total", reason="size") == 3
    assert value("storage_errors_total", operation="write") == 1
    assert value("held_bytes") == 4096
    assert value("held_keys") == 7


def test_no_name_is_vllms_to_unregister() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    assert all(family.name.startswith("vllm_http_cache_") for family in registry.collect())


def test_one_default_for_all_threads() -> None:
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(default())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8
    assert len(set(map(id, seen))) == 1


def test_several_processes_add_up(tmp_path: Path) -> None:
    environ = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    out = subprocess.run(
        [sys.executable, "-c", TWO_PROCESSES], env=environ, check=True, capture_output=True, text=True
    ).stdout
    assert 'vllm_http_cache_requests_total{forward="",outcome="hit"} 2.0' in out
    assert 'vllm_http_cache_body_bytes_total{source="cache"} 20.0' in out
    assert "vllm_http_cache_held_bytes 4096.0" in out


@pytest.mark.parametrize("moment", ["before the cache", "before a request", "before a fork"])
def test_what_cannot_be_counted_costs_no_answer_and_is_warned_of_once(tmp_path: Path, moment: str) -> None:
    counts = tmp_path / "counts"
    counts.mkdir()
    warnings = subprocess.run(
        [sys.executable, "-c", FOLDER_GONE, moment, str(tmp_path / "cache")],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(counts)},
        check=True,
        capture_output=True,
        text=True,
    ).stderr
    assert warnings.count("vllm-http-cache: counting for the metrics failed") == 1
