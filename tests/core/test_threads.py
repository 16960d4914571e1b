"""Threads for calls that may wait, and how a loop calls in them."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

import anyio
import pytest

from tests.core.scripted import Origin, afetch, ok
from tests.storage.helpers import eventually
from vllm_http_cache import Cache, loops
from vllm_http_cache.loops import in_pool, in_thread


@pytest.fixture
def no_more(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    return lambda: monkeypatch.setattr(threading.Thread, "start", start)


@pytest.mark.anyio
async def test_without_threads_a_loop_waits_itself(cache: Cache, no_more: Callable[[], None]) -> None:
    no_more()
    origin = Origin(ok(b"x" * 3_000_000, cache_control="max-age=60"))
    assert [await afetch(cache, origin) for _ in range(2)] == [b"x" * 3_000_000] * 2
    assert len(origin) == 1


@pytest.mark.anyio
async def test_where_one_thread_more_cannot_be_started_the_call_is_made_once(no_more: Callable[[], None]) -> None:
    """The loop makes it, and not again the thread that is there."""
    begun, free = threading.Event(), threading.Event()
    made: list[int] = []
    async with anyio.create_task_group() as group:

        def busy() -> None:
            begun.set()
            free.wait(10)

        group.start_soon(in_thread, busy)
        while not begun.is_set():
            await anyio.sleep(0.001)
        no_more()
        await in_thread(made.append, threading.get_ident())
        assert made == [threading.get_ident()]
        free.set()
    assert await in_thread(len, made) == 1, "by the thread, after all that was left for it"


@pytest.mark.anyio
async def test_a_call_that_fails_in_a_thread_is_made_once() -> None:
    calls: list[int] = []

    def call(number: int) -> None:
        calls.append(number)
        raise RuntimeError("its own")

    with pytest.raises(RuntimeError, match="its own"):
        await in_thread(call, 1)
    assert calls == [1]


@pytest.mark.parametrize("own", [True, False])
def test_an_error_of_a_call_is_in_no_cycle(own: bool) -> None:
    """Which would keep what its frames hold, a picture's octets perhaps, until the collector runs."""

    class Own(Exception):
        pass

    def call() -> None:
        raise Own

    async def main(pool: ThreadPoolExecutor) -> weakref.ref[Own]:
        try:
            await (in_thread(call) if own else in_pool(pool, call))
        except Own as error:
            return weakref.ref(error)
        raise AssertionError

    gc.disable()
    try:
        with ThreadPoolExecutor(1) as pool:
            error = asyncio.run(main(pool))
        assert eventually(lambda: error() is None)
    finally:
        gc.enable()


@pytest.mark.anyio
async def test_a_call_in_a_thread_is_made_to_its_end_though_its_caller_has_gone() -> None:
    begun, free, made = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        free.wait(10)
        made.set()

    async with anyio.create_task_group() as group:
        group.start_soon(in_thread, call)
        while not begun.is_set():
            await anyio.sleep(0.001)
        group.cancel_scope.cancel()
    assert not made.is_set()
    free.set()
    assert made.wait(10)


@pytest.mark.anyio
async def test_a_call_whose_caller_has_gone_before_it_began_is_made() -> None:
    free, made = threading.Event(), threading.Event()
    async with anyio.create_task_group() as group:
        for _ in range(loops.THREADS):
            group.start_soon(in_thread, free.wait, 10)
        await anyio.sleep(0)
        group.start_soon(in_thread, made.set)
        await anyio.sleep(0)
        group.cancel_scope.cancel()
    free.set()
    assert made.wait(10)


@pytest.mark.anyio
async def test_so_many_calls_at_once_and_no_more() -> None:
    begun, free = threading.Semaphore(0), threading.Event()

    def call() -> None:
        begun.release()
        free.wait(10)

    async with anyio.create_task_group() as group:
        for _ in range(loops.THREADS + 1):
            group.start_soon(in_thread, call)
        await anyio.wait_all_tasks_blocked()
        for _ in range(loops.THREADS):
            assert begun.acquire(timeout=10)
        assert not begun.acquire(timeout=0.05)
        free.set()


@pytest.mark.anyio
async def test_a_call_in_a_thread_has_its_callers_context() -> None:
    var: ContextVar[int] = ContextVar("var")
    var.set(7)
    assert await in_thread(var.get) == 7


def test_a_call_in_a_pool_gives_what_it_gives() -> None:
    async def main(pool: ThreadPoolExecutor) -> None:
        assert await in_pool(pool, divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await in_pool(pool, divmod, 7, 0)

    with ThreadPoolExecutor(1) as pool:
        asyncio.run(main(pool))


def test_who_is_cancelled_takes_back_what_has_not_begun_in_a_pool() -> None:
    free, made = threading.Event(), []

    async def main(pool: ThreadPoolExecutor) -> None:
        calls = [asyncio.create_task(in_pool(pool, call)) for call in (lambda: free.wait(10), lambda: made.append(1))]
        await asyncio.sleep(0)
        calls[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls[1]
        free.set()
        assert await calls[0]

    with ThreadPoolExecutor(1) as pool:
        asyncio.run(main(pool))
    assert not made


def test_a_call_in_a_pool_may_outlive_its_loop(caplog: pytest.LogCaptureFixture) -> None:
    begun, free = threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        free.wait(10)

    async def main(pool: ThreadPoolExecutor) -> None:
        calling = asyncio.create_task(in_pool(pool, call))
        await asyncio.sleep(0)
        assert begun.wait(10)
        calling.cancel()

    with ThreadPoolExecutor(1) as pool:
        asyncio.run(main(pool))
        free.set()
    assert not caplog.records
