"""The cache under aiohttp: a client middleware.

    session = aiohttp.ClientSession(middlewares=[CacheMiddleware(cache)])

It belongs last in the list, next to the network, where it sees each hop of a chain of redirects as the origin would.
Every answer that has come this way carries ``Cache-Status``; :func:`refuse` says that an answer's octets were of no
use.

aiohttp decodes contents and keeps the fields of the coded ones; the cache stores octets as they were on the wire. So
what comes from the network is read undecoded, and what is handed out passes through aiohttp's own decoder.

Where HTTP's chunks end is not kept: of a body that is stored or comes from the cache, ``iter_chunks()`` and
``readchunk()`` report the end of none. aiohttp leaves the content of a redirect unread; for up to half a second a
redirect that may be stored is held back until its content is here.
"""

from __future__ import annotations

import asyncio
import copy
import re
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import EMPTY_PAYLOAD, ClientHandlerType, ClientRequest, ClientResponse, StreamReader, hdrs
from aiohttp.helpers import TimerNoop
from aiohttp.http import HttpVersion11, RawResponseMessage
from multidict import CIMultiDict, CIMultiDictProxy

from .aiohttp_stream import Line
from .rfc9111.framing import is_framed
from .rfc9111.message import Fields, Request, Response
from .rfc9111.target import InvalidTarget
from .wire import A_CACHE, Caller, Fetched, Reply, expect

if TYPE_CHECKING:
    from aiohttp.connector import Connection

    from .cache import Cache
    from .wire import AsyncBody, UrlPolicy

__all__ = ["CacheMiddleware", "field_lines", "octets", "refuse", "text"]

ATTRIBUTE = "vllm_http_cache"  # of a response: the Fetched it was made from
AMBIGUOUS = re.compile(r"[^A-Za-z0-9._~\[\]:-]")  # in a host: what two parsers of URLs may read differently
NOT_UTF_8 = re.compile("[\udc80-\udcff]")  # in a field's value: octets in whose place aiohttp would send others
CODINGS = ("gzip", "deflate", "br", "zstd")  # what aiohttp's parser decodes
NO_CONTENT = frozenset({204, 304})
REDIRECTS = frozenset({301, 302, 303, 307, 308})
PATIENCE = 0.5  # seconds for the content of a redirect: aiohttp leaves it unread, and nothing is stored by halves
PARSER_SETTINGS = ("read_until_eof", "read_bufsize", "max_line_size", "max_field_size", "max_headers")
SETTINGS = ("real_timeout", "auto_decompress", *PARSER_SETTINGS)
MIDDLEWARES = 100  # more than a session has


class CacheMiddleware:
    """Answers a session's requests from *cache*, and otherwise from the network.

    Serves any number of sessions and event loops. Requests that no cache may understand (GET with a content, upgrades
    to other protocols, CONNECT) go by it, unless nothing may go to the network.

    :param cache: not closed with the session.
    :param url_policy: called with the target URI of every request (each hop of a chain of redirects is one) before the
        cache is asked; raises to refuse it.
    :raises aiohttp.InvalidURL: the URL could be read in more than one way (where there is a policy: its host as well).
    :raises aiohttp.ClientError: as without the cache. While another caller's download is followed:
        :class:`aiohttp.SocketTimeoutError` after the timeout's ``sock_read``, :class:`aiohttp.ClientPayloadError` when
        it breaks. :class:`TimeoutError` after the timeout's ``total``, on answers from the cache as well, and though
        a stale one might have answered for an origin that hangs: leave that to ``sock_read``.
    """

    def __init__(self, cache: Cache, *, url_policy: UrlPolicy | None = None) -> None:
        expect(cache, "afetch", A_CACHE)
        self._cache = cache
        self._url_policy = url_policy

    async def __call__(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        uri = str(request.url)
        if self._url_policy is not None:
            if AMBIGUOUS.search(request.url.raw_host or ""):
                raise aiohttp.InvalidURL(request.url)
            self._url_policy(uri)
        mode = self._cache.options.mode
        if mode == "off" or (self._goes_by(request) and mode != "only-if-cached"):
            return await handler(request)
        call = _Call(request, handler)
        asked = Request(request.method, uri, Fields([(name, octets(value)) for name, value in request.headers.items()]))
        try:
            fetched = await self._cache.afetch(asked, call.send, call.caller())
        except InvalidTarget as error:
            raise aiohttp.InvalidURL(request.url, str(error)) from error
        answer = await call.answer(fetched)
        setattr(answer, ATTRIBUTE, fetched)
        return answer

    def _goes_by(self, request: ClientRequest) -> bool:
        if request.method in (hdrs.METH_GET, hdrs.METH_HEAD):
            return bool(request.body) or hdrs.UPGRADE in request.headers or hdrs.EXPECT in request.headers
        return request.method == hdrs.METH_CONNECT


def refuse(response: ClientResponse) -> None:
    """The consumer's veto: the octets of *response* are unusable (they do not decode).

    What is stored of it is dropped, and the next request asks the origin. Does nothing for what is not stored.
    """
    fetched = getattr(response, ATTRIBUTE, None)
    if isinstance(fetched, Fetched):
        fetched.refuse()


class _Call:
    """One request of a caller: how it is sent, and how its answer is made."""

    def __init__(self, request: ClientRequest, handler: ClientHandlerType) -> None:
        session = request.session
        settings = _settings(handler)
        timeout: aiohttp.ClientTimeout = settings.get("real_timeout", session.timeout)
        self._request = request
        self._handler = handler
        self._task = asyncio.current_task()
        self._decode: bool = settings.get("auto_decompress", session.auto_decompress)
        self._bufsize: int = settings.get("read_bufsize", 64 * 1024)
        self._total = timeout.total
        self._read_timeout = timeout.sock_read
        self._parser = {name: settings[name] for name in PARSER_SETTINGS if name in settings}
        self._coded = not self._decode  # whether what the network gives is undecoded

    def caller(self) -> Caller:
        return Caller(
            self._read_timeout,
            partial(aiohttp.SocketTimeoutError, "no octets from another caller's download"),
            aiohttp.ClientPayloadError,
        )

    # To the network.

    async def send(self, asked: Request) -> Reply:
        """An :class:`~.wire.AsyncSend`. A task that is not the caller's has the total timeout to itself."""
        if self._request.method not in (hdrs.METH_GET, hdrs.METH_HEAD):
            return self._reply(await self._handler(self._request), None)
        request = copy.copy(self._request)  # its fields are seen through responses it has had
        lines = ((name, text(value)) for name, value in asked.fields)
        request.headers = CIMultiDict([line for line in lines if not NOT_UTF_8.search(line[1])])
        if asyncio.current_task() is self._task:
            return self._reply(await self._forward(request), None)
        if request.session.closed:
            raise aiohttp.ClientConnectionError("Session is closed")
        request._timer = TimerNoop()
        deadline = asyncio.get_running_loop().time() + self._total if self._total else None
        async with asyncio.timeout_at(deadline):
            return self._reply(await self._forward(request), deadline)

    async def _forward(self, request: ClientRequest) -> ClientResponse:
        if self._decode and self._parser:
            send = request.send

            async def send_coded(connection: Connection) -> ClientResponse:
                self._coded = self._read_coded(connection, request)
                return await send(connection)

            request.send = send_coded  # type: ignore[assignment, method-assign]
        return await self._handler(request)

    def _read_coded(self, connection: Connection, request: ClientRequest) -> bool:
        """Arm the parser once more, as the session did but without decoding. False: this aiohttp has no such way."""
        try:
            assert connection.protocol is not None
            connection.protocol.set_response_params(
                timer=request._timer,
                skip_payload=request.method == hdrs.METH_HEAD,
                auto_decompress=False,
                read_timeout=self._read_timeout,
                **self._parser,
            )
        except (AttributeError, TypeError):
            return False
        return True

    def _reply(self, response: ClientResponse, deadline: float | None) -> Reply:
        fields = field_lines(response)
        head = Response(response.status, fields, octets(response.reason or ""))
        framed = is_framed(response.method, head)
        if not self._coded and _coding(response.headers):  # decoded already: the fields of the coded form are wrong
            head = replace(head, fields=fields.without(("content-encoding", "content-length")))
        return Reply(head, _Source(response, deadline), response, framed)

    # To the caller.

    async def answer(self, fetched: Fetched) -> ClientResponse:
        head = fetched.response
        native: ClientResponse | None = fetched.native
        if native is None:
            return await self._made(head, fetched.body)
        if self._decode and self._coded and native.content is not EMPTY_PAYLOAD and _coding(native.headers):
            return await self._made(head, _Source(native, None))
        told = [line for line in head.fields if line[0].lower() == "cache-status"]
        _with_fields(native, Fields((*field_lines(native).without(("cache-status",)), *told)))
        native._request_info = self._request.request_info  # without what the cache added
        return native

    async def _made(self, head: Response, body: AsyncBody | None) -> ClientResponse:
        """A response that reads from *body* what a connection would have given."""
        request = self._request
        loop = asyncio.get_running_loop()
        headers = CIMultiDictProxy(CIMultiDict([(name, text(value)) for name, value in head.fields]))
        line = Line(body, loop)
        try:
            content: StreamReader = EMPTY_PAYLOAD
            if body is None or request.method == hdrs.METH_HEAD or head.status in NO_CONTENT:
                await line.finish()
            else:
                content = StreamReader(line, self._bufsize, timer=request._timer, loop=loop)  # type: ignore[arg-type]
                await line.begin(content, _coding(headers) if self._decode else None)
                if head.status in REDIRECTS:
                    await line.settle(PATIENCE)
            line.message = (
                RawResponseMessage(
                    HttpVersion11, head.status, text(head.reason), headers, _raw(head.fields), False, None, False, False
                ),
                content,
            )
            response = request.response_class(
                request.method,
                request.original_url,
                writer=None,
                continue100=None,
                timer=request._timer,
                request_info=request.request_info,
                traces=request._traces,
                loop=loop,
                session=request.session,
                **NOTHING_SENT,
            )
            line.serve(response)
            return await response.start(line)  # type: ignore[arg-type]
        except BaseException:
            line.close()
            raise


class _Source:
    """An :class:`~.wire.AsyncSource`, and the body of an answer: the octets of a response from the network.

    :param deadline: the loop's time after which nobody waits for them; None: the client's read timeout is enough.
    """

    length: int | None = None

    def __init__(self, response: ClientResponse, deadline: float | None) -> None:
        self._response = response
        self._deadline = deadline
        self._fresh = True

    def ready(self) -> bytes | None:
        content = self._response.content
        if self._fresh and content is not EMPTY_PAYLOAD:
            content._timer = TimerNoop()  # the caller's total timeout is not that of others who read along
        self._fresh = False
        return content.read_nowait() or (b"" if content.at_eof() else None)

    async def read(self) -> bytes:
        if (data := self.ready()) is not None:
            return data
        content = self._response.content
        protocol: Any = self._response.connection and self._response.connection.protocol
        closed = getattr(protocol, "closed", None)  # a future, from aiohttp 3.12.7 on

        def cut(closed: asyncio.Future[None]) -> None:
            """A session that closes leaves readers of its connections waiting for ever."""
            error = None if closed.cancelled() else closed.exception()
            if not content.is_eof() and content.exception() is None:
                content.set_exception(error or aiohttp.ClientConnectionError("Connection closed"))

        if isinstance(closed, asyncio.Future):
            closed.add_done_callback(cut)
        try:
            async with asyncio.timeout_at(self._deadline):
                return await content.readany()
        finally:
            if isinstance(closed, asyncio.Future):
                closed.remove_done_callback(cut)

    async def aclose(self) -> None:
        self._response.release()


def _settings(handler: ClientHandlerType) -> dict[str, Any]:
    """What the session was told for this call.

    aiohttp shows that to no middleware; they are free variables of the function that all middlewares wrap. Empty where
    this aiohttp is built differently: then the session's own settings hold, and contents are stored decoded.
    """
    wrapped: Any = handler
    for _ in range(MIDDLEWARES):
        code = getattr(wrapped, "__code__", None)
        if code is None:
            break
        cells = dict(zip(code.co_freevars, wrapped.__closure__ or (), strict=True))
        if "real_timeout" in cells:
            return {name: cells[name].cell_contents for name in SETTINGS if name in cells}
        inner = cells.get("next_h", cells.get("handler"))
        if inner is None:
            break
        wrapped = inner.cell_contents
    return {}


def field_lines(response: ClientResponse) -> Fields:
    """As they came. The space behind a value is no part of it (RFC 9110 section 5.5); some aiohttps leave it there."""
    return Fields((name.decode("latin-1"), value.rstrip().decode("latin-1")) for name, value in response.raw_headers)


def _with_fields(response: Any, fields: Fields) -> None:
    """Give a response from the network other fields."""
    response._headers = CIMultiDictProxy(CIMultiDict([(name, text(value)) for name, value in fields]))
    response._raw_headers = _raw(fields)
    for name in ("headers", "raw_headers"):  # computed once
        response._cache.pop(name, None)


def _coding(headers: CIMultiDictProxy[str]) -> str | None:
    coding = headers.getall(hdrs.CONTENT_ENCODING, [""])[-1].lower()  # of several lines aiohttp heeds the last
    return coding if coding in CODINGS else None


def octets(text: str) -> str:
    """A field value or reason of aiohttp's, as the octets on the wire, decoded as ISO-8859-1."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("latin-1")


def text(octets: str) -> str:
    """The inverse."""
    return octets if octets.isascii() else octets.encode("latin-1").decode("utf-8", "surrogateescape")


def _raw(fields: Fields) -> tuple[tuple[bytes, bytes], ...]:
    return tuple([(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields])


class _Writer:
    output_size = 0


NOTHING_SENT: dict[str, Any] = (
    {"stream_writer": _Writer()} if "stream_writer" in signature(ClientResponse).parameters else {}
)
