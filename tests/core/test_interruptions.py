"""What is broken off where nobody expects it: by a signal's handler, by a loop that is closed, by a fork."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.core.receiving import CHUNKS, AsyncSource, Kept, Pausing, Source, aread_all, attached, read_all
from tests.storage.helpers import eventually
from vllm_http_cache.downloads import Broken, Download, Reader
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
    parts = []
    with pytest.raises(Broken):
        for _ in range(10_000):
            if (data := download.take(reader)) is None:
                download.wait(reader, Caller())
            else:
                parts.append(data)
    return b"".join(parts)


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
