"""Our storages under hishel's transports."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from dataclasses import replace
from typing import cast
from uuid import UUID

import anyio
from hishel import AsyncBaseStorage, BaseStorage, Entry, Headers, Request, Response

from ...loops import in_thread
from ..protocol import BodyDamaged, BodyReader, Storage
from .entries import Arriving, Entries, streaming

__all__ = ["as_hishel", "as_hishel_async"]

CHUNK = 256 * 1024  # octets read at once; octets that an asynchronous caller writes at once


def as_hishel(
    storage: Storage,
    *,
    default_ttl: float | None = None,
    default_tti: float | None = None,
    max_stream_size: int | None = None,
    clock: Callable[[], float] = time.time,
) -> BaseStorage:
    """*storage*, with its bound, its checks and its recency, under hishel's synchronous transports and adapters.

    hishel's contract holds: entries of several variants, ``ttl`` and ``tti``, removal while an entry is being written,
    streams that save as they are read, and give all of a body or raise (:class:`~.protocol.BodyUnreadable`).

    What is lost, or different from hishel's own storages:

    - The *storage*'s ``ttl`` holds besides hishel's. A validation renews the former and, as hishel wants it, not the
      latter.
    - Of a request, only the fields that Vary names are kept, and their values only where they cannot be credentials:
      what varies by another field is validated for each request that has that field.
    - Not kept at all: what has a user name or password in its URL, what is not as long as its Content-Length, and of
      one key more than 16 entries.
    - An entry that has expired takes up room until it is looked for, evicted, or past the *storage*'s ``ttl``.
    - hishel downloads once for each request that misses, also when they come at once.

    :param default_ttl: seconds after its creation when an entry expires, unless hishel says otherwise.
    :param default_tti: seconds after it was last returned when an entry expires, unless hishel says otherwise.
    :param max_stream_size: octets of the largest body that is kept.
    :param clock: seconds since the epoch.
    :returns: a storage for any number of transports. Closing it, or as hishel has it one of them, closes *storage*.
    """
    return _SyncAdapter(Entries(storage, max_stream_size, clock), default_ttl, default_tti)


def as_hishel_async(
    storage: Storage,
    *,
    default_ttl: float | None = None,
    default_tti: float | None = None,
    max_stream_size: int | None = None,
    clock: Callable[[], float] = time.time,
) -> AsyncBaseStorage:
    """:func:`as_hishel` for hishel's asynchronous transports, on asyncio and trio.

    What *storage* has at hand is given at once, all else is done in threads. Of each body that arrives, up to 256 KiB
    wait in memory.
    """
    return _AsyncAdapter(Entries(storage, max_stream_size, clock), default_ttl, default_tti)


class _SyncAdapter(BaseStorage):
    def __init__(self, entries: Entries, default_ttl: float | None, default_tti: float | None) -> None:
        super().__init__(default_ttl=default_ttl, default_tti=default_tti, max_stream_size=entries.largest)
        self._entries = entries

    def create_entry(
        self, request: Request, response: Response, key: str, *, ttl: float | None = None, tti: float | None = None
    ) -> Entry:
        arriving = self._entries.arriving(request, response, key, *self._limits(ttl, tti, self._entries.clock()))
        body = cast("Iterable[bytes]", response.stream or ())
        return Entry(arriving.id, request, replace(response, stream=self._save(body, arriving)))

    def _save(self, body: Iterable[bytes], arriving: Arriving) -> Iterator[bytes]:
        arriving.begin()
        try:
            for chunk in body:
                arriving.write(chunk)
                yield chunk
            arriving.commit()
        finally:
            arriving.abort()

    def get_entries(self, key: str) -> list[Entry]:
        found = self._entries.find(key)
        return [streaming(entry, self._deliver(entry.id, reader)) for entry, reader in found]

    def _deliver(self, id_: UUID, reader: BodyReader) -> Iterator[bytes]:
        offset = 0
        try:
            while data := reader.read(offset, CHUNK):
                offset += len(data)
                yield data
        except BodyDamaged:
            self.remove_entry(id_)
            raise
        finally:
            reader.close()

    def update_headers(self, id: UUID, headers: Headers) -> None:  # noqa: A002
        self._entries.freshen(id, headers)

    def remove_entry(self, id: UUID) -> None:  # noqa: A002
        self._entries.edit(id, lambda _: None)

    def close(self) -> None:
        self._entries.storage.close()


class _AsyncAdapter(AsyncBaseStorage):
    def __init__(self, entries: Entries, default_ttl: float | None, default_tti: float | None) -> None:
        super().__init__(default_ttl=default_ttl, default_tti=default_tti, max_stream_size=entries.largest)
        self._entries = entries

    async def create_entry(
        self, request: Request, response: Response, key: str, *, ttl: float | None = None, tti: float | None = None
    ) -> Entry:
        arriving = self._entries.arriving(request, response, key, *self._limits(ttl, tti, self._entries.clock()))
        body = cast("AsyncIterator[bytes] | None", response.stream)
        return Entry(arriving.id, request, replace(response, stream=self._save(body, arriving)))

    async def _save(self, body: AsyncIterator[bytes] | None, arriving: Arriving) -> AsyncIterator[bytes]:
        pending = bytearray()
        over = False
        try:
            await in_thread(arriving.begin)
            if body is not None:
                async for chunk in body:
                    if arriving.saving:
                        pending += chunk
                        if len(pending) >= CHUNK:
                            await in_thread(arriving.write, bytes(pending))
                            pending.clear()
                    yield chunk
            if arriving.saving:
                await in_thread(arriving.write, bytes(pending))
                await in_thread(arriving.commit)
            over = True
        finally:
            with anyio.CancelScope(shield=True):
                if not over:
                    await in_thread(arriving.abort)
                if isinstance(body, AsyncGenerator):  # hishel does not, and trio complains
                    await body.aclose()

    async def get_entries(self, key: str) -> list[Entry]:
        try:
            found = self._entries.find(key, wait=False)
        except BlockingIOError:
            found = await in_thread(self._entries.find, key)
        return [streaming(entry, self._deliver(entry.id, reader)) for entry, reader in found]

    async def _deliver(self, id_: UUID, reader: BodyReader) -> AsyncIterator[bytes]:
        offset = 0
        try:
            while True:
                try:
                    data = reader.read(offset, CHUNK, wait=False)
                except BlockingIOError:
                    data = await in_thread(reader.read, offset, CHUNK)
                if not data:
                    return
                offset += len(data)
                yield data
        except BodyDamaged:
            await self.remove_entry(id_)
            raise
        finally:
            reader.close()

    async def update_headers(self, id: UUID, headers: Headers) -> None:  # noqa: A002
        await in_thread(self._entries.freshen, id, headers)

    async def remove_entry(self, id: UUID) -> None:  # noqa: A002
        await in_thread(self._entries.edit, id, lambda _: None)

    async def close(self) -> None:
        await in_thread(self._entries.storage.close)
