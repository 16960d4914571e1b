"""Event loops that end before what runs in them."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from contextlib import suppress

import anyio
import pytest
import trio

from tests.core.receiving import CHUNKS, AsyncSource, Kept, aread_all, attached, read_all
from tests.core.scripted import Origin, afetch, fetch, get, ok
from vllm_http_cache import Cache, loops, patience
from vllm_http_cache.abandoned import close_abandoned
from vllm_http_cache.downloads import Broken, Download, Reader
from vllm_http_cache.loops import TaskBell, ThreadBell, task_bell
from vllm_http_cache.rfc9111.message import Fields, Request, Response
from vllm_http_cache.wire import Caller, Reply


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


class Endless(AsyncSource):
    """Gives all there is, but never the end."""

    async def read(self) -> bytes:
        if chunk := await super().read():
            return chunk
        await anyio.sleep_forever()
        raise AssertionError


@pytest.mark.anyio
@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_that_is_all_here_is_kept_when_its_pump_is_cancelled(kept: Kept, announced: bool) -> None:
    whole = b"".join(CHUNKS)
    download = kept.pumped(Endless(CHUNKS), len(whole) if announced else None)
    while download._tail.end < len(whole):
        await anyio.sleep(0.001)
    download._task.cancel()
    while not download._ended:
        await anyio.sleep(0.001)
    assert kept.bodies == [whole] * announced


def test_a_body_that_is_all_here_is_kept_when_its_cache_is_closed(cache: Cache) -> None:
    """Though its loop is not run any more."""
    fields = {"Content-Length": "4", "Cache-Control": "max-age=60"}

    async def send(_: Request) -> Reply:
        return Reply(Response(200, Fields(fields.items())), Endless([b"body"]))

    async def begin() -> None:
        fetched = await cache.afetch(get(), send)
        assert await fetched.body.read() == b"body"

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    cache.close()
    assert [stat.stored.uri for stat in cache.scan()] == [get().uri]
    loop.close()
    loops._end_lost()


def test_a_follower_of_a_closed_loop_is_told(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    async def begin() -> tuple[Download, Reader]:
        download = kept.pumped(AsyncSource(CHUNKS, held=True))
        attached(download)
        await asyncio.sleep(0)
        return download, attached(download)

    monkeypatch.setattr(patience, "LOOK", 0.01)
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
    monkeypatch.setattr(patience, "LOOK", 0.01)
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
