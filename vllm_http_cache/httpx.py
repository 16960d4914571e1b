"""The cache under httpx: transports to put below a client's redirects, authentication and cookies.

    client = httpx.Client(transport=CacheTransport(httpx.HTTPTransport(), cache))
    client = httpx.AsyncClient(transport=AsyncCacheTransport(httpx.AsyncHTTPTransport(), cache))

The asynchronous one runs on asyncio and on trio. Unless the cache is off, every answer carries ``Cache-Status`` and
the extension :data:`EXTENSION`; :func:`refuse` says that an answer's octets were of no use. The extensions
``http_version`` and ``network_stream`` of what the origin sends or confirms just now are those of the inner transport's
response; what comes from the cache alone, or along with another caller's download, is HTTP/1.1 and has no stream.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import httpx

from .rfc9111.framing import is_framed
from .rfc9111.message import Fields, Request, Response
from .rfc9111.target import InvalidTarget, parse_target
from .wire import A_CACHE, Caller, Fetched, Reply, expect

if TYPE_CHECKING:
    from .cache import Cache
    from .wire import AsyncBody, Body, UrlPolicy

__all__ = ["EXTENSION", "AsyncCacheTransport", "CacheTransport", "refuse"]

EXTENSION = "vllm_http_cache"  # names a response's extension: the Fetched it was made from
CARRIED = ("http_version", "network_stream")


class CacheTransport(httpx.BaseTransport):
    """A transport that answers from *cache*, and otherwise from *inner*.

    :param inner: the transport that goes to the origin. Closed with this one; the cache is not.
    :param url_policy: called with the target URI of every request (each hop of a chain of redirects is one) before the
        cache is asked; raises to refuse it.
    :raises httpx.InvalidURL: the URL could be read in more than one way.
    :raises httpx.UnsupportedProtocol: it names no scheme or no host.
    :raises httpx.TransportError: as *inner* does. While another caller's download is followed:
        :class:`httpx.ReadTimeout` after the request's read timeout, :class:`httpx.RemoteProtocolError` when it breaks.
    """

    def __init__(self, inner: httpx.BaseTransport, cache: Cache, *, url_policy: UrlPolicy | None = None) -> None:
        expect(inner, "handle_request", "inner has to be a transport, such as httpx.HTTPTransport()")
        expect(cache, "fetch", A_CACHE)
        self._inner = inner
        self._cache = cache
        self._url_policy = url_policy

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        asked = _asked(request, self._cache, self._url_policy)
        if asked is None:
            return self._inner.handle_request(request)

        came: dict[str, Any] = {}

        def send(sent: Request) -> Reply:
            nonlocal came
            response = self._inner.handle_request(_outgoing(request, asked, sent))
            came = _carried(response)
            return _reply(sent, response, _Source(response))

        try:
            fetched = self._cache.fetch(asked, send, _caller(request))
        except InvalidTarget as error:
            raise httpx.InvalidURL(str(error)) from error
        return _answer(fetched, _Stream, came)

    def close(self) -> None:
        self._inner.close()

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._inner.__exit__(exc_type, exc_value, traceback)


class AsyncCacheTransport(httpx.AsyncBaseTransport):
    """:class:`CacheTransport` for :class:`httpx.AsyncClient`, on asyncio and trio."""

    def __init__(self, inner: httpx.AsyncBaseTransport, cache: Cache, *, url_policy: UrlPolicy | None = None) -> None:
        asynchronous = "inner has to be an asynchronous transport, such as httpx.AsyncHTTPTransport()"
        expect(inner, "handle_async_request", asynchronous)
        expect(cache, "afetch", A_CACHE)
        self._inner = inner
        self._cache = cache
        self._url_policy = url_policy

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        asked = _asked(request, self._cache, self._url_policy)
        if asked is None:
            return await self._inner.handle_async_request(request)

        came: dict[str, Any] = {}

        async def send(sent: Request) -> Reply:
            nonlocal came
            response = await self._inner.handle_async_request(_outgoing(request, asked, sent))
            came = _carried(response)
            return _reply(sent, response, _AsyncSource(response))

        try:
            fetched = await self._cache.afetch(asked, send, _caller(request))
        except InvalidTarget as error:
            raise httpx.InvalidURL(str(error)) from error
        return _answer(fetched, _AsyncStream, came)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._inner.__aexit__(exc_type, exc_value, traceback)


def refuse(response: httpx.Response) -> None:
    """The consumer's veto: the octets of *response* are unusable (they do not decode).

    What is stored of it is dropped, and the next request asks the origin. Does nothing for what is not stored.
    """
    fetched = response.extensions.get(EXTENSION)
    if isinstance(fetched, Fetched):
        fetched.refuse()


class _Source:
    """A :class:`~.wire.Source`: the stream of a response, undecoded."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._chunks: Iterator[bytes] | None = None

    def read(self) -> bytes:
        if self._chunks is None:
            assert isinstance(self._response.stream, httpx.SyncByteStream)
            self._chunks = iter(self._response.stream)
        for chunk in self._chunks:
            if chunk:
                return chunk
        self.close()
        return b""

    def close(self) -> None:
        if isinstance(self._chunks, Generator):
            self._chunks.close()
        self._response.close()


class _AsyncSource:
    """An :class:`~.wire.AsyncSource`: the stream of a response, undecoded."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._chunks: AsyncIterator[bytes] | None = None

    async def read(self) -> bytes:
        if self._chunks is None:
            assert isinstance(self._response.stream, httpx.AsyncByteStream)
            self._chunks = aiter(self._response.stream)
        async for chunk in self._chunks:
            if chunk:
                return chunk
        await self.aclose()  # before the caller learns of the end, and asks for a connection
        return b""

    async def aclose(self) -> None:
        if isinstance(self._chunks, AsyncGenerator):
            await self._chunks.aclose()
        await self._response.aclose()


class _Stream(httpx.SyncByteStream):
    def __init__(self, body: Body) -> None:
        self._body = body

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body.read, b"")

    def close(self) -> None:
        self._body.close()


class _AsyncStream(httpx.AsyncByteStream):
    """Its own iterator: a generator would want to be closed by whoever stops half-way, and httpx closes none."""

    def __init__(self, body: AsyncBody) -> None:
        self._body = body

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        chunk = self._body.ready()
        if chunk is None:
            chunk = await self._body.read()
        if not chunk:
            raise StopAsyncIteration
        return chunk

    async def aclose(self) -> None:
        await self._body.aclose()


def _asked(request: httpx.Request, cache: Cache, url_policy: UrlPolicy | None) -> Request | None:
    """The request as the cache sees it.

    None when its target names no resource of the URL's origin (``OPTIONS *``) and it may go to the network.
    """
    url = request.url
    if not (url.scheme and url.host):
        raise httpx.UnsupportedProtocol("Request URL is missing an 'http://' or 'https://' protocol.", request=request)
    target: bytes = request.extensions.get("target", url.raw_path)
    ordinary = target.startswith(b"/")
    uri = f"{url.scheme}://{url.netloc.decode('ascii')}{(target if ordinary else url.raw_path).decode('latin-1')}"
    if url_policy is not None:
        try:
            parse_target(uri)
        except InvalidTarget as error:
            raise httpx.InvalidURL(str(error)) from error
        url_policy(uri)
    if not ordinary and cache.options.mode != "only-if-cached":
        return None
    return Request(request.method, uri, _fields(request.headers))


def _outgoing(request: httpx.Request, asked: Request, sent: Request) -> httpx.Request:
    """What goes to the origin: the caller's own request unless the cache changed it."""
    if sent.fields == asked.fields and sent.method == asked.method:
        return request
    return httpx.Request(
        sent.method, request.url, headers=_raw(sent.fields), stream=request.stream, extensions=request.extensions
    )


def _caller(request: httpx.Request) -> Caller:
    timeout: float | None = request.extensions.get("timeout", {}).get("read")
    return Caller(
        timeout=timeout,
        timed_out=partial(httpx.ReadTimeout, "no octets from another caller's download", request=request),
        broken=partial(httpx.RemoteProtocolError, request=request),
    )


def _reply(sent: Request, response: httpx.Response, source: _Source | _AsyncSource) -> Reply:
    reason: bytes | None = response.extensions.get("reason_phrase")  # HTTP/2 has none
    phrase = response.reason_phrase if reason is None else reason.decode("latin-1")
    head = Response(response.status_code, _fields(response.headers), phrase)
    later = response.extensions.get("http_version") not in (b"HTTP/1.0", b"HTTP/1.1")  # HTTP/2 frames every body
    return Reply(head, source, response, later or is_framed(sent.method, head), time_outs=(httpx.TimeoutException,))


def _carried(response: httpx.Response) -> dict[str, Any]:
    """The extensions that tell how a response from the network came."""
    return {name: response.extensions[name] for name in CARRIED if name in response.extensions}


def _answer(
    fetched: Fetched,
    stream: Callable[[Any], httpx.SyncByteStream | httpx.AsyncByteStream],
    came: dict[str, Any],
) -> httpx.Response:
    """:param came: what is carried of the last response from the network."""
    head = fetched.response
    if fetched.native is not None:
        native: httpx.Response = fetched.native
        native.headers = httpx.Headers(_raw(head.fields))
        native.extensions[EXTENSION] = fetched
        return native
    extensions: dict[str, Any] = {
        "http_version": b"HTTP/1.1",
        **(came if _is_from_network(fetched) else {}),
        "reason_phrase": head.reason.encode("latin-1"),
        EXTENSION: fetched,
    }
    return httpx.Response(head.status, headers=_raw(head.fields), stream=stream(fetched.body), extensions=extensions)


def _is_from_network(fetched: Fetched) -> bool:
    """Whether the origin has answered this request, and nothing older answers in its place."""
    return fetched.status.forward_status is not None and fetched.status.detail is None


def _fields(headers: httpx.Headers) -> Fields:
    return Fields((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers.raw)


def _raw(fields: Fields) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields]
