"""The clients of the matrix, under one synchronous face: a test written once runs over all of them.

To add a client: a subclass of :class:`Client` or :class:`AsyncClient`, and its name in :data:`CLIENTS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, aclosing, closing
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import aiohttp
import httpx
import requests
from anyio.from_thread import BlockingPortal, start_blocking_portal
from yarl import URL

if TYPE_CHECKING:
    from vllm_http_cache import Cache

__all__ = ["CLIENTS", "AsyncClient", "Client", "Fields", "Got", "How", "Stream", "stop_portals"]

Fields = Mapping[str, str] | Sequence[tuple[str, str]]
Lines = tuple[tuple[str, str], ...]
Errors = tuple[type[Exception], ...]


@dataclass(frozen=True)
class How:
    """How to make a request.

    :param timeout: seconds without an octet.
    :param total: seconds for everything; for clients that know such a timeout.
    :param coded: leave the body in its content coding.
    :param chunk: octets to wait for at most, for clients that wait for whole chunks.
    """

    method: str = "GET"
    body: bytes | None = None
    redirects: bool = True
    timeout: float | None = 10.0
    total: float | None = None
    coded: bool = False
    chunk: int = 65536


@dataclass(frozen=True)
class Got:
    """What a caller got. ``hops`` are the statuses of the redirects before it."""

    status: int
    fields: Lines
    body: bytes
    cookies: Mapping[str, str] = field(default_factory=dict)
    hops: tuple[int, ...] = ()
    refuse: Callable[[], None] = lambda: None

    def get_all(self, name: str) -> list[str]:
        return [value for line, value in self.fields if line.lower() == name.lower()]

    def get(self, name: str) -> str | None:
        values = self.get_all(name)
        return ", ".join(values) if values else None

    @property
    def cache_status(self) -> str:
        """Our own member of Cache-Status; empty when there is none."""
        return next((value for value in self.get_all("cache-status") if value.startswith("vllm-http-cache")), "")

    @property
    def hit(self) -> bool:
        return "; hit" in self.cache_status


class Stream:
    """A response whose decoded body is read bit by bit.

    :param read: gives the next octets as they come; empty at the end.
    """

    def __init__(self, status: int, fields: Lines, read: Callable[[], bytes], close: Callable[[], None]) -> None:
        self.status = status
        self.fields = fields
        self.read = read
        self.close = close

    def take(self, octets: int) -> bytes:
        """At least so many octets, unless there are no more."""
        taken = b""
        while len(taken) < octets and (more := self.read()):
            taken += more
        return taken

    def rest(self) -> bytes:
        return b"".join(iter(self.read, b""))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client(ABC):
    """A client with the cache under it.

    :param cache: None goes to the origin directly.
    :param url_policy: see the transports.
    """

    name: ClassVar[str]
    timed_out: ClassVar[Errors]  # what the client raises when no octet comes in time
    broken: ClassVar[Errors]  # for a body that is cut off
    failed: ClassVar[Errors]  # when there is no connection to the origin
    invalid: ClassVar[Errors]  # for a URL that it does not take
    has_total: ClassVar = False  # whether it knows a timeout for the whole of a request

    def __init__(self, cache: Cache | None, *, url_policy: Callable[[str], None] | None = None) -> None:
        self.cache = cache
        self.url_policy = url_policy
        self._make()

    def get(self, url: str, headers: Fields = (), **how: Any) -> Got:
        """One request, read to its end. *how*: the fields of :class:`How`."""
        return self._get(url, headers, How(**how))

    def stream(self, url: str, headers: Fields = (), **how: Any) -> Stream:
        """One request, its body to be read by the caller."""
        return self._stream(url, headers, How(**how))

    @abstractmethod
    def _make(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _get(self, url: str, headers: Fields, how: How) -> Got: ...

    @abstractmethod
    def _stream(self, url: str, headers: Fields, how: How) -> Stream: ...


class HttpxClient(Client):
    name = "httpx"
    timed_out = (httpx.ReadTimeout,)
    broken = (httpx.RemoteProtocolError, httpx.ReadError)
    failed = (httpx.ConnectError,)
    invalid = (httpx.InvalidURL, httpx.UnsupportedProtocol)

    def _make(self) -> None:
        from vllm_http_cache.httpx import CacheTransport

        inner = httpx.HTTPTransport(verify=False)  # loading certificates would take most of a test
        transport = inner if self.cache is None else CacheTransport(inner, self.cache, url_policy=self.url_policy)
        self._client = httpx.Client(transport=transport, trust_env=False)

    def _get(self, url: str, headers: Fields, how: How) -> Got:
        with closing(self._send(url, headers, how)) as response:
            return _httpx_got(response, b"".join(response.iter_raw() if how.coded else response.iter_bytes()))

    def _stream(self, url: str, headers: Fields, how: How) -> Stream:
        response = self._send(url, headers, how)
        chunks = response.iter_bytes()
        return Stream(response.status_code, _httpx_fields(response), lambda: next(chunks, b""), response.close)

    def _send(self, url: str, headers: Fields, how: How) -> httpx.Response:
        request = self._client.build_request(
            how.method, url, headers=_lines(headers), content=how.body, timeout=how.timeout
        )
        return self._client.send(request, stream=True, follow_redirects=how.redirects)

    def close(self) -> None:
        self._client.close()


class RequestsClient(Client):
    name = "requests"
    timed_out = (requests.ReadTimeout, requests.ConnectionError)  # the latter once the head is there
    broken = (requests.exceptions.ChunkedEncodingError, requests.ConnectionError)
    failed = (requests.ConnectionError,)
    invalid = (requests.exceptions.InvalidURL,)

    def _make(self) -> None:
        self._session = requests.Session()
        self._session.trust_env = False
        if self.cache is not None:
            from vllm_http_cache.requests import CacheAdapter

            self._session.mount("http://", CacheAdapter(self.cache, url_policy=self.url_policy))

    def _get(self, url: str, headers: Fields, how: How) -> Got:
        with self._send(url, headers, how) as response:
            body = response.raw.read(decode_content=False) if how.coded else response.content
            return _requests_got(response, body)

    def _stream(self, url: str, headers: Fields, how: How) -> Stream:
        response = self._send(url, headers, how)
        chunks: Iterator[bytes] = response.iter_content(how.chunk)
        fields = tuple(response.raw.headers.items())
        return Stream(response.status_code, fields, lambda: next(chunks, b""), response.close)

    def _send(self, url: str, headers: Fields, how: How) -> requests.Response:
        joined: dict[str, str] = {}
        for name, value in _lines(headers):
            joined[name] = f"{joined[name]}, {value}" if name in joined else value
        return self._session.request(
            how.method, url, None, how.body, joined, timeout=how.timeout, allow_redirects=how.redirects, stream=True
        )

    def close(self) -> None:
        self._session.close()


class AsyncClient(Client):
    """An asynchronous client on an event loop in a thread, which all clients of its kind share."""

    backend: ClassVar = "asyncio"

    def _make(self) -> None:
        self._portal = _portal(self.backend)
        self._portal.call(self._open)

    def start(self, url: str, headers: Fields = (), **how: Any) -> Future[Got]:
        """A request in a task of its own, which can be cancelled."""
        return self._portal.start_task_soon(self._aget, url, headers, How(**how))

    def _get(self, url: str, headers: Fields, how: How) -> Got:
        return self._portal.call(self._aget, url, headers, how)

    def _stream(self, url: str, headers: Fields, how: How) -> Stream:
        return self._portal.call(self._astream, url, headers, how)

    def close(self) -> None:
        self._portal.call(self._aclose)

    def _face(
        self, status: int, fields: Lines, chunks: AsyncIterator[bytes], close: Callable[[], Awaitable[None]]
    ) -> Stream:
        async def read() -> bytes:
            return await anext(chunks, b"")

        return Stream(status, fields, partial(self._portal.call, read), partial(self._portal.call, close))

    @abstractmethod
    async def _open(self) -> None: ...

    @abstractmethod
    async def _aget(self, url: str, headers: Fields, how: How) -> Got: ...

    @abstractmethod
    async def _astream(self, url: str, headers: Fields, how: How) -> Stream: ...

    @abstractmethod
    async def _aclose(self) -> None: ...


class HttpxAsyncioClient(AsyncClient):
    name = "httpx-asyncio"
    timed_out, broken = HttpxClient.timed_out, HttpxClient.broken
    failed, invalid = HttpxClient.failed, HttpxClient.invalid

    async def _open(self) -> None:
        from vllm_http_cache.httpx import AsyncCacheTransport

        inner = httpx.AsyncHTTPTransport(verify=False)
        transport = inner if self.cache is None else AsyncCacheTransport(inner, self.cache, url_policy=self.url_policy)
        self._client = httpx.AsyncClient(transport=transport, trust_env=False)

    async def _aclose(self) -> None:
        await self._client.aclose()

    async def _aget(self, url: str, headers: Fields, how: How) -> Got:
        async with aclosing(await self._send(url, headers, how)) as response:
            chunks = response.aiter_raw() if how.coded else response.aiter_bytes()
            return _httpx_got(response, b"".join([chunk async for chunk in chunks]))

    async def _astream(self, url: str, headers: Fields, how: How) -> Stream:
        response = await self._send(url, headers, how)
        chunks: Any = response.aiter_bytes()

        async def close() -> None:
            await chunks.aclose()
            await response.aclose()

        return self._face(response.status_code, _httpx_fields(response), chunks, close)

    async def _send(self, url: str, headers: Fields, how: How) -> httpx.Response:
        request = self._client.build_request(
            how.method, url, headers=_lines(headers), content=how.body, timeout=how.timeout
        )
        return await self._client.send(request, stream=True, follow_redirects=how.redirects)


class HttpxTrioClient(HttpxAsyncioClient):
    name = "httpx-trio"
    backend = "trio"


class AiohttpClient(AsyncClient):
    name = "aiohttp"
    timed_out = (TimeoutError,)  # aiohttp.ServerTimeoutError is one
    broken = (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError)
    failed = (aiohttp.ClientConnectorError,)
    invalid = (aiohttp.InvalidURL,)
    has_total = True

    async def _open(self) -> None:
        middlewares: Sequence[aiohttp.ClientMiddlewareType] = ()
        if self.cache is not None:
            from vllm_http_cache.aiohttp import CacheMiddleware

            middlewares = [CacheMiddleware(self.cache, url_policy=self.url_policy)]
        self._session = aiohttp.ClientSession(
            middlewares=middlewares, requote_redirect_url=False, cookie_jar=aiohttp.DummyCookieJar()
        )

    async def _aclose(self) -> None:
        await self._session.close()

    async def _aget(self, url: str, headers: Fields, how: How) -> Got:
        from vllm_http_cache.aiohttp import refuse

        async with await self._send(url, headers, how) as response:
            body = await response.read()
            cookies = {name: morsel.value for name, morsel in response.cookies.items()}
            hops = tuple(hop.status for hop in response.history)
            return Got(response.status, _aiohttp_fields(response), body, cookies, hops, partial(refuse, response))

    async def _astream(self, url: str, headers: Fields, how: How) -> Stream:
        response = await self._send(url, headers, how)

        async def close() -> None:
            response.close()

        chunks = aiter(response.content.iter_any())
        return self._face(response.status, _aiohttp_fields(response), chunks, close)

    async def _send(self, url: str, headers: Fields, how: How) -> aiohttp.ClientResponse:
        return await self._session.request(
            how.method,
            URL(url, encoded=True),
            headers=_lines(headers),
            data=how.body,
            allow_redirects=how.redirects,
            timeout=aiohttp.ClientTimeout(total=how.total, sock_read=how.timeout),
            auto_decompress=not how.coded,
        )


CLIENTS: dict[str, type[Client]] = {
    client.name: client for client in (HttpxClient, HttpxAsyncioClient, HttpxTrioClient, AiohttpClient, RequestsClient)
}


_loops = ExitStack()


@cache
def _portal(backend: str) -> BlockingPortal:
    """The event loop of *backend*, which runs until :func:`stop_portals`."""
    return _loops.enter_context(start_blocking_portal(backend))


def stop_portals() -> None:
    _portal.cache_clear()
    _loops.close()


def _lines(headers: Fields) -> list[tuple[str, str]]:
    return list(headers.items() if isinstance(headers, Mapping) else headers)


def _httpx_fields(response: httpx.Response) -> Lines:
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers.raw)


def _httpx_got(response: httpx.Response, body: bytes) -> Got:
    from vllm_http_cache.httpx import refuse

    hops = tuple(hop.status_code for hop in response.history)
    return Got(
        response.status_code, _httpx_fields(response), body, dict(response.cookies), hops, partial(refuse, response)
    )


def _requests_got(response: requests.Response, body: bytes) -> Got:
    from vllm_http_cache.requests import refuse

    hops = tuple(hop.status_code for hop in response.history)
    fields = tuple(response.raw.headers.items())
    return Got(response.status_code, fields, body, dict(response.cookies), hops, partial(refuse, response))


def _aiohttp_fields(response: aiohttp.ClientResponse) -> Lines:
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in response.raw_headers)
