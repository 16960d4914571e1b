"""Event loops that end before what runs in them, and threads that they do without."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar

import anyio
import pytest
import trio

from tests.core.receiving import CHUNKS, AsyncSource, Kept, aread_all, attached, read_all
from tests.core.scripted import Origin, afetch, fetch, ok
from tests.core.test_threads import end_threads, ours
from vllm_http_cache import Cache, boarding, downloads, loops
from vllm_http_cache.abandoned import close_abandoned
from vllm_http_cache.downloads import Broken, Download, Reader
from vllm_http_cache.loops import TaskBell, ThreadBell, in_pool, in_thread, task_bell
from vllm_http_cache.wire import Caller


def test_what_a_closed_loop_was_receiving_lets_go_of_everything(kept: Kept) -> None:
    async def begin() -> Download:
        download = kept.pumped(AsyncSource(CHUNKS, held=True))
        reader = attached(download)
        await asyncio.sleep(0)
        download.detach(reader)
        return download

    def run_and_close() -> Download:
        loop = asyncio.new_event_loop()
        download = loop.run_until_complete(begin())
        loop.close()
        return download

    first, _ = run_and_close(), run_and_close()
    assert first._ended and kept.storage.open_writers == 1
    loops._end_lost()
    assert kept.storage.open_writers == kept.storage.open_readers == 0
    assert not [loop for loop in loops._running if loop.is_closed()]


@pytest.mark.anyio
async def test_without_threads_a_loop_waits_itself(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    end_threads()
    monkeypatch.setattr(threading.Thread, "start", start)
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


def test_a_loop_whose_tasks_have_ended_is_kept_by_nobody(kept: Kept) -> None:
    async def receive() -> bytes:
        download = kept.pumped(AsyncSource(CHUNKS))
        whole = await aread_all(download, attached(download))
        while asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.sleep(0)
        return whole

    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(receive()) == b"".join(CHUNKS)
    assert loop not in loops._running
    loop.close()


def test_a_pump_that_is_cancelled_before_it_begins_lets_go_of_everything(kept: Kept) -> None:
    """By whoever cancels all tasks of a loop."""

    async def main() -> None:
        download = kept.pumped(source := AsyncSource(CHUNKS))
        reader = attached(download)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        with pytest.raises(Broken, match="has ended"):
            async with asyncio.timeout(10):
                await aread_all(download, reader)
        download.detach(reader)
        assert source.closed

    asyncio.run(main())
    assert (kept.bodies, kept.storage.open_writers, kept.storage.open_readers) == ([], 0, 0)
    assert not loops._running


def test_a_pump_that_is_cancelled_before_it_begins_is_waited_for_by_who_waits_for_all(kept: Kept) -> None:
    """As asyncio.run does: what runs on after that finds the loop's generators being closed."""

    async def main() -> None:
        download = kept.pumped(source := AsyncSource(CHUNKS))
        pump = asyncio.all_tasks() - {asyncio.current_task()}
        for task in pump:
            task.cancel()
        await asyncio.gather(*pump, return_exceptions=True)
        assert source.closed and download._ended

    asyncio.run(main())


def test_a_loop_that_was_closed_on_a_pump_is_forgotten_in_silence(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    async def begin() -> None:
        attached(kept.pumped(AsyncSource(CHUNKS, held=True)))
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()
    loops._end_lost()
    ended = weakref.ref(loop)
    del loop
    gc.collect()
    assert ended() is None and not caplog.records


@pytest.mark.parametrize("in_another", [True, False])
def test_a_source_of_a_loop_that_was_closed_may_wait_while_it_ends(kept: Kept, in_another: bool) -> None:
    came_to: list[str] = []

    class Source(AsyncSource):
        async def read(self) -> bytes:
            try:
                with anyio.fail_after(60):
                    return await super().read()
            finally:
                await asyncio.sleep(0)
                came_to.append("its end")
                await asyncio.get_running_loop().create_future()  # nobody will set that

    async def begin() -> None:
        attached(kept.pumped(Source(CHUNKS, held=True)))
        await asyncio.sleep(0)

    async def another() -> None:
        async with asyncio.timeout(10):
            loops._end_lost()
            await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()
    if in_another:
        asyncio.run(another())
    else:
        loops._end_lost()
    assert came_to == ["its end"]
    assert kept.storage.open_writers == 0


def test_a_follower_of_a_closed_loop_is_told(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    async def begin() -> tuple[Download, Reader]:
        download = kept.pumped(AsyncSource(CHUNKS, held=True))
        attached(download)
        await asyncio.sleep(0)
        return download, attached(download)

    monkeypatch.setattr(downloads, "LOOK", 0.01)
    loop = asyncio.new_event_loop()
    download, follower = loop.run_until_complete(begin())
    loop.close()
    with pytest.raises(Broken, match="event loop"):
        read_all(download, follower, Caller(timeout=1.0))
    loops._end_lost()


def test_who_follows_a_leader_whose_loop_was_closed_before_its_answer_leads(cache: Cache) -> None:
    origin = Origin(ok(cache_control="max-age=60"))
    origin.held.clear()
    loop = asyncio.new_event_loop()

    async def begin() -> asyncio.Task[bytes]:
        task = asyncio.ensure_future(afetch(cache, origin))
        while not origin.arrived.is_set():
            await asyncio.sleep(0.001)
        return task

    task = loop.run_until_complete(begin())
    loop.close()
    origin.held.set()
    assert fetch(cache, origin) == b"body"
    assert len(origin) == 2
    with suppress(RuntimeError):
        task.get_coro().close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    assert len(cache.flights) == 0


def test_who_waits_for_a_leader_whose_loop_is_closed_leads(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boarding, "LOOK", 0.01)
    origin = Origin(ok(cache_control="max-age=60"))
    origin.held.clear()
    loop = asyncio.new_event_loop()
    kept: list[asyncio.Task[bytes]] = []
    got: list[bytes] = []
    follower = threading.Thread(target=lambda: got.append(fetch(cache, origin)))

    async def begin() -> None:
        kept.append(asyncio.ensure_future(afetch(cache, origin)))
        while not origin.arrived.is_set():
            await asyncio.sleep(0.001)
        follower.start()
        while not any(flight.queue for flight in cache.flights._flights.values()):
            await asyncio.sleep(0.001)

    loop.run_until_complete(begin())
    loop.close()
    origin.held.set()
    follower.join(10)
    assert got == [b"body"]
    kept[0]._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_collector_takes_no_lock(cache: Cache) -> None:
    """What it finds of a loop that was closed may be found inside any lock."""
    origin = Origin(ok(cache_control="max-age=60"))
    origin.held.clear()
    loop = asyncio.new_event_loop()

    async def begin() -> None:
        task = asyncio.ensure_future(afetch(cache, origin))
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        while not origin.arrived.is_set():
            await asyncio.sleep(0.001)

    loop.run_until_complete(begin())
    loop.close()
    del loop

    def collect() -> None:
        with cache.flights._lock, cache.forgotten._lock, cache._lock:
            gc.collect()

    collector = threading.Thread(target=collect, daemon=True)
    collector.start()
    collector.join(10)
    assert not collector.is_alive()
    close_abandoned()
    assert len(cache.flights) == 0


def test_a_bell_says_whether_it_can_be_heard() -> None:
    async def made() -> TaskBell:
        return task_bell()

    loop = asyncio.new_event_loop()
    heard = loop.run_until_complete(made())
    assert heard.ring() and not heard.is_lost()
    loop.close()
    for deaf in (heard, trio.run(made)):
        assert not deaf.ring() and deaf.is_lost()
    assert ThreadBell().ring() and not ThreadBell().is_lost()
