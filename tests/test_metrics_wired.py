"""Each documented metric has something to tell once it has happened."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from prometheus_client import CollectorRegistry

from tests.core.memory import MemoryStorage
from tests.core.scripted import Answer, Clock, Origin, afetch, fetch, get, ok, whole
from tests.storage.helpers import by_uri, eventually, patched
from vllm_http_cache import Cache, FileStorage
from vllm_http_cache.metrics import Metrics
from vllm_http_cache.rfc9111.message import Request
from vllm_http_cache.storage.toolbox import purge, sweep, trim, usage
from vllm_http_cache.wire import Fetched

BODY = b"x" * 100_000
SIGNED = (
    "http://origin.test/signed?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Date=20270115T080000Z&X-Amz-Expires=60"
    "&X-Amz-SignedHeaders=host&X-Amz-Credential=me&X-Amz-Signature="
)


def evictions(registry: CollectorRegistry, reason: str) -> float:
    return registry.get_sample_value("vllm_http_cache_evictions_total", {"reason": reason}) or 0


def validations(registry: CollectorRegistry) -> dict[str, float]:
    found = (s for m in registry.collect() for s in m.samples if s.name == "vllm_http_cache_validations_total")
    return {sample.labels["result"]: sample.value for sample in found}


def test_a_cache_and_its_storage_tell_all_of_it(tmp_path: Path) -> None:
    registry, clock = CollectorRegistry(), Clock()
    clock.now = time.time()
    storage = FileStorage(tmp_path, clock=clock)

    def value(name: str, **labels: str) -> float:
        return registry.get_sample_value(f"vllm_http_cache_{name}", labels) or 0

    with Cache(storage, clock=clock, metrics=Metrics(registry)) as cache:
        origin = Origin(ok(BODY, cache_control="max-age=60", etag='"1"'))
        for number in range(5):
            for _ in range(2):
                fetched = cache.fetch(get(f"http://origin.test/{number}"), origin.send)
                while fetched.body.read():
                    pass
                fetched.body.close()
        origin.answer = lambda _: ok(BODY, cache_control="no-store")
        for method in ("GET", "HEAD"):  # which brings none of the octets that it announces
            cache.fetch(Request(method, "http://origin.test/passed"), origin.send).body.close()
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
    assert value("body_bytes_total", source="origin") == 7 * len(BODY)
    assert value("validations_total", result="replaced") == 1
    assert value("evictions_total", reason="size") >= 4
    assert value("held_bytes") > 0 and value("held_keys") == 0
    assert value("forward_seconds_count") == len(origin)
    assert sum(s.value for m in registry.collect() if "storage_errors" in m.name for s in m.samples) > 0


def test_what_is_held_is_told_before_anybody_counts(tmp_path: Path) -> None:
    registry, origin = CollectorRegistry(), Origin(ok(BODY, cache_control="max-age=60"))
    storage = FileStorage(tmp_path)
    with Cache(storage, metrics=Metrics(registry)) as cache, patched(storage._room._janitor, "ask", lambda: None):
        fetch(cache, origin)
    assert (registry.get_sample_value("vllm_http_cache_held_bytes") or 0) > len(BODY)


def test_what_is_held_is_told_when_it_has_become_less_too(tmp_path: Path) -> None:
    registry, origin = CollectorRegistry(), Origin(ok(BODY, cache_control="max-age=60"))
    storage = FileStorage(tmp_path)

    def held() -> tuple[float | None, float]:
        return registry.get_sample_value("vllm_http_cache_held_bytes"), usage(storage).used

    with Cache(storage, metrics=Metrics(registry)) as cache, patched(storage._room._janitor, "ask", lambda: None):
        sweep(storage)  # which counts
        for number in range(5):
            fetch(cache, origin, get(f"http://origin.test/{number}"))
        full, _ = held()
        cache.forget("http://origin.test/0")
        less, used = held()
        assert less == used < (full or 0)
        cache.fetch(get("http://origin.test/1"), origin.send).refuse()
        assert purge(storage, by_uri("http://origin.test/2")) == 1
        even_less, used = held()
        assert even_less == used < less
        trim(storage, 0)
        least, used = held()
        assert least == used < even_less
        assert registry.get_sample_value("vllm_http_cache_held_keys") == usage(storage).keys == 0


def test_what_is_refused_again_and_again_is_evicted_once() -> None:
    registry, storage = CollectorRegistry(), MemoryStorage()
    cache, origin = Cache(storage, metrics=Metrics(registry)), Origin(ok(cache_control="max-age=60"))
    fetch(cache, origin)
    hits = [cache.fetch(get(), origin.send) for _ in range(2)]
    with patched(storage, "swap", lambda *_: True):  # as one that cannot write
        hits[0].refuse()
    assert evictions(registry, "refused") == 0
    for hit in (*hits, *hits):
        hit.refuse()
    assert evictions(registry, "refused") == 1


def test_what_many_find_damaged_is_evicted_once(tmp_path: Path) -> None:
    large = BODY * 200  # which is checked block by block
    registry, origin = CollectorRegistry(), Origin(ok(large, cache_control="max-age=60", etag='"1"'))
    with Cache(FileStorage(tmp_path), metrics=Metrics(registry)) as cache:
        fetch(cache, origin)
        hits = [cache.fetch(get(), origin.send) for _ in range(6)]
        (body,) = (path for path in tmp_path.rglob("*.*") if path.stat().st_size == len(large))
        body.chmod(0o600)
        with body.open("r+b") as file:
            file.write(b"y")
        assert all(whole(hit) == large for hit in hits)
    assert len(origin) == 2
    assert evictions(registry, "damaged") == 1


def test_a_damaged_record_is_evicted_once(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    storage = FileStorage(tmp_path)
    with Cache(storage, metrics=Metrics(registry)) as cache:
        fetch(cache, Origin(ok(cache_control="max-age=600")))
        (record,) = (path for path in tmp_path.rglob("*") if len(path.name) == 64)
        record.write_bytes(b"damaged")
        fetch(cache, Origin(ok(cache_control="no-store")))
        sweep(storage)
    assert evictions(registry, "damaged") == 1


@pytest.mark.parametrize("found", [True, False])
def test_what_is_too_old_is_evicted_once_whether_somebody_asks_for_it_or_not(tmp_path: Path, found: bool) -> None:
    registry, clock = CollectorRegistry(), Clock()
    storage = FileStorage(tmp_path, ttl=60, clock=clock)
    with Cache(storage, clock=clock, metrics=Metrics(registry)) as cache:
        fetch(cache, Origin(ok(cache_control="max-age=600")))
        sweep(storage)  # another is not due for an hour
        clock.now += 61
        if found:
            fetch(cache, Origin(ok(cache_control="no-store")))
            assert eventually(lambda: evictions(registry, "age") == 1)
        sweep(storage)
    assert evictions(registry, "age") == 1


def test_damage_and_a_failing_origin_are_told(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    origin = Origin(ok(BODY, cache_control="max-age=60"))
    with Cache(FileStorage(tmp_path), metrics=Metrics(registry)) as cache:

        def fetch() -> None:
            fetched = cache.fetch(get(), origin.send)
            while fetched.body.read():
                pass

        fetch()
        (body,) = (path for path in tmp_path.rglob("*.*") if path.stat().st_size == len(BODY))
        body.chmod(0o600)
        body.write_bytes(BODY[:-1] + b"y")
        origin.answer = lambda _: ok(BODY, cache_control="max-age=0", etag='"1"')
        fetch()
        origin.answer = lambda _: (503, {}, [b"down"])
        fetch()
    assert evictions(registry, "damaged") == 1
    assert registry.get_sample_value("vllm_http_cache_validations_total", {"result": "failed"}) == 1
    assert registry.get_sample_value("vllm_http_cache_validations_total", {"result": "replaced"}) is None


@pytest.mark.parametrize("tasks", [False, True])
def test_a_validation_is_a_request_with_a_validator_of_what_is_stored(tasks: bool) -> None:
    def ask(cache: Cache, origin: Origin, request: Request) -> None:
        if tasks:
            anyio.run(afetch, cache, origin, request)
        else:
            fetch(cache, origin, request)

    def answer(request: Request) -> Answer:
        if "if-none-match" in request.fields:
            return 304, {"ETag": '"1"'}, []
        if request.uri.endswith("untagged"):
            return ok(cache_control="max-age=60")
        return ok(cache_control="max-age=60", etag='"1"', vary="*" if request.uri.endswith("vary") else "")

    registry = CollectorRegistry()
    cache, origin = Cache(MemoryStorage(), metrics=Metrics(registry)), Origin(answer)
    for uri in ("http://origin.test/a", "http://origin.test/vary", "http://origin.test/untagged", f"{SIGNED}1"):
        ask(cache, origin, get(uri))
    reload = get(Cache_Control="no-cache")
    ask(cache, origin, Request("HEAD", reload.uri, reload.fields))
    ask(cache, origin, get("http://origin.test/untagged", Cache_Control="no-cache"))
    assert validations(registry) == {}
    for number, request in enumerate(
        (reload, get(Cache_Control="max-age=0"), get("http://origin.test/vary"), get(f"{SIGNED}2")), 1
    ):
        ask(cache, origin, request)
        assert validations(registry) == {"confirmed": number}
    origin.answer = lambda _: OSError("down")
    with suppress(OSError):
        ask(cache, origin, reload)
    origin.answer = lambda _: (503, {}, [])
    ask(cache, origin, reload)
    origin.answer = lambda _: ok(etag='"2"')
    ask(cache, origin, reload)
    assert validations(registry) == {"confirmed": 4, "failed": 2, "replaced": 1}


def test_octets_of_an_origin_are_those_that_came_or_are_announced_of_what_passes_unstored() -> None:
    registry, clock = CollectorRegistry(), Clock()
    cache = Cache(MemoryStorage(), clock=clock, metrics=Metrics(registry))
    half = BODY[:50_000]
    origin = Origin(ok(BODY, cache_control="no-store"))

    def received() -> float:
        return registry.get_sample_value("vllm_http_cache_body_bytes_total", {"source": "origin"}) or 0

    cache.fetch(get(), origin.send).body.close()
    assert received() == len(BODY), "as announced"
    origin.answer = lambda _: (200, {"Cache-Control": "no-store"}, [BODY])
    fetch(cache, origin)
    assert received() == len(BODY), "nothing is announced"
    origin.answer = lambda _: (200, {"Content-Length": str(len(BODY)), "Cache-Control": "max-age=60"}, [half, half])
    given_up = cache.fetch(get(), origin.send)
    given_up.body.read()
    given_up.body.close()
    assert received() == len(BODY) + len(half), "as much as came"
    origin.answer = lambda _: ok(cache_control="max-age=1, stale-while-revalidate=60")
    fetch(cache, origin)
    clock.now += 30
    origin.answer = lambda _: ok(BODY, cache_control="no-store")
    fetch(cache, origin)
    cache.close()  # waits for the validation
    assert received() == len(BODY) + len(half) + len(b"body"), "nobody is given what a validation brings"
    assert origin.bodies[-1].closed


def test_who_waits_for_a_validation_of_another_caller_validates_nothing() -> None:
    registry, clock = CollectorRegistry(), Clock()
    cache = Cache(MemoryStorage(), clock=clock, metrics=Metrics(registry))
    origin = Origin(ok(cache_control="max-age=60", etag='"1"'))
    fetch(cache, origin)
    clock.now += 61
    leading = cache.fetch(get(), origin.send)
    following = cache.fetch(get(), origin.send)
    assert following.status.collapsed and whole(leading) == whole(following)
    assert validations(registry) == {"replaced": 1}


def test_each_outcome_is_told_with_why_the_request_was_forwarded() -> None:
    registry, clock = CollectorRegistry(), Clock()
    cache = Cache(MemoryStorage(), clock=clock, metrics=Metrics(registry))
    origin = Origin(ok(cache_control="max-age=1, stale-while-revalidate=10, stale-if-error=60"))
    told: dict[tuple[str, str], float] = {}

    def outcome_of(request: Request, read: Callable[[Fetched], object] = whole) -> tuple[str, str]:
        with suppress(OSError):
            read(cache.fetch(request, origin.send))
        name = "vllm_http_cache_requests_total"
        samples = {
            (s.labels["outcome"], s.labels["forward"]): s.value
            for metric in registry.collect()
            for s in metric.samples
            if s.name == name
        }
        (changed,) = (labels for labels, value in samples.items() if value != told.get(labels))
        told.update(samples)
        return changed

    assert outcome_of(get()) == ("forwarded", "uri-miss")
    assert outcome_of(get()) == ("hit", "")
    assert outcome_of(get(Cache_Control="no-cache")) == ("forwarded", "request")
    assert outcome_of(get("http://origin.test/b", Cache_Control="only-if-cached")) == ("refused", "")
    assert outcome_of(Request("POST", "http://origin.test/b")) == ("forwarded", "method")
    origin.answer = lambda _: OSError("down")
    assert outcome_of(get("http://origin.test/b")) == ("failed", "uri-miss")
    clock.now += 30
    assert outcome_of(get()) == ("stale", "stale")
    clock.now -= 25
    assert outcome_of(get()) == ("stale", "")
    origin.answer = lambda _: ok(cache_control="max-age=60")
    unread: list[Fetched] = []
    assert outcome_of(get("http://origin.test/c"), unread.append) == ("forwarded", "uri-miss")
    assert outcome_of(get("http://origin.test/c")) == ("collapsed", "uri-miss")
    assert cache.at_hand(get("http://origin.test/c")) is not None
    assert registry.get_sample_value("vllm_http_cache_requests_total", {"outcome": "hit", "forward": ""}) == 2
    cache.close()
