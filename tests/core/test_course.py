"""What is done around the steps of an exchange: bodies completed or given up, and what is told of it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

import pytest

from tests.core.memory import MemoryReader, MemoryStorage, MemoryWriter
from tests.core.scripted import Answer, Clock, Origin, afetch, fetch, get, nothing_left, ok, whole
from vllm_http_cache import Cache
from vllm_http_cache.course import Course
from vllm_http_cache.rfc9111.message import Request

WHOLE = b"0123456789"
FIELDS = {"Cache-Control": "max-age=60", "ETag": '"1"'}


def in_parts(request: Request) -> Answer:
    asked = request.fields.get("range")
    if asked is None:
        return ok(WHOLE, cache_control="max-age=60", etag='"1"')
    first, last = (int(number or 9) for number in asked.removeprefix("bytes=").split("-"))
    fields = {"Content-Range": f"bytes {first}-{last}/10", "Content-Length": str(last + 1 - first)}
    return 206, {**FIELDS, **fields}, [WHOLE[first : last + 1]]


@pytest.fixture
def origin(cache: Cache) -> Origin:
    """Of a resource whose first part is stored."""
    origin = Origin(in_parts)
    fetch(cache, origin, get(Range="bytes=0-3"))
    return origin


def test_a_stored_part_is_completed_by_the_rest(cache: Cache, storage: MemoryStorage, origin: Origin) -> None:
    assert fetch(cache, origin) == fetch(cache, origin) == WHOLE
    assert [request.fields.get("range") for request in origin.asked] == ["bytes=0-3", "bytes=4-"]
    assert nothing_left(cache, storage)


def losing(storage: MemoryStorage) -> None:
    storage.bodies.clear()


def damaging(storage: MemoryStorage) -> None:
    storage.damaged_from = 0


def filling(storage: MemoryStorage) -> None:
    storage.room = 3


@pytest.mark.parametrize("harm", [losing, damaging, filling])
def test_what_becomes_of_a_part_does_not_matter_to_the_caller(
    cache: Cache, storage: MemoryStorage, origin: Origin, harm: Callable[[MemoryStorage], None]
) -> None:
    harm(storage)
    assert fetch(cache, origin) == WHOLE
    assert origin.asked[2].fields.get("range") is None
    assert nothing_left(cache, storage)


def test_room_that_does_not_suffice_for_a_part_does_not_matter(
    cache: Cache, storage: MemoryStorage, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = MemoryWriter.write
    monkeypatch.setattr(MemoryWriter, "write", lambda writer, data: data != WHOLE[:4] and write(writer, data))
    assert fetch(cache, origin) == fetch(cache, origin) == WHOLE
    assert len(origin) == 3 and nothing_left(cache, storage)


def test_a_task_that_leaves_while_its_body_is_created_leaves_none(
    cache: Cache, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    creating, go_on = threading.Event(), threading.Event()
    create = storage.create_body

    def slowly(key: str, length: int | None) -> MemoryWriter | None:
        creating.set()
        assert go_on.wait(10)
        return create(key, length)

    monkeypatch.setattr(storage, "create_body", slowly)
    origin = Origin(ok(cache_control="max-age=60"))

    async def main() -> None:
        task = asyncio.ensure_future(afetch(cache, origin))
        assert await asyncio.to_thread(creating.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        async with asyncio.timeout(10):
            while not storage.aborted:
                await asyncio.sleep(0.001)

    asyncio.run(main())
    assert origin.bodies[0].closed
    assert storage.aborted == 1 and nothing_left(cache, storage)


def test_a_defect_between_a_body_and_its_download_leaves_neither(
    cache: Cache, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def follow(_: MemoryWriter) -> MemoryReader:
        raise RuntimeError("a defect")

    monkeypatch.setattr(MemoryWriter, "follow", follow)
    origin = Origin(ok(cache_control="max-age=60"))
    with pytest.raises(RuntimeError, match="a defect"):
        fetch(cache, origin)
    assert origin.bodies[0].closed and nothing_left(cache, storage)


def test_what_becomes_storable_is_shared_again(cache: Cache, clock: Clock) -> None:
    origin = Origin(ok(cache_control="no-store"))
    fetch(cache, origin)
    origin.answer = lambda _: ok(cache_control="max-age=60")
    fetch(cache, origin)
    clock.now += 61
    origin.held.clear()
    origin.arrived.clear()
    threads = [threading.Thread(target=fetch, args=(cache, origin)) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert origin.arrived.wait(10)
    origin.held.set()
    for thread in threads:
        thread.join(10)
    assert len(origin) == 3


def test_a_stale_answer_for_a_failing_origin_is_logged_without_its_query(
    cache: Cache, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    request = get("http://origin.test/a?signature=secret")
    origin = Origin(ok(cache_control="max-age=1, stale-if-error=60"))
    with caplog.at_level(logging.INFO, "vllm_http_cache"):
        fetch(cache, origin, request)
        fetch(cache, origin, request)
        assert caplog.messages == []
        clock.now += 2
        origin.answer = lambda _: OSError("down")
        fetch(cache, origin, request)
    (message,) = caplog.messages
    assert "http://origin.test/a" in message and "stale-if-error" in message and "secret" not in message


def test_a_validation_that_nobody_needs_any_more_is_no_failure(
    cache: Cache, clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = Origin(ok(cache_control="max-age=1, stale-while-revalidate=60"))
    fetch(cache, origin)
    clock.now += 2
    started: list[Callable[[], None]] = []
    monkeypatch.setattr(threading.Thread, "start", lambda thread: started.append(thread.run))
    fetch(cache, origin)
    monkeypatch.undo()
    clock.now -= 2  # as if it had been validated meanwhile
    (run,) = started
    with caplog.at_level(logging.INFO, "vllm_http_cache"):
        run()
    assert caplog.messages == [] and len(origin) == 1


def test_damage_in_a_part_that_was_asked_for_is_the_callers_error(cache: Cache, storage: MemoryStorage) -> None:
    origin = Origin(in_parts)
    fetch(cache, origin)
    storage.damaged_from = 0
    fetched = cache.fetch(get(Range="bytes=2-5"), origin.send)
    with pytest.raises(ConnectionError):
        whole(fetched)
    assert len(origin) == 1


def test_a_follower_whose_exchange_fails_leaves_the_leader_alone(
    cache: Cache, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: object) -> None:
        raise RuntimeError("a defect")

    origin = Origin(ok(cache_control="max-age=60"))
    leading = cache.fetch(get(), origin.send)
    monkeypatch.setattr(Course, "end", end)
    with pytest.raises(RuntimeError, match="a defect"):
        cache.fetch(get(), origin.send)
    assert whole(leading) == b"body" and nothing_left(cache, storage)


def test_without_room_what_is_nobody_elses_passes_through(cache: Cache, storage: MemoryStorage) -> None:
    storage.room = 3
    origin = Origin((200, {"Cache-Control": "max-age=0", "ETag": '"1"'}, [b"bo", b"dy"]))
    assert fetch(cache, origin) == b"body"
    assert storage.records == {} and nothing_left(cache, storage)
