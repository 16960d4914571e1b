"""Validations in the background: one for each response, few, and none left behind."""

from __future__ import annotations

import asyncio
import threading

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from tests.core.memory import MemoryStorage
from tests.core.scripted import Clock, Origin, afetch, fetch, get, nothing_left, ok
from vllm_http_cache import Cache
from vllm_http_cache.background import MOST


@pytest.mark.anyio
async def test_stale_while_revalidate_validates_once_and_the_next_is_new(cache: Cache, clock: Clock) -> None:
    origin = Origin(ok(b"old", cache_control="max-age=1, stale-while-revalidate=30"))
    await afetch(cache, origin)
    clock.now += 5
    origin.answer = lambda _: ok(b"new", cache_control="max-age=60")
    origin.held.clear()
    assert [await afetch(cache, origin) for _ in range(5)] == [b"old"] * 5
    origin.held.set()
    with anyio.fail_after(10):
        while cache.background:
            await anyio.sleep(0.001)
    assert await afetch(cache, origin) == b"new"
    assert len(origin) == 2
    await cache.aclose()


def test_stale_while_revalidate_in_a_thread(cache: Cache, clock: Clock) -> None:
    origin = Origin(ok(b"old", cache_control="max-age=1, stale-while-revalidate=30"))
    fetch(cache, origin)
    clock.now += 5
    origin.answer = lambda _: OSError("down")
    assert fetch(cache, origin) == b"old"
    cache.close()
    assert not cache.background
    assert len(origin) == 2


def test_without_threads_the_next_request_validates(
    cache: Cache, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = Origin(ok(b"old", cache_control="max-age=1, stale-while-revalidate=30"))
    fetch(cache, origin)
    clock.now += 5

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        assert fetch(cache, origin) == b"old" and len(origin) == 1
    assert fetch(cache, origin) == b"old"
    cache.close()
    assert len(origin) == 2 and not cache.background


@pytest.mark.anyio
async def test_closing_cancels_what_runs_in_the_background(cache: Cache, storage: MemoryStorage, clock: Clock) -> None:
    origin = Origin(ok(b"old", cache_control="max-age=1, stale-while-revalidate=30"))
    await afetch(cache, origin)
    clock.now += 5
    origin.held.clear()
    await afetch(cache, origin)
    with anyio.fail_after(10):
        while len(origin) < 2:
            await anyio.sleep(0.001)
        await cache.aclose()
        assert not cache.background and nothing_left(cache, storage)


def test_closing_waits_for_a_validation_in_a_thread(
    cache: Cache, storage: MemoryStorage, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = Origin(ok(b"old", cache_control="max-age=1, stale-while-revalidate=30"))
    fetch(cache, origin)
    clock.now += 5
    origin.answer = lambda _: ok(b"new", cache_control="max-age=60")
    origin.held.clear()
    fetch(cache, origin)
    in_the_background: list[int] = []
    monkeypatch.setattr(storage, "close", lambda: in_the_background.append(len(cache.background)))
    closing = threading.Thread(target=cache.close)
    closing.start()
    while not cache._closed:
        pass
    origin.held.set()
    closing.join(10)
    cache.close()
    assert in_the_background == [0]


SWR = "max-age=1, stale-while-revalidate=30"


@pytest.mark.anyio
async def test_validations_in_the_background_are_few(cache: Cache, clock: Clock) -> None:
    origin = Origin(ok(b"old", cache_control=SWR))
    requests = [get(f"http://origin.test/{number}") for number in range(MOST + 4)]
    for request in requests:
        await afetch(cache, origin, request)
    clock.now += 5
    origin.held.clear()
    assert {await afetch(cache, origin, request) for request in requests} == {b"old"}
    await anyio.wait_all_tasks_blocked()
    assert len(origin) == len(requests) + MOST
    await cache.aclose()


def test_a_closed_cache_begins_no_validation(cache: Cache, clock: Clock) -> None:
    origin = Origin(ok(b"old", cache_control=SWR))
    fetch(cache, origin)
    clock.now += 5
    cache.close()
    assert fetch(cache, origin) == b"old"
    assert not cache.background and len(origin) == 1


def test_a_loop_that_was_closed_keeps_no_validation_from_others(cache: Cache, clock: Clock) -> None:
    origin = Origin(ok(b"old", cache_control=SWR))
    fetch(cache, origin)
    clock.now += 5
    origin.held.clear()
    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(afetch(cache, origin)) == b"old"
    loop.close()
    origin.held.set()
    origin.answer = lambda _: ok(b"new", cache_control="max-age=60")

    async def again() -> bytes:
        assert await afetch(cache, origin) == b"old"
        async with asyncio.timeout(10):
            while cache.background:
                await asyncio.sleep(0.001)
        return await afetch(cache, origin)

    assert asyncio.run(again()) == b"new"
