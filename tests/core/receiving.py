"""What the tests of downloads share: sources, what a download is made of, and reading all of it."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import anyio
import anyio.lowlevel

from tests.core.memory import MemoryStorage
from vllm_http_cache.coding import CodingCheck
from vllm_http_cache.downloads import Download, Reader
from vllm_http_cache.rfc9111.message import BodyRef
from vllm_http_cache.transfers import PulledDownload, PumpedDownload, Ticker
from vllm_http_cache.wire import Caller

CHUNKS = [bytes([n]) * 100_000 for n in range(10)]


class Source:
    """Gives the scripted chunks; an exception among them is raised."""

    def __init__(self, chunks: Iterable[bytes | Exception]) -> None:
        self.chunks = list(chunks)
        self.given = 0
        self.closed = False

    def read(self) -> bytes:
        if not self.chunks:
            return b""
        chunk = self.chunks.pop(0)
        if isinstance(chunk, Exception):
            raise chunk
        self.given += 1
        return chunk

    def close(self) -> None:
        self.closed = True


class Pausing(Source):
    """Gives its first chunk at once, and the rest when it may."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        super().__init__(chunks)
        self.go_on = threading.Event()

    def read(self) -> bytes:
        if self.given:
            assert self.go_on.wait(10)
        return super().read()


class AsyncSource:
    """The same, each chunk once its turn is allowed."""

    def __init__(self, chunks: Iterable[bytes | Exception], held: bool = False) -> None:
        self._source = Source(chunks)
        self.gate = anyio.Event()
        if not held:
            self.gate.set()

    @property
    def closed(self) -> bool:
        return self._source.closed

    @property
    def given(self) -> int:
        return self._source.given

    async def read(self) -> bytes:
        await self.gate.wait()
        await anyio.lowlevel.checkpoint()
        return self._source.read()

    async def aclose(self) -> None:
        self._source.close()


class Kept:
    """Collects what a download puts on record."""

    def __init__(self) -> None:
        self.storage = MemoryStorage()
        self.refs: list[BodyRef] = []
        self.ticker = Ticker()
        self.shown = 0

    def pulled(
        self, source: Source, length: int | None = None, coding: CodingCheck | None = None, **more: Any
    ) -> PulledDownload:
        return PulledDownload(self.ticker, source, *self._rest(length, coding), **more)

    def pumped(self, source: AsyncSource, length: int | None = None) -> PumpedDownload:
        return PumpedDownload(source, *self._rest(length, None))

    def _rest(self, length: int | None, coding: CodingCheck | None) -> tuple[object, ...]:
        writer = self.storage.create_body("k", length)
        return writer, length, coding, self.refs.append, self._show, None

    def _show(self) -> None:
        self.shown += 1

    @property
    def bodies(self) -> list[bytes]:
        return [self.storage.bodies[ref.name] for ref in self.refs]


def attached(download: Download) -> Reader:
    reader = download.attach()
    assert reader is not None
    return reader


def read_all(download: Download, reader: Reader, caller: Caller = Caller()) -> bytes:
    parts = []
    for _ in range(10_000):
        data = download.take(reader)
        if data is None:
            download.wait(reader, caller)
        elif data:
            parts.append(data)
        else:
            return b"".join(parts)
    raise AssertionError("endless")


async def aread_all(download: Download, reader: Reader) -> bytes:
    parts = []
    for _ in range(10_000):
        data = download.take(reader)
        if data is None:
            await download.await_more(reader, Caller())
        elif data:
            parts.append(data)
        else:
            return b"".join(parts)
    raise AssertionError("endless")
