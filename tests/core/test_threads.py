"""Threads for calls that may wait: how many, for how long, at the end of the process, and how a loop calls in them."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial

import anyio
import pytest

from tests.core.scripted import Origin, afetch, ok
from tests.storage.helpers import eventually
from vllm_http_cache import Cache, loops, threads
from vllm_http_cache.loops import in_pool, in_thread
from vllm_http_cache.threads import Threads


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if isinstance(thread, threads._Thread)]


def end_threads() -> None:
    threads._end()
    assert not ours()


class Held:
    """Calls that wait until they may return."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.begun = threading.Semaphore(0)

    def call(self) -> bool:
        self.begun.release()
        return self.free.wait(10)

    def await_begun(self, number: int) -> None:
        for _ in range(number):
            assert self.begun.acquire(timeout=10)


def test_so_many_at_once_and_no_more() -> None:
    held, some, others = Held(), Threads(3), Threads(3)
    end_threads()
    calls = [some.submit(held.call) for _ in range(10)]
    held.await_begun(3)
    assert len(ours()) == 3
    assert not held.begun.acquire(timeout=0.05)
    assert others.submit(lambda: 7).result(10) == 7
    held.free.set()
    assert all(call.result(10) for call in calls)


def test_one_after_the_other_share_a_thread() -> None:
    end_threads()
    threads_ = Threads(3)
    assert len({threads_.submit(threading.get_ident).result(10) for _ in range(200)}) == 1


def test_an_error_is_the_callers() -> None:
    with pytest.raises(SystemExit):
        Threads(1).submit(exit).result(10)
    assert Threads(1).submit(lambda: 7).result(10) == 7


def test_a_thread_without_work_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    end_threads()
    monkeypatch.setattr(threads, "IDLE", 0.001)
    for number in range(100):  # some of them when a thread is about to end
        assert Threads(1).submit(lambda: number).result(10) == number  # noqa: B023
        threading.Event().wait(0.001)
    eventually(lambda: not ours())
    assert not threads._idle


def test_a_thread_without_work_keeps_nothing_of_its_last_call() -> None:
    class Thing:
        pass

    thing = Thing()
    gone = weakref.ref(thing)
    done = Threads(1).submit(partial(id, thing))
    done.result(10)
    del done, thing
    eventually(lambda: gone() is None)


@pytest.fixture
def no_more(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    return lambda: monkeypatch.setattr(threading.Thread, "start", start)


def test_without_a_thread_the_call_is_refused(no_more: Callable[[], None]) -> None:
    end_threads()
    no_more()
    made: list[int] = []
    refusing = Threads(2)
    with pytest.raises(RuntimeError, match="start"):
        refusing.submit(lambda: made.append(1))
    assert not made
    assert refusing._busy == 0


def test_who_is_interrupted_keeps_no_thread_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    def wake(_: object) -> None:
        raise KeyboardInterrupt

    interrupted = Threads(1)
    with monkeypatch.context() as patch:
        patch.setattr(threads, "_wake", wake)
        with pytest.raises(KeyboardInterrupt):
            interrupted.submit(int)
    assert interrupted.submit(lambda: 7).result(10) == 7


def test_the_end_waits_for_a_call_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    end_threads()
    held = Held()
    call: Future[bool] = Threads(1).submit(held.call)
    held.await_begun(1)
    monkeypatch.setattr(threads, "ENDING", 0.01)
    threads._end()
    assert not call.done() and len(ours()) == 1
    threading.Timer(0.05, held.free.set).start()
    monkeypatch.setattr(threads, "ENDING", 10.0)
    end_threads()
    assert call.done()


def test_after_the_end_there_may_be_more() -> None:
    end_threads()
    assert Threads(1).submit(lambda: 7).result(10) == 7


@pytest.mark.anyio
async def test_without_threads_a_loop_waits_itself(cache: Cache, no_more: Callable[[], None]) -> None:
    end_threads()
    no_more()
    origin = Origin(ok(b"x" * 3_000_000, cache_control="max-age=60"))
    assert [await afetch(cache, origin) for _ in range(2)] == [b"x" * 3_000_000] * 2
    assert len(origin) == 1


@pytest.mark.anyio
async def test_a_call_that_fails_in_a_thread_is_made_once() -> None:
    calls: list[int] = []

    def call(number: int) -> None:
        calls.append(number)
        raise RuntimeError("its own")

    with pytest.raises(RuntimeError, match="its own"):
        await in_thread(call, 1)
    assert calls == [1]


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
async def test_a_call_in_a_thread_has_its_callers_context() -> None:
    var: ContextVar[int] = ContextVar("var")
    var.set(7)
    assert await in_thread(var.get) == 7


def test_successive_loops_share_their_threads() -> None:
    async def main() -> None:
        await asyncio.gather(*(in_thread(int) for _ in range(4)))

    end_threads()
    for _ in range(50):
        asyncio.run(main())
    assert len(ours()) <= 4


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
