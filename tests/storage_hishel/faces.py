"""hishel's storages and clients, synchronous and asynchronous, under one synchronous face: a test is written once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar
from uuid import UUID

import httpx
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hishel import AsyncBaseStorage, BaseStorage, Entry, Headers, Request, Response
from hishel.httpx import AsyncCacheTransport, CacheTransport

from vllm_http_cache.storage.hishel import as_hishel, as_hishel_async
from vllm_http_cache.storage.protocol import Storage

__all__ = ["FACES", "Body", "Face", "Found", "Got"]

URL = "http://origin.test/a"
Lines = Mapping[str, str | list[str]]


class Body:
    """A stream of hishel's. ``read`` gives the next chunk, None at the end."""

    def __init__(self, id_: UUID, read: Callable[[], bytes | None], close: Callable[[], None]) -> None:
        self.id = id_
        self.read = read
        self.close = close

    def rest(self) -> bytes:
        return b"".join(iter(self.read, None))


@dataclass(frozen=True)
class Found:
    """An entry as ``get_entries`` gives it."""

    id: UUID
    request: Request
    status: int
    headers: Headers
    body: Body


@dataclass(frozen=True)
class Got:
    """What a client got. ``how``: hishel's word on where it came from."""

    status: int
    headers: httpx.Headers
    body: bytes
    how: dict[str, bool]

    @property
    def hit(self) -> bool:
        return self.how["from_cache"]


class Face(ABC):
    """One of the two adapters over *storage*, and clients of hishel's over the adapter."""

    name: ClassVar[str]

    def __init__(self, storage: Storage, **limits: Any) -> None:
        self.storage = storage
        self.limits = limits
        self._make()

    def create(
        self,
        key: str,
        chunks: Iterable[bytes | Exception],
        headers: Lines | None = None,
        *,
        request: Request | None = None,
        ttl: float | None = None,
        tti: float | None = None,
    ) -> Body:
        """A new entry's stream. An exception among the chunks is raised."""
        return self._create(request or Request("GET", URL), Headers(headers or {}), chunks, key, ttl, tti)

    def put(self, key: str, body: bytes = b"body", headers: Lines | None = None, **how: Any) -> UUID:
        """A new entry, its stream read to the end."""
        created = self.create(key, [body], headers, **how)
        assert created.rest() == body
        return created.id

    @abstractmethod
    def _make(self) -> None: ...

    @abstractmethod
    def _create(
        self, request: Request, headers: Headers, chunks: Iterable[bytes | Exception], key: str, *limits: float | None
    ) -> Body: ...

    @abstractmethod
    def find(self, key: str) -> list[Found]: ...

    @abstractmethod
    def update(self, id_: UUID, headers: Lines) -> None: ...

    @abstractmethod
    def remove(self, id_: UUID) -> None: ...

    @abstractmethod
    def get(self, url: str, headers: dict[str, str] | None = None, *, method: str = "GET", rfc: bool = True) -> Got:
        """A request through hishel's transport."""

    @abstractmethod
    def abandon(self, url: str) -> None:
        """A request whose body the client closes after one chunk."""

    @abstractmethod
    def close(self) -> None:
        """Close the clients, which close the storage."""

    def stop(self) -> None:
        """The end of the test."""
        self.close()


def _chunks(chunks: Iterable[bytes | Exception]) -> Iterator[bytes]:
    for chunk in chunks:
        if isinstance(chunk, Exception):
            raise chunk
        yield chunk


def _got(response: httpx.Response) -> Got:
    return Got(response.status_code, response.headers, response.content, response.extensions["caching"])


def _found(entry: Entry, body: Callable[[Entry], Body]) -> Found:
    return Found(entry.id, entry.request, entry.response.status_code, entry.response.headers, body(entry))


class Sync(Face):
    name = "sync"

    def _make(self) -> None:
        self._clients: dict[bool, httpx.Client] = {}
        self.hishel: BaseStorage = as_hishel(self.storage, **self.limits)

    def _create(
        self, request: Request, headers: Headers, chunks: Iterable[bytes | Exception], key: str, *limits: float | None
    ) -> Body:
        ttl, tti = limits
        return self._body(
            self.hishel.create_entry(request, Response(200, headers, _chunks(chunks)), key, ttl=ttl, tti=tti)
        )

    def _body(self, entry: Entry) -> Body:
        stream: Any = entry.response.stream
        return Body(entry.id, lambda: next(stream, None), stream.close)

    def find(self, key: str) -> list[Found]:
        return [_found(entry, self._body) for entry in self.hishel.get_entries(key)]

    def update(self, id_: UUID, headers: Lines) -> None:
        self.hishel.update_headers(id_, Headers(headers))

    def remove(self, id_: UUID) -> None:
        self.hishel.remove_entry(id_)

    def _client(self, rfc: bool) -> httpx.Client:
        if rfc not in self._clients:
            transport = CacheTransport(httpx.HTTPTransport(), self.hishel, rfc=rfc)
            self._clients[rfc] = httpx.Client(transport=transport)
        return self._clients[rfc]

    def get(self, url: str, headers: dict[str, str] | None = None, *, method: str = "GET", rfc: bool = True) -> Got:
        return _got(self._client(rfc).request(method, url, headers=headers))

    def abandon(self, url: str) -> None:
        with self._client(rfc=True).stream("GET", url) as response:
            next(response.iter_raw())

    def close(self) -> None:
        self._client(rfc=True)
        for client in self._clients.values():
            client.close()


class _Async(Face):
    backend: ClassVar[str]

    def _make(self) -> None:
        self._clients: dict[bool, httpx.AsyncClient] = {}
        self._starting = start_blocking_portal(self.backend)
        self._portal: BlockingPortal = self._starting.__enter__()
        self.hishel: AsyncBaseStorage = as_hishel_async(self.storage, **self.limits)

    def _create(
        self, request: Request, headers: Headers, chunks: Iterable[bytes | Exception], key: str, *limits: float | None
    ) -> Body:
        async def stream() -> AsyncIterator[bytes]:
            for chunk in _chunks(chunks):
                yield chunk

        async def create() -> Entry:
            ttl, tti = limits
            return await self.hishel.create_entry(request, Response(200, headers, stream()), key, ttl=ttl, tti=tti)

        return self._body(self._portal.call(create))

    def _body(self, entry: Entry) -> Body:
        stream: Any = entry.response.stream

        async def read() -> bytes | None:
            chunk: bytes | None = await anext(stream, None)
            return chunk

        return Body(entry.id, partial(self._portal.call, read), partial(self._portal.call, stream.aclose))

    def find(self, key: str) -> list[Found]:
        return [_found(entry, self._body) for entry in self._portal.call(self.hishel.get_entries, key)]

    def update(self, id_: UUID, headers: Lines) -> None:
        self._portal.call(self.hishel.update_headers, id_, Headers(headers))

    def remove(self, id_: UUID) -> None:
        self._portal.call(self.hishel.remove_entry, id_)

    def _client(self, rfc: bool) -> httpx.AsyncClient:
        if rfc not in self._clients:
            transport = AsyncCacheTransport(httpx.AsyncHTTPTransport(), self.hishel, rfc=rfc)
            self._clients[rfc] = httpx.AsyncClient(transport=transport)
        return self._clients[rfc]

    def get(self, url: str, headers: dict[str, str] | None = None, *, method: str = "GET", rfc: bool = True) -> Got:
        async def get() -> Got:
            return _got(await self._client(rfc).request(method, url, headers=headers))

        return self._portal.call(get)

    def abandon(self, url: str) -> None:
        async def abandon() -> None:
            async with self._client(rfc=True).stream("GET", url) as response:
                await anext(response.aiter_raw())

        self._portal.call(abandon)

    def close(self) -> None:
        async def close() -> None:
            self._client(rfc=True)
            for client in self._clients.values():
                await client.aclose()

        self._portal.call(close)

    def stop(self) -> None:
        self.close()
        self._starting.__exit__(None, None, None)


class Asyncio(_Async):
    name = "asyncio"
    backend = "asyncio"


class Trio(_Async):
    name = "trio"
    backend = "trio"


FACES: tuple[type[Face], ...] = (Sync, Asyncio, Trio)
