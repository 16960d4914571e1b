"""What is broken off where nobody expects it: by a signal's handler, by a loop that is closed, by a fork."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import anyio.to_thread
import pytest
import trio

from tests.core.memory import MemoryStorage
from tests.core.receiving import CHUNKS, AsyncSource, Kept, Pausing, Source, aread_all, attached, read_all
from tests.core.scripted import Body, Clock, Origin, afetch, fetch, get, ok, whole
from tests.storage.helpers import eventually
from vllm_http_cache import Cache, boarding, downloads, loops
from vllm_http_cache.abandoned import close_abandoned
from vllm_http_cache.downloads import Broken, Download, Reader
from vllm_http_cache.flights import Flights, Seat, Ticket
from vllm_http_cache.loops import TaskBell, ThreadBell, in_thread, task_bell
from vllm_http_cache.transfers import PulledDownload
from vllm_http_cache.wire import Caller

WHOLE = b"".join(CHUNKS)


class TimeLimit(Exception):
    """What a signal's handler raises."""


def once(call: Callable[..., Any], *, before: bool) -> Callable[..., Any]:
    """*call*, but the second time a handler raises just before or just after it."""
    calls = 0

    def interrupted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2 and before:
            raise TimeLimit
        done = call(*arguments)
        if calls == 2:
            raise TimeLimit
        return done

    return interrupted


def read_some(download: Download, reader: Reader) -> bytes:
    """What there is before it breaks."""
    parts: list[bytes] = []
    while True:
        try:
            data = download.take(reader)
        except Broken:
            return b"".join(parts)
        if data is None:
            download.wait(reader, Caller())
        else:
            assert data, "no error, but an end"
            parts.append(data)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("where", ["_receive", "_flush", "_write_tail", "_store"])
def test_an_interrupted_reader_leaves_nothing_wrong(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, where: str, before: bool
) -> None:
    now = 0.0

    def clock() -> float:  # so that each chunk is written alone
        nonlocal now
        now += 1
        return now

    download = kept.pulled(source := Source(CHUNKS), clock=clock)
    monkeypatch.setattr(PulledDownload, "_go_on_alone", lambda download: None)
    monkeypatch.setattr(download, where, once(getattr(download, where), before=before))
    owner, follower = attached(download), attached(download)
    with pytest.raises(TimeLimit):
        read_all(download, owner)
    assert WHOLE.startswith(read_some(download, follower))
    assert source.closed and kept.bodies == [] and kept.storage.open_writers == 0


@pytest.mark.errors_are_logged
def test_what_a_thread_cannot_write_is_read_but_not_kept(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    download = kept.pulled(source := Pausing([b"one", b"two"]))
    writer: Any = download._writer
    writer.write = once(writer.write, before=False)
    writer.write(b"")
    owner = attached(download)
    download.landed()
    download.wait(owner, Caller())
    assert eventually(lambda: "in time" in caplog.text)
    source.go_on.set()
    assert read_all(download, owner) == b"onetwo"
    assert kept.bodies == [] and kept.storage.open_writers == 0


@pytest.mark.errors_are_logged
@pytest.mark.anyio
async def test_what_a_tasks_thread_cannot_write_is_read_but_not_kept(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    chunks = [bytes([n]) * 100_000 for n in range(50)]
    download = kept.pumped(AsyncSource(chunks))
    writer: Any = download._writer
    writer.write = once(writer.write, before=False)
    writer.write(b"")
    assert await aread_all(download, attached(download)) == b"".join(chunks)
    assert "could not be written" in caplog.text
    assert kept.bodies == [] and kept.storage.open_writers == 0


def test_a_deserted_download_gives_up_its_seat_while_its_source_stalls(kept: Kept) -> None:
    flights = Flights()
    leader, follower = Ticket(ThreadBell()), Ticket(ThreadBell())
    flights.enter("k", leader)
    seat = leader.outcome
    assert isinstance(seat, Seat)
    download = kept.pulled(source := Pausing([b"one", b"two"]))
    download._seat = seat
    reader = attached(download)
    download.wait(reader, Caller())
    download._stir()
    flights.enter("k", follower)
    download.detach(reader)
    assert isinstance(follower.outcome, Seat) and not source.closed
    source.go_on.set()
    assert eventually(lambda: source.closed and not kept.storage.open_writers)
    assert len(flights) == 1, "the follower's"


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
    async def run_sync(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(anyio.to_thread, "run_sync", run_sync)
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


def test_a_loop_whose_tasks_have_ended_is_kept_by_nobody(kept: Kept) -> None:
    async def receive() -> bytes:
        download = kept.pumped(AsyncSource(CHUNKS))
        whole = await aread_all(download, attached(download))
        while asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.sleep(0)
        return whole

    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(receive()) == WHOLE
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


@pytest.mark.parametrize("control", ["no-store", "max-age=60"])
def test_an_interrupted_caller_leaves_nothing_under_way(cache: Cache, storage: MemoryStorage, control: str) -> None:
    """Wherever a signal's handler has raised: no flight without its leader, no body without its reader."""
    origin = Origin(ok(cache_control=control))
    for point in range(1, 2000):
        if not interrupted(point, lambda: fetch(cache, origin)):
            break
        gc.collect(0)
        close_abandoned()
        assert len(cache.flights) == 0, f"left behind by an interruption at point {point}"
        assert all(download._ended for download in cache._downloads), f"left under way at point {point}"
        storage.records.clear()
        cache.flights.reset()  # and forget that it cannot be shared
    assert 100 < point < 1999


def interrupted(point: int, call: Callable[[], object]) -> bool:
    """Raise once *call* has come back from the cache's *point*-th call; whether it has come so far."""
    count = 0

    def interrupt(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        code = frame.f_code  # from __del__ nothing is raised
        if event in ("return", "c_return") and "vllm_http_cache" in code.co_filename and code.co_name != "__del__":
            count += 1
            if count == point:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


class Stuck(Source):
    def close(self) -> None:
        raise OSError("not connected")


class AsyncStuck(AsyncSource):
    async def aclose(self) -> None:
        raise OSError("not connected")


@pytest.mark.anyio
async def test_what_closing_a_source_raises_is_nobodys(kept: Kept) -> None:
    pulled = kept.pulled(Stuck(CHUNKS))
    pulled.detach(attached(pulled))
    another = kept.pulled(Stuck(CHUNKS))
    assert read_all(another, attached(another)) == WHOLE
    pumped = kept.pumped(AsyncStuck(CHUNKS))
    assert await aread_all(pumped, attached(pumped)) == WHOLE
    assert (pulled._ended, len(kept.bodies), kept.storage.open_writers) == (True, 2, 0)


@pytest.mark.anyio
async def test_a_validation_whose_source_cannot_be_closed_is_one(
    cache: Cache, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = Origin(ok(cache_control="max-age=1", etag='"1"'))
    fetch(cache, origin)
    origin.answer = lambda _: (304, {"ETag": '"1"', "Cache-Control": "max-age=1"}, [])

    def stuck(self: Body) -> None:
        raise OSError("not connected")

    monkeypatch.setattr(Body, "close", stuck)
    clock.now += 10
    assert fetch(cache, origin) == b"body"
    clock.now += 10
    assert await afetch(cache, origin) == b"body"


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


def test_a_download_that_cannot_be_stopped_is_not_stopped_again(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    download = kept.pulled(Source(CHUNKS))
    reader = attached(download)

    def stuck() -> None:
        raise OSError("scripted")

    monkeypatch.setattr(download._writer, "abort", stuck)
    with pytest.raises(OSError, match="scripted"):
        download.detach(reader)


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


class Begun:
    """A download under way."""

    disowned = False

    def disown(self) -> None:
        self.disowned = True

    def forked(self) -> None:
        pass


def test_downloads_may_begin_while_a_key_is_forgotten(cache: Cache) -> None:
    begun = [Begun() for _ in range(10)]

    def begin(frame: Any, event: str, argument: Any) -> Any:
        """As another thread would, between any two lines of a dictionary's."""
        if frame.f_code.co_filename == weakref.__file__ and len(begun) < 100:
            begun.append(Begun())
            cache.note_download("another key", begun[-1], 0)  # type: ignore[arg-type]
        return begin

    for download in begun:
        cache.note_download("k", download, 0)  # type: ignore[arg-type]
    before = sys.gettrace()
    sys.settrace(begin)
    try:
        cache.forget_key("k")
    finally:
        sys.settrace(before)
    assert [download.disowned for download in begun] == [n < 10 for n in range(len(begun))]
    assert len(begun) > 10


@pytest.mark.parametrize("lock", ["_lock", "_writing", "_keeping"])
def test_a_fork_while_a_lock_is_held_does_not_hold_up_the_child(cache: Cache, lock: str) -> None:
    origin = Origin((200, {"Cache-Control": "max-age=60"}, [b"x"] * 10))
    fetched = cache.fetch(get(), origin.send)
    fetched.body.read()
    (download,) = cache._downloads
    with ThreadPoolExecutor(1) as pool:
        held: threading.Lock = getattr(download, lock)
        pool.submit(held.acquire).result()
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            fetched.refuse()
            fetched.body.close()
            os._exit(0 if fetch(cache, origin) == b"x" * 10 and not origin.bodies[0].closed else 1)
        held.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert whole(fetched) == b"x" * 9
