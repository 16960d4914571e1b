"""What is broken off where nobody expects it: by a signal's handler, by a loop that is closed, by a fork."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.core.receiving import CHUNKS, AsyncSource, Kept, Pausing, Source, aread_all, attached, read_all
from tests.storage.helpers import eventually
from vllm_http_cache import loops
from vllm_http_cache.downloads import Broken, Download, Reader
from vllm_http_cache.flights import Flights, Seat
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


def test_what_a_thread_cannot_write_is_read_but_not_kept(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    download = kept.pulled(source := Pausing([b"one", b"two"]))
    writer: Any = download._writer
    writer.write = once(writer.write, before=False)
    writer.write(b"")
    owner = attached(download)
    download.wait(owner, Caller())
    assert eventually(lambda: "in time" in caplog.text)
    source.go_on.set()
    assert read_all(download, owner) == b"onetwo"
    assert kept.bodies == [] and kept.storage.open_writers == 0


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
    seat = flights.enter("k", ThreadBell())
    assert isinstance(seat, Seat)
    download = kept.pulled(source := Pausing([b"one", b"two"]))
    download._seat = seat
    reader = attached(download)
    download.wait(reader, Caller())
    download._stir()
    follower = flights.enter("k", ThreadBell())
    download.detach(reader)
    assert isinstance(getattr(follower, "outcome", None), Seat) and not source.closed
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
    assert kept.storage.open_writers == kept.storage.open_readers == 0 and not loops._running
