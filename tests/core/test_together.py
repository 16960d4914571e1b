"""Callers of one cache, of one resource, at once: threads, tasks, loops and a forked child."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import anyio
import anyio.lowlevel
import pytest

from tests.core.memory import MemoryStorage
from tests.core.scripted import Answer, AsyncBody, Clock, Origin, afetch, awhole, fetch, get, nothing_left, ok
from vllm_http_cache import Cache
from vllm_http_cache.rfc9111.message import Request
from vllm_http_cache.wire import Caller, Reply

CALLERS = 32


def test_cold_threads_share_one_request(cache: Cache, storage: MemoryStorage) -> None:
    origin = Origin(ok(b"x" * 1_000_000, cache_control="max-age=60"))
    origin.held.clear()
    with ThreadPoolExecutor(CALLERS) as pool:
        bodies = [pool.submit(fetch, cache, origin) for _ in range(CALLERS)]
        assert origin.arrived.wait(10)
        origin.held.set()
        assert {body.result(10) for body in bodies} == {b"x" * 1_000_000}
    assert len(origin) == 1 and nothing_left(cache, storage)


@pytest.mark.anyio
async def test_cold_tasks_share_one_request(cache: Cache, storage: MemoryStorage) -> None:
    origin = Origin(ok(b"x" * 1_000_000, cache_control="max-age=60"))
    origin.held.clear()
    bodies: list[bytes] = []

    async def one() -> None:
        bodies.append(await afetch(cache, origin))

    async with anyio.create_task_group() as tasks:
        for _ in range(CALLERS):
            tasks.start_soon(one)
        while not origin.arrived.is_set():
            await anyio.sleep(0.001)
        await anyio.wait_all_tasks_blocked()
        origin.held.set()
    assert bodies == [b"x" * 1_000_000] * CALLERS
    assert len(origin) == 1 and nothing_left(cache, storage)


@pytest.mark.anyio
async def test_a_just_stale_response_is_validated_once_for_all(cache: Cache, clock: Clock) -> None:
    def answer(request: Request) -> Answer:
        if "if-none-match" in request.fields:
            return 304, {"ETag": '"1"', "Cache-Control": "max-age=60"}, []
        return ok(cache_control="max-age=1", etag='"1"')

    origin = Origin(answer)
    await afetch(cache, origin)
    clock.now += 2
    async with anyio.create_task_group() as tasks:
        for _ in range(100):
            tasks.start_soon(afetch, cache, origin)
    assert len(origin) == 2


@pytest.mark.anyio
async def test_what_is_not_storable_is_asked_for_in_parallel(cache: Cache, storage: MemoryStorage) -> None:
    origin = Origin(ok(cache_control="no-store"))
    await afetch(cache, origin)
    origin.held.clear()
    async with anyio.create_task_group() as tasks:
        for _ in range(CALLERS):
            tasks.start_soon(afetch, cache, origin)
        with anyio.fail_after(10):
            while len(origin) < CALLERS + 1:
                await anyio.sleep(0.001)
        origin.held.set()
    assert nothing_left(cache, storage)


@pytest.mark.anyio
@pytest.mark.parametrize("what", ["its signature", "everything"])
async def test_what_the_origin_must_confirm_to_each_is_confirmed_in_parallel(
    cache: Cache, storage: MemoryStorage, what: str
) -> None:
    signed = "http://origin.test/a?Key-Pair-Id=K&Expires=9&Signature={}"
    stored = ok(cache_control="max-age=60", etag='"1"', vary="*" if what == "everything" else "accept")
    fields = {name: value for name, value in stored[1].items() if name != "Content-Length"}
    origin = Origin(lambda request: (304, fields, []) if "if-none-match" in request.fields else stored)
    for number in range(2):  # the first that varies on everything tells the next what to expect
        await afetch(cache, origin, get(signed.format(number) if what == "its signature" else "http://origin.test/a"))
    origin.held.clear()
    async with anyio.create_task_group() as tasks:
        for number in range(2, CALLERS + 2):
            uri = signed.format(number) if what == "its signature" else "http://origin.test/a"
            tasks.start_soon(afetch, cache, origin, get(uri))
        with anyio.fail_after(10):
            while len(origin) < CALLERS + 2:
                await anyio.sleep(0.001)
        origin.held.set()
    assert all("if-none-match" in request.fields for request in origin.asked[1:])
    assert nothing_left(cache, storage)


@pytest.mark.anyio
@pytest.mark.parametrize("after_the_head", [False, True])
async def test_a_cancelled_leader_costs_at_most_one_more_request(
    cache: Cache, storage: MemoryStorage, after_the_head: bool
) -> None:
    origin = Origin(ok(b"x" * 1_000_000, cache_control="max-age=60"))
    origin.held.clear()
    bodies: list[bytes] = []
    leader = anyio.CancelScope()

    async def lead() -> None:
        with leader:
            fetched = await cache.afetch(get(), origin.asend)
            try:
                await anyio.sleep_forever()
            finally:
                await fetched.body.aclose()

    async def follow() -> None:
        bodies.append(await afetch(cache, origin))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lead)
        while not origin.arrived.is_set():
            await anyio.sleep(0.001)
        for _ in range(CALLERS):
            tasks.start_soon(follow)
        await anyio.wait_all_tasks_blocked()
        if after_the_head:
            origin.held.set()
            while not origin.bodies:
                await anyio.sleep(0.001)
        leader.cancel()
        await anyio.sleep(0)
        origin.held.set()
    assert bodies == [b"x" * 1_000_000] * CALLERS
    assert len(origin) <= 2 and nothing_left(cache, storage)


@pytest.mark.anyio
async def test_when_all_are_cancelled_the_fetch_stops_and_nothing_is_left(cache: Cache, storage: MemoryStorage) -> None:
    origin = Origin((200, {"Cache-Control": "max-age=60"}, [b"x" * 1000] * 1000))

    async def one() -> None:
        fetched = await cache.afetch(get(), origin.asend)
        try:
            await fetched.body.read()
            await anyio.sleep_forever()
        finally:
            await fetched.body.aclose()

    async with anyio.create_task_group() as tasks:
        for _ in range(CALLERS):
            tasks.start_soon(one)
        while not origin.bodies:
            await anyio.sleep(0.001)
        tasks.cancel_scope.cancel()
    with anyio.fail_after(10):
        while not (origin.bodies[0].closed and nothing_left(cache, storage)):
            await anyio.sleep(0.001)
    assert storage.records == {}


def test_a_waiter_keeps_its_own_time_out(cache: Cache, storage: MemoryStorage) -> None:
    origin = Origin(ok(cache_control="max-age=60"))
    origin.held.clear()
    leader = threading.Thread(target=fetch, args=(cache, origin))
    leader.start()
    assert origin.arrived.wait(10)
    with pytest.raises(TimeoutError):
        cache.fetch(get(), origin.send, Caller(timeout=0.01))
    origin.held.set()
    leader.join(10)
    assert len(origin) == 1 and nothing_left(cache, storage)


def test_threads_and_loops_share_one_request(cache: Cache, storage: MemoryStorage) -> None:
    origin = Origin(ok(b"x" * 1_000_000, cache_control="max-age=60"))
    origin.held.clear()

    def in_a_loop() -> list[bytes]:
        async def together() -> list[bytes]:
            return list(await asyncio.gather(*(afetch(cache, origin) for _ in range(4))))

        return asyncio.run(together())

    with ThreadPoolExecutor(8) as pool:
        loops = [pool.submit(in_a_loop) for _ in range(2)]
        threads = [pool.submit(fetch, cache, origin) for _ in range(4)]
        assert origin.arrived.wait(10)
        origin.held.set()
        bodies = [body for loop in loops for body in loop.result(10)] + [thread.result(10) for thread in threads]
    assert bodies == [b"x" * 1_000_000] * 12
    assert len(origin) <= 2 and nothing_left(cache, storage)


def test_a_cache_serves_one_event_loop_after_another(cache: Cache) -> None:
    origin = Origin(ok(cache_control="max-age=60"))
    assert [asyncio.run(afetch(cache, origin)) for _ in range(2)] == [b"body"] * 2
    assert len(origin) == 1


def eager() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
    return loop


@pytest.mark.skipif(sys.version_info < (3, 12), reason="no eager tasks")
def test_a_loop_may_begin_its_tasks_at_once(cache: Cache, storage: MemoryStorage, clock: Clock) -> None:
    origin = Origin(ok(b"x" * 3_000_000, cache_control="max-age=1, stale-while-revalidate=30"))

    class AtOnce(AsyncBody):
        async def read(self) -> bytes:
            return self._body.read()

    async def send(request: Request) -> Reply:
        reply = await origin.asend(request)
        return replace(reply, source=AtOnce(origin.bodies[-1]))

    async def main() -> None:
        async with asyncio.timeout(10):
            for seconds in (0, 5, 5):
                clock.now += seconds
                assert await awhole(await cache.afetch(get(), send)) == b"x" * 3_000_000
                while cache.background:
                    await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=eager) as runner:
        runner.run(main())
    assert len(origin) == 3 and nothing_left(cache, storage)


def test_a_loop_that_ends_with_its_body_leaves_no_flight(cache: Cache, storage: MemoryStorage) -> None:
    origin = Origin(ok(cache_control="max-age=60"))

    async def take_the_last_octet_and_go(number: int) -> None:
        fetched = await cache.afetch(get(f"http://origin.test/{number}"), origin.asend)
        await fetched.body.read()

    for number in range(50):
        asyncio.run(take_the_last_octet_and_go(number))
        assert len(cache.flights) == 0 and storage.open_writers == 0


def test_a_forked_child_leads_its_own_flights(cache: Cache) -> None:
    origin = Origin(ok(cache_control="max-age=60"))
    origin.held.clear()
    leader = threading.Thread(target=fetch, args=(cache, origin))
    leader.start()
    assert origin.arrived.wait(10)
    child = os.fork()
    if child == 0:
        origin.held.set()
        os._exit(0 if fetch(cache, origin) == b"body" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    origin.held.set()
    leader.join(10)
