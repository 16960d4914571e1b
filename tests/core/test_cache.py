"""The drivers: an exchange against a storage and an origin, for threads and tasks."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from tests.core.memory import MemoryStorage
from tests.core.scripted import Answer, Clock, Origin, afetch, fetch, get, nothing_left, ok, status, whole
from vllm_http_cache import Cache, CacheOptions
from vllm_http_cache.rfc9111.dates import format_http_date
from vllm_http_cache.rfc9111.message import Request
from vllm_http_cache.storage.protocol import Record


def test_a_miss_is_stored_and_then_hit(cache: Cache, storage: MemoryStorage) -> None:
    origin = Origin(ok(cache_control="max-age=60"))
    first, second = cache.fetch(get(), origin.send), None
    assert whole(first) == b"body" and "fwd=uri-miss" in status(first) and "stored" in status(first)
    second = cache.fetch(get(), origin.send)
    assert whole(second) == b"body" and "hit" in status(second)
    assert len(origin) == 1 and nothing_left(cache, storage)


@pytest.mark.anyio
@pytest.mark.parametrize("slow", [False, True])
async def test_a_task_is_answered_with_and_without_waiting_for_the_disk(
    cache: Cache, storage: MemoryStorage, slow: bool
) -> None:
    storage.slow = slow
    origin = Origin(ok(cache_control="max-age=60"))
    assert [await afetch(cache, origin) for _ in range(3)] == [b"body"] * 3
    assert len(origin) == 1 and nothing_left(cache, storage)


def test_a_stale_response_is_validated_and_its_304_freshens_it(cache: Cache, clock: Clock) -> None:
    def answer(request: Request) -> Answer:
        if "if-none-match" in request.fields:
            return 304, {"ETag": '"1"', "Cache-Control": "max-age=60"}, []
        return ok(cache_control="max-age=60", etag='"1"')

    origin = Origin(answer)
    fetch(cache, origin)
    clock.now += 61
    fetched = cache.fetch(get(), origin.send)
    assert whole(fetched) == b"body" and fetched.response.status == 200 and "fwd-status=304" in status(fetched)
    clock.now += 59
    fetch(cache, origin)
    assert len(origin) == 2 and origin.bodies[1].closed


def test_a_304_for_a_body_that_is_gone_is_fetched_whole(cache: Cache, storage: MemoryStorage, clock: Clock) -> None:
    origin = Origin(
        lambda request: (304, {"ETag": '"1"'}, []) if "if-none-match" in request.fields else ok(b"new", etag='"1"')
    )
    origin.answer = lambda _: ok(b"old", etag='"1"', cache_control="max-age=0")
    fetch(cache, origin)
    storage.bodies.clear()
    origin.answer = lambda request: (
        (304, {"ETag": '"1"'}, []) if "if-none-match" in request.fields else ok(b"new", etag='"1"')
    )
    assert fetch(cache, origin) == b"new"
    assert len(origin) == 3


def test_a_hit_whose_body_is_gone_is_a_miss(cache: Cache, storage: MemoryStorage) -> None:
    origin = Origin(ok(cache_control="max-age=60"))
    fetch(cache, origin)
    storage.bodies.clear()
    assert fetch(cache, origin) == b"body" and len(origin) == 2
    assert fetch(cache, origin) == b"body" and len(origin) == 2


@pytest.mark.anyio
@pytest.mark.parametrize("what", ["gone", "damaged"])
async def test_a_loop_does_not_wait_for_a_record_to_be_dropped(
    cache: Cache, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    origin = Origin(ok(b"x" * 600_000, cache_control="max-age=60", etag='"1"'))
    await afetch(cache, origin)
    if what == "gone":
        storage.bodies.clear()
    else:
        storage.damaged_from = 300_000
    threads: list[int] = []

    def swap(key: str, seen: Record | None, record: Record) -> bool:
        threads.append(threading.get_ident())
        storage.damaged_from = None
        return MemoryStorage.swap(storage, key, seen, record)

    monkeypatch.setattr(storage, "swap", swap)
    assert await afetch(cache, origin) == b"x" * 600_000
    assert len(origin) == 2 and threads and threading.get_ident() not in threads


def test_no_room_passes_the_response_through(cache: Cache, storage: MemoryStorage) -> None:
    storage.room = 3
    origin = Origin(ok(cache_control="max-age=60"))
    fetched = cache.fetch(get(), origin.send)
    assert whole(fetched) == b"body" and "stored" not in status(fetched)
    assert storage.bodies == {} and nothing_left(cache, storage)


def test_an_unframed_body_is_not_stored_unless_asked_for(storage: MemoryStorage, clock: Clock) -> None:
    origin = Origin((200, {"Cache-Control": "max-age=60"}, [b"body"]))

    def send(request: Request) -> object:
        reply = origin.send(request)
        return type(reply)(reply.response, reply.source, framed=False)

    for store_unframed, requests in ((False, 2), (True, 3)):
        cache = Cache(storage, CacheOptions(store_unframed=store_unframed), clock=clock)
        for _ in range(2):
            assert whole(cache.fetch(get(), send)) == b"body"  # type: ignore[arg-type]
        assert len(origin) == requests


def test_the_origins_error_is_the_callers(cache: Cache, storage: MemoryStorage) -> None:
    error = OSError("refused")
    origin = Origin(lambda _: error)
    with pytest.raises(OSError) as caught:
        cache.fetch(get(), origin.send)
    assert caught.value is error and nothing_left(cache, storage)


def test_a_stale_response_answers_for_a_failing_origin_where_it_may(cache: Cache, clock: Clock) -> None:
    origin = Origin(ok(cache_control="max-age=1, stale-if-error=10"))
    fetch(cache, origin)
    failures: Iterator[Answer | Exception] = iter([OSError("refused"), (500, {}, [b"no"])])
    origin.answer = lambda _: next(failures)
    for _ in range(2):
        clock.now += 4
        assert fetch(cache, origin) == b"body"
    clock.now += 20
    origin.answer = lambda _: OSError("refused")
    with pytest.raises(OSError):
        fetch(cache, origin)


def test_the_consumers_veto_drops_what_is_stored(cache: Cache, storage: MemoryStorage) -> None:
    origin = Origin(ok(cache_control="max-age=60"))
    for requests in (1, 2, 3):  # vetoed as a miss, vetoed as a hit
        fetched = cache.fetch(get(), origin.send)
        whole(fetched)
        if requests == 2:
            fetched = cache.fetch(get(), origin.send)
            whole(fetched)
        assert len(origin) == requests
        fetched.refuse()
        assert storage.records == {}


def test_unsafe_methods_go_through_and_invalidate(cache: Cache) -> None:
    origin = Origin(ok(cache_control="max-age=60"))
    fetch(cache, origin)
    post = cache.fetch(Request("POST", get().uri), origin.send)
    assert "fwd=method" in status(post)
    fetch(cache, origin)
    assert len(origin) == 3


def test_an_unsafe_request_that_fails_invalidates_nothing(cache: Cache) -> None:
    origin = Origin(ok(cache_control="max-age=60"))
    fetch(cache, origin)
    origin.answer = lambda _: error
    error = OSError("refused")
    with pytest.raises(OSError) as caught:
        cache.fetch(Request("POST", get().uri), origin.send)
    assert caught.value is error
    assert fetch(cache, origin) == b"body" and len(origin) == 2


def test_a_304_that_forbids_storing_is_answered_with_what_was_stored(
    cache: Cache, storage: MemoryStorage, clock: Clock
) -> None:
    origin = Origin(ok(cache_control="max-age=1", etag='"1"'))
    fetch(cache, origin)
    clock.now += 2
    origin.answer = lambda _: (304, {"ETag": '"1"', "Cache-Control": "no-store"}, [])
    assert fetch(cache, origin) == b"body" and len(origin) == 2
    assert storage.records == {} and nothing_left(cache, storage)


def test_what_a_post_answers_may_answer_a_get(cache: Cache) -> None:
    origin = Origin(ok(cache_control="max-age=60", content_location=get().uri))
    posted = cache.fetch(Request("POST", get().uri), origin.send)
    assert whole(posted) == b"body" and "stored" in status(posted)
    assert fetch(cache, origin) == b"body" and len(origin) == 1
    posted.refuse()
    assert fetch(cache, origin) == b"body" and len(origin) == 2


def test_a_get_with_content_goes_through(cache: Cache) -> None:
    origin = Origin(ok(cache_control="max-age=60"))
    for _ in range(2):
        assert "fwd=bypass" in status(cache.fetch(get(content_length="3"), origin.send))
    assert len(origin) == 2


def test_off_changes_nothing(storage: MemoryStorage) -> None:
    cache = Cache(storage, CacheOptions(mode="off"))
    origin = Origin(ok(cache_control="max-age=60"))
    fetched = cache.fetch(get(), origin.send)
    assert status(fetched) == "" and whole(fetched) == b"body"
    assert storage.records == {}


def test_only_if_cached_never_asks_the_origin(storage: MemoryStorage) -> None:
    cache = Cache(storage, CacheOptions(mode="only-if-cached"))
    origin = Origin(ok())
    assert cache.fetch(get(), origin.send).response.status == 504
    assert len(origin) == 0


@pytest.mark.parametrize("missing", [0, 8])
def test_parts_that_make_a_coded_body_must_make_a_whole_one(cache: Cache, storage: MemoryStorage, missing: int) -> None:
    coded = gzip.compress(b"hello" * 1000)
    coded = coded[: len(coded) - missing]
    fields = {"Cache-Control": "max-age=60", "ETag": '"1"', "Content-Encoding": "gzip"}

    def answer(request: Request) -> Answer:
        asked = request.fields.get("range")
        if asked is None:
            return 200, fields, [coded]
        first, last = (int(number or len(coded) - 1) for number in asked.removeprefix("bytes=").split("-"))
        return 206, {**fields, "Content-Range": f"bytes {first}-{last}/{len(coded)}"}, [coded[first : last + 1]]

    origin = Origin(answer)
    fetch(cache, origin, get(Range="bytes=0-9"))
    assert fetch(cache, origin) == coded
    assert "range" in origin.asked[1].fields
    assert (coded in storage.bodies.values()) is (missing == 0)
    assert ("hit" in status(cache.fetch(get(), origin.send))) is (missing == 0)


def test_a_304_that_says_expired_ends_a_fresh_response(cache: Cache, clock: Clock) -> None:
    def answer(request: Request) -> Answer:
        if "if-none-match" in request.fields:
            return 304, {"ETag": '"1"', "Expires": "0"}, []
        return 200, {"ETag": '"1"', "Expires": format_http_date(clock.now + 3600)}, [b"body"]

    origin = Origin(answer)
    fetch(cache, origin)
    fetch(cache, origin, get(Cache_Control="no-cache"))
    assert "hit" not in status(cache.fetch(get(), origin.send))


def test_a_304_whose_end_does_not_come_is_closed(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: Request) -> Answer:
        if "if-none-match" in request.fields:
            return 304, {}, [OSError("gone")]
        return ok(cache_control="no-cache", etag='"1"')

    origin = Origin(answer)
    assert [fetch(cache, origin) for _ in range(2)] == [b"body"] * 2
    assert [body.closed for body in origin.bodies] == [True, True]


def test_without_threads_there_are_answers_all_the_same(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    origin = Origin(ok(cache_control="max-age=60"))
    assert [fetch(cache, origin) for _ in range(2)] == [b"body"] * 2
    assert len(origin) == 1
    cache.close()


# In the background.


class Failing:
    """Metrics that cannot be written."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        def fail(*_: object, **__: object) -> None:
            if name == "answered":
                raise OSError("metrics")

        return fail


@pytest.mark.anyio
@pytest.mark.parametrize("control", ["no-store", "max-age=60"])
async def test_metrics_that_fail_leave_nothing_open(storage: MemoryStorage, control: str) -> None:
    cache = Cache(storage, metrics=Failing())  # type: ignore[arg-type]
    origin = Origin(ok(cache_control=control))
    with pytest.raises(OSError, match="metrics"):
        await cache.afetch(get(), origin.asend)
    with pytest.raises(OSError, match="metrics"):
        await anyio.to_thread.run_sync(cache.fetch, get("http://origin.test/b"), origin.send)
    with anyio.fail_after(10):
        while not (all(body.closed for body in origin.bodies) and nothing_left(cache, storage)):
            await anyio.sleep(0.001)
    assert len(origin.bodies) == 2


@pytest.mark.parametrize("given", ["/srv/cache", None, MemoryStorage])
def test_what_is_no_storage_is_refused_at_once(given: Any) -> None:
    with pytest.raises(TypeError, match=r"storage has to be a storage, such as FileStorage\(path\), not "):
        Cache(given)


def test_a_body_thrown_away_unread_stops_its_download(cache: Cache, storage: MemoryStorage) -> None:
    origin = Origin((200, {"Cache-Control": "max-age=60"}, [b"x"] * 10))
    fetched = cache.fetch(get(), origin.send)
    fetched.body.read()
    del fetched
    fetch(cache, origin, get("http://origin.test/other"))
    assert origin.bodies[0].closed and nothing_left(cache, storage)
