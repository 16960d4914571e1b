"""What is broken off where nobody expects it: by a signal's handler, by a disk, by a fork."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.core.memory import MemoryStorage
from tests.core.receiving import CHUNKS, AsyncSource, Kept, Pausing, Source, aread_all, attached, read_all
from tests.core.scripted import Body, Clock, Origin, afetch, fetch, get, ok, whole
from tests.storage.helpers import eventually
from vllm_http_cache import Cache
from vllm_http_cache.abandoned import close_abandoned
from vllm_http_cache.downloads import Broken, Download, Reader
from vllm_http_cache.flights import Flights, Seat, Ticket
from vllm_http_cache.loops import ThreadBell
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
        assert all(download._ended for download in cache.forgotten._downloads), f"left under way at point {point}"
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


def test_a_download_that_cannot_be_stopped_is_not_stopped_again(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    download = kept.pulled(Source(CHUNKS))
    reader = attached(download)

    def stuck() -> None:
        raise OSError("scripted")

    monkeypatch.setattr(download._writer, "abort", stuck)
    with pytest.raises(OSError, match="scripted"):
        download.detach(reader)


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
            cache.forgotten.begun("another key", begun[-1], 0)  # type: ignore[arg-type]
        return begin

    for download in begun:
        cache.forgotten.begun("k", download, 0)  # type: ignore[arg-type]
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
    (download,) = cache.forgotten._downloads
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
