"""One body for many readers: nobody waits for a slow one, nothing half is kept, and all of it ends with the last."""

from __future__ import annotations

import gzip
import threading

import anyio
import pytest

from tests.core.memory import MemoryWriter
from tests.core.receiving import CHUNKS, AsyncSource, Kept, Pausing, Source, aread_all, attached, read_all
from tests.storage.helpers import eventually
from vllm_http_cache.coding import coding_check
from vllm_http_cache.downloads import Broken, Download, Reader
from vllm_http_cache.rfc9111.message import Fields
from vllm_http_cache.transfers import PumpedDownload
from vllm_http_cache.wire import Caller


def test_a_reader_gets_each_chunk_as_it_comes(kept: Kept) -> None:
    download = kept.pulled(Source([b"one", b"two"]))
    reader = attached(download)
    assert download.take(reader) is None
    download.wait(reader, Caller())
    assert download.take(reader) == b"one"
    assert download.take(reader) is None


def test_the_body_is_kept_when_whole(kept: Kept) -> None:
    download = kept.pulled(source := Source(CHUNKS), 1_000_000)
    assert read_all(download, attached(download)) == b"".join(CHUNKS)
    assert kept.bodies == [b"".join(CHUNKS)]
    assert source.closed


def test_a_body_shorter_than_announced_is_an_error_and_not_kept(kept: Kept) -> None:
    download = kept.pulled(Source([b"half"]), 8)
    with pytest.raises(Broken, match="4 octets came where 8"):
        read_all(download, attached(download))
    assert kept.bodies == [] and kept.storage.open_writers == 0


def test_an_error_of_the_source_reaches_every_reader_and_nothing_is_kept(kept: Kept) -> None:
    error = OSError("reset")
    download = kept.pulled(source := Source([b"half", error]))
    readers = [attached(download), attached(download)]
    for reader in readers:
        with pytest.raises(Broken) as caught:
            read_all(download, reader)
        assert caught.value.error is error
    assert kept.bodies == [] and kept.storage.open_writers == 0 and source.closed


@pytest.mark.parametrize("error", [OSError(), TimeoutError(), TimeoutError("too long")])
def test_an_error_of_the_source_says_what_it_was(kept: Kept, error: OSError) -> None:
    download = kept.pulled(Source([error]), time_outs=(TimeoutError,))
    with pytest.raises(Broken) as caught:
        read_all(download, attached(download))
    assert str(caught.value) == (str(error) or type(error).__name__)
    assert caught.value.timed_out is isinstance(error, TimeoutError)


GZIP = Fields([("Content-Encoding", "gzip")])


def test_an_unfinished_content_coding_reaches_the_reader_and_is_not_kept(kept: Kept) -> None:
    coded = gzip.compress(b"hello" * 1000)
    for data, bodies in ((coded[:-8], []), (coded, [coded])):
        kept.refs.clear()
        download = kept.pulled(Source([data]), len(data), coding_check(GZIP))
        assert read_all(download, attached(download)) == data
        assert kept.bodies == bodies


def test_readers_of_a_synchronous_source_pull_for_each_other(kept: Kept) -> None:
    source = Source(CHUNKS)
    download = kept.pulled(source)
    readers = [attached(download) for _ in range(8)]
    got: list[bytes] = []
    threads = [threading.Thread(target=lambda r=r: got.append(read_all(download, r))) for r in readers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert got == [b"".join(CHUNKS)] * 8
    assert source.given == len(CHUNKS)


def test_a_slow_reader_holds_nobody_back(kept: Kept) -> None:
    download = kept.pulled(Source(CHUNKS))
    slow, fast = attached(download), attached(download)
    assert read_all(download, fast) == b"".join(CHUNKS)
    assert read_all(download, slow) == b"".join(CHUNKS)


def test_a_reader_who_lags_behind_small_chunks_takes_them_together(kept: Kept) -> None:
    download = kept.pulled(Source([bytes([n % 256]) for n in range(1000)]), clock=lambda: 0.0)
    fast, slow = attached(download), attached(download)
    assert len(first := take_ready(download, fast, 100)) == 100
    takes = take_ready(download, slow, 100)
    assert b"".join(takes) == b"".join(first) and len(takes) == 1
    assert read_all(download, slow) == b"".join(bytes([n % 256]) for n in range(100, 1000))


def take_ready(download: Download, reader: Reader, octets: int) -> list[bytes]:
    """So many octets, in the pieces that are given."""
    pieces: list[bytes] = []
    while sum(map(len, pieces)) < octets:
        piece = download.take(reader)
        if piece is None:
            download.wait(reader, Caller())
        else:
            pieces.append(piece)
    return pieces


def test_memory_holds_no_more_than_the_tail_and_a_chunk(kept: Kept) -> None:
    download = kept.pulled(Source(CHUNKS))
    slow, fast = attached(download), attached(download)
    for _ in range(len(CHUNKS)):
        download.wait(fast, Caller())
        while download.take(fast):
            pass
        assert len(download._tail) < Download.longest_tail + len(CHUNKS[0])
    download.detach(slow)


@pytest.mark.parametrize("first", [10, Download.longest_tail + 1])
def test_what_pauses_is_shown_to_other_processes(kept: Kept, first: int) -> None:
    source = Pausing([b"x" * first, b"rest"])
    download = kept.pulled(source)
    reader = attached(download)
    download.wait(reader, Caller())
    download.landed()
    assert eventually(lambda: kept.shown)
    assert not download._tail
    source.go_on.set()
    assert read_all(download, reader) == b"x" * first + b"rest"


def test_what_has_been_disowned_is_not_shown(kept: Kept) -> None:
    now = 0.0
    download = kept.pulled(Source([b"one", b"two"]), clock=lambda: now)
    reader = attached(download)
    download.wait(reader, Caller())
    download.disown()
    now = 10.0
    download._flush()
    assert kept.shown == 0
    read_all(download, reader)
    assert kept.refs == []


@pytest.mark.errors_are_logged
def test_one_that_cannot_be_written_does_not_keep_others_from_it(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    failing, sound = (kept.pulled(Pausing([b"first", b"rest"])) for _ in range(2))
    failing._publish = lambda: 1 / 0  # type: ignore[assignment]
    for download in (failing, sound):
        reader = attached(download)
        download.landed()
        download.wait(reader, Caller())
    assert eventually(lambda: kept.shown == 1 and "in time" in caplog.text)
    for download in (failing, sound):
        download._source.go_on.set()  # type: ignore[attr-defined]
        read_all(download, attached(download))


def test_what_is_quickly_whole_is_not(kept: Kept) -> None:
    download = kept.pulled(Source([b"x" * (Download.longest_tail + 1), b"rest"]), clock=lambda: 0.0)
    read_all(download, attached(download))
    assert (len(kept.refs), kept.shown) == (1, 0)


def test_when_the_last_reader_leaves_the_source_is_closed_and_nothing_kept(kept: Kept) -> None:
    download = kept.pulled(source := Source(CHUNKS))
    one, other = attached(download), attached(download)
    download.wait(one, Caller())
    download.detach(one)
    assert not source.closed
    download.detach(other)
    assert source.closed and kept.bodies == []
    assert kept.storage.open_writers == kept.storage.open_readers == 0
    assert download.attach() is None


def test_a_reader_may_leave_after_the_end_and_nothing_stays_open(kept: Kept) -> None:
    download = kept.pulled(Source([b"x"]))
    reader = attached(download)
    read_all(download, reader)
    download.detach(reader)
    assert kept.storage.open_writers == kept.storage.open_readers == 0


def test_without_room_the_first_reader_gets_all_of_it_and_nothing_is_kept(kept: Kept) -> None:
    kept.storage.room = 400_000
    download = kept.pulled(Source(CHUNKS))
    first, second = attached(download), attached(download)
    assert read_all(download, first) == b"".join(CHUNKS)
    with pytest.raises(Broken, match="no room"):
        read_all(download, second)
    assert kept.bodies == []


def test_a_waiter_keeps_its_own_time_out(kept: Kept) -> None:
    entered, release = threading.Event(), threading.Event()

    class Stalled(Source):
        def read(self) -> bytes:
            entered.set()
            release.wait(10)
            return b""

    download = kept.pulled(Stalled([]))
    leader, follower = attached(download), attached(download)
    thread = threading.Thread(target=read_all, args=(download, leader))
    thread.start()
    assert entered.wait(10)
    with pytest.raises(TimeoutError):
        download.wait(follower, Caller(timeout=0.01))
    release.set()
    thread.join(10)
    assert not thread.is_alive()


def test_whoever_reads_when_the_last_one_leaves_closes_the_source(kept: Kept) -> None:
    entered, release = threading.Event(), threading.Event()

    class Stalled(Source):
        def read(self) -> bytes:
            entered.set()
            release.wait(10)
            return b"late"

    download = kept.pulled(source := Stalled([]))
    reader = attached(download)
    thread = threading.Thread(target=download.wait, args=(reader, Caller()))
    thread.start()
    assert entered.wait(10)
    download.detach(reader)
    assert not source.closed, "it is being read"
    release.set()
    thread.join(10)
    assert source.closed and kept.bodies == []
    assert kept.storage.open_writers == kept.storage.open_readers == 0


@pytest.mark.parametrize("owner_stays", [True, False])
def test_without_threads_a_body_goes_at_its_owners_pace(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, *, owner_stays: bool
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    download = kept.pulled(source := Source(CHUNKS))
    owner, follower = attached(download), attached(download)
    if owner_stays:
        with pytest.raises(TimeoutError):
            download.wait(follower, Caller(timeout=0.01))
        assert read_all(download, owner) == read_all(download, follower) == b"".join(CHUNKS)
    else:
        download.detach(owner)
        with pytest.raises(Broken, match="no thread"):
            read_all(download, follower)
        assert source.closed


@pytest.mark.parametrize("octets", [b"", b"x" * 100_000])
def test_what_is_all_here_is_kept_though_nobody_reads_to_the_end(kept: Kept, octets: bytes) -> None:
    download = kept.pulled(source := Source([octets] if octets else []), len(octets))
    reader = attached(download)
    if octets:
        download.wait(reader, Caller())
    download.detach(reader)
    assert kept.bodies == [octets] and source.closed
    assert kept.storage.open_writers == kept.storage.open_readers == 0


@pytest.mark.anyio
async def test_a_content_without_octets_is_kept_though_nobody_reads_it(kept: Kept) -> None:
    download = kept.pumped(AsyncSource([]), 0)
    download.detach(attached(download))
    with anyio.fail_after(10):
        while not kept.refs:
            await anyio.sleep(0.001)
    assert kept.bodies == [b""]


@pytest.mark.anyio
async def test_a_pump_receives_without_its_readers(kept: Kept) -> None:
    download = kept.pumped(AsyncSource(CHUNKS), 1_000_000)
    first, second = attached(download), attached(download)
    download.detach(first)
    assert await aread_all(download, second) == b"".join(CHUNKS)
    assert kept.bodies == [b"".join(CHUNKS)]


@pytest.mark.anyio
async def test_a_pump_stops_when_nobody_reads(kept: Kept) -> None:
    source = AsyncSource(CHUNKS, held=True)
    download = kept.pumped(source)
    reader = attached(download)
    await anyio.lowlevel.checkpoint()
    download.detach(reader)
    with anyio.fail_after(10):
        while not source.closed or kept.storage.open_writers:
            await anyio.sleep(0.001)
    assert kept.bodies == []


@pytest.mark.anyio
async def test_a_pump_without_room_goes_at_its_readers_pace(kept: Kept) -> None:
    kept.storage.room = 0
    chunks = [bytes([n]) * 100_000 for n in range(50)]
    source = AsyncSource(chunks)
    download = kept.pumped(source)
    reader = attached(download)
    await download.await_more(reader, Caller())
    for _ in range(200):
        await anyio.sleep(0)
    assert source.given <= 2 * PumpedDownload.longest_tail // 100_000 + 2
    with anyio.fail_after(10):
        assert await aread_all(download, reader) == b"".join(chunks)


@pytest.mark.anyio
async def test_a_pump_without_room_does_not_outlive_its_reader(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even when all octets have come, and only their end has not."""
    source = AsyncSource([bytes(PumpedDownload.longest_tail)] * 2)
    download = kept.pumped(source, 2 * PumpedDownload.longest_tail)
    reader, writer, all_here = attached(download), download._writer, threading.Event()
    assert isinstance(writer, MemoryWriter)
    monkeypatch.setattr(writer, "write", lambda data: all_here.wait(10) and False)
    with anyio.fail_after(10):
        while len(download._tail) < 2 * PumpedDownload.longest_tail:
            await anyio.sleep(0.001)
        all_here.set()
        while download._writer is not None:
            await anyio.sleep(0.001)
        download.detach(reader)
        while not (source.closed and kept.storage.open_readers == 0):
            await anyio.sleep(0.001)


@pytest.mark.anyio
async def test_a_thread_follows_what_a_task_receives(kept: Kept) -> None:
    source = AsyncSource(CHUNKS, held=True)
    download = kept.pumped(source)
    leader, follower = attached(download), attached(download)
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(read_all(download, follower)))
    thread.start()
    source.gate.set()
    assert await aread_all(download, leader) == b"".join(CHUNKS)
    await anyio.to_thread.run_sync(thread.join, 10)
    assert got == [b"".join(CHUNKS)]


@pytest.mark.anyio
async def test_a_task_follows_what_a_thread_pulls(kept: Kept) -> None:
    download = kept.pulled(Source(CHUNKS))
    follower = attached(download)
    assert await aread_all(download, follower) == b"".join(CHUNKS)
    assert kept.bodies == [b"".join(CHUNKS)]


@pytest.mark.anyio
async def test_an_error_of_an_asynchronous_source_is_its_readers(kept: Kept) -> None:
    download = kept.pumped(AsyncSource([b"half", OSError("reset")]))
    with pytest.raises(Broken, match="reset"):
        await aread_all(download, attached(download))
    assert kept.bodies == []
