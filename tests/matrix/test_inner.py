"""What lies below: inner transports and adapters, wrong ones and users' own."""

from __future__ import annotations

import io
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from http.client import HTTPMessage
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest
import requests
from requests.adapters import BaseAdapter, HTTPAdapter
from urllib3 import HTTPResponse

from tests.origin import Answer
from vllm_http_cache import Cache, CacheOptions
from vllm_http_cache.httpx import AsyncCacheTransport, CacheTransport
from vllm_http_cache.requests import CacheAdapter, reading
from vllm_http_cache.rfc9111.cachestatus import CacheStatus
from vllm_http_cache.rfc9111.message import Fields, Request, Response
from vllm_http_cache.wire import Caller, Fetched, Send

if TYPE_CHECKING:
    from tests.conftest import World
    from tests.origin import Origin

MIB = 1024**2
FRESH = {"Cache-Control": "max-age=60", "ETag": '"1"'}
NO_CACHE = r"cache has to be a Cache \(where open_cache\(\) gives None, do without\), not "


@pytest.mark.only("httpx")
def test_what_could_not_fetch_is_refused_at_once(cache: Cache) -> None:
    inner: Any = httpx.HTTPTransport()
    ours: Any = cache
    with pytest.raises(TypeError, match=r"inner has to be a transport, such as httpx.HTTPTransport\(\), not <vllm"):
        CacheTransport(ours, inner)
    with pytest.raises(TypeError, match=r"inner has to be a transport, .*, not <class 'httpx.HTTPTransport'>"):
        CacheTransport(type(inner), cache)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"inner has to be an asynchronous transport, .*, not <httpx.HTTPTransport"):
        AsyncCacheTransport(inner, cache)
    for transport in (CacheTransport, AsyncCacheTransport):
        with pytest.raises(TypeError, match=NO_CACHE + "None"):
            transport(httpx.MockTransport(print), None)  # type: ignore[arg-type]


class Pieces(httpx.SyncByteStream, httpx.AsyncByteStream):
    """The stream of an inner transport; notes what is closed."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces
        self.closed: list[str] = []

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._pieces
        finally:
            self.closed.append("iterator")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            for piece in self._pieces:
                yield piece
        finally:
            self.closed.append("iterator")

    def close(self) -> None:
        self.closed.append("stream")

    async def aclose(self) -> None:
        self.closed.append("stream")


Handler = Callable[[httpx.Request], httpx.Response]
Ask = Callable[[Cache, httpx.Request, Handler, bool], httpx.Response]


def ask(cache: Cache, asked: httpx.Request, handler: Handler, whole: bool) -> httpx.Response:
    """Send a request through the cache over a handler, and read the answer to its end, or no more than a piece."""
    with httpx.Client(transport=CacheTransport(httpx.MockTransport(handler), cache)) as client:
        response = client.send(asked, stream=not whole)
        if not whole:
            assert next(response.iter_raw())
            response.close()
    return response


async def aask(cache: Cache, asked: httpx.Request, handler: Handler, whole: bool) -> httpx.Response:
    async with httpx.AsyncClient(transport=AsyncCacheTransport(httpx.MockTransport(handler), cache)) as client:
        response = await client.send(asked, stream=not whole)
        if not whole:
            assert await anext(response.aiter_raw())
            await response.aclose()
    return response


EITHER = pytest.mark.parametrize(
    "ask",
    [ask, lambda *how: anyio.run(aask, *how), lambda *how: anyio.run(aask, *how, backend="trio")],
    ids=["threads", "asyncio", "trio"],
)


@EITHER
@pytest.mark.only("httpx")
def test_the_version_and_the_connection_of_what_comes_just_now(ask: Ask, world: World, cache: Cache) -> None:
    """HTTP/2 frames every body: without a Content-Length it is stored as well."""
    network = object()
    status, told = 200, {**FRESH, "Cache-Control": "max-age=60, stale-if-error=600"}

    def answer(request: httpx.Request) -> httpx.Response:
        extensions = {"http_version": b"HTTP/2", "network_stream": network, "stream_id": 1}
        return httpx.Response(status, headers=told, stream=Pieces(b"one", b"two"), extensions=extensions)

    def fetched(how: str, *, over: str) -> None:
        response = ask(cache, httpx.Request("GET", "https://mock.test/"), answer, True)
        assert (response.status_code, response.content) == (200, b"onetwo")
        assert how in response.headers["cache-status"]
        assert response.http_version == over
        assert (response.extensions.get("network_stream") is network) is (over == "HTTP/2")

    fetched("fwd=uri-miss; fwd-status=200; stored", over="HTTP/2")
    fetched("hit", over="HTTP/1.1")
    world.clock.advance(61)
    status = 304
    fetched("fwd=stale; fwd-status=304", over="HTTP/2")
    world.clock.advance(61)
    status = 503
    fetched("detail=stale-if-error", over="HTTP/1.1")


@pytest.mark.only("httpx")
def test_a_hit_comes_from_no_network_whatever_is_validated_meanwhile() -> None:
    network = httpx.MockTransport(lambda _: httpx.Response(304, extensions={"http_version": b"HTTP/2"}))

    class Validating:
        options = CacheOptions()

        def fetch(self, request: Request, send: Send, caller: Caller) -> Fetched:
            send(request)
            return Fetched(
                Response(200, Fields()), SimpleNamespace(read=bytes, close=bool), status=CacheStatus(hit=True)
            )

    transport = CacheTransport(network, Validating())  # type: ignore[arg-type]
    assert httpx.Client(transport=transport).get("https://mock.test/").http_version == "HTTP/1.1"


@EITHER
@pytest.mark.only("httpx")
def test_a_request_about_the_whole_server_passes_by(ask: Ask, cache: Cache) -> None:
    """RFC 9110 section 9.3.7: ``OPTIONS *``."""
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(204)

    request = httpx.Request("OPTIONS", "https://mock.test/", extensions={"target": b"*"})
    response = ask(cache, request, answer, True)
    assert asked == [request]
    assert "cache-status" not in response.headers


@EITHER
@pytest.mark.only("httpx")
def test_what_iterates_over_an_inner_stream_is_closed_before_the_stream(ask: Ask, world: World) -> None:
    """A caller stops half way; what is too large to be stored waits for its reader."""
    pieces = Pieces(*[bytes(MIB)] * 5)

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers=FRESH, stream=pieces, extensions={"http_version": b"HTTP/2"})

    ask(world.cache(max_entry_size=1000), httpx.Request("GET", "https://mock.test/"), answer, False)
    assert pieces.closed[:2] == ["iterator", "stream"]


@pytest.mark.only("requests")
def test_what_could_not_send_is_refused_at_once(cache: Cache) -> None:
    ours: Any = cache
    with pytest.raises(TypeError, match=NO_CACHE + "<requests.adapters.HTTPAdapter"):
        CacheAdapter(HTTPAdapter(), ours)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"inner has to be an adapter, such as HTTPAdapter\(\), not <vllm_http_cache"):
        CacheAdapter(cache, ours)


def through(cache: Cache, fields: dict[str, str], body: Any, original: Any = None) -> list[requests.Response]:
    """What two GETs give over an adapter whose raw responses are not urllib3's own."""

    class Inner(BaseAdapter):
        def send(self, request: requests.PreparedRequest, **how: Any) -> requests.Response:  # type: ignore[override]
            raw = HTTPResponse(body, fields, 200, original_response=original, preload_content=False)
            return HTTPAdapter().build_response(request, raw)

        def close(self) -> None:
            pass

    with requests.Session() as session:
        session.mount("https://", CacheAdapter(cache, Inner()))
        return [session.get("https://mock.test/") for _ in range(2)]


@pytest.mark.only("requests")
def test_chunks_that_somebody_has_taken_off_already(cache: Cache) -> None:
    """As what replays or mocks does: the fields are the origin's, the octets lie in a file."""
    original = SimpleNamespace(chunked=False, msg=HTTPMessage(), isclosed=lambda: True, close=lambda: None)
    answers = through(cache, {**FRESH, "Transfer-Encoding": "chunked"}, io.BytesIO(b"whole"), original)
    assert [answer.content for answer in answers] == [b"whole"] * 2
    assert "; hit" in answers[1].headers["cache-status"]


@pytest.mark.only("requests")
def test_a_raw_response_without_a_body(cache: Cache) -> None:
    answers = through(cache, {**FRESH, "Content-Length": "0"}, None)
    assert [answer.content for answer in answers] == [b""] * 2
    assert "; hit" in answers[1].headers["cache-status"]
    assert reading(HTTPResponse(preload_content=False))() == b""


@pytest.mark.only("requests")
def test_what_has_come_of_a_chunk_is_given_before_its_end(cache: Cache, origin: Origin) -> None:
    more = threading.Event()
    head = b"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nTransfer-Encoding: chunked\r\n\r\n"
    url = origin.on("/", Answer(body=[head + b"5\r\non", more, b"e..\r\n0\r\n\r\n"], framing="raw"))
    with requests.Session() as session:
        session.mount("http://", CacheAdapter(cache))
        with session.get(url, stream=True, timeout=5) as response:
            pieces = response.iter_content(5)
            assert next(pieces) == b"on"
            more.set()
            assert b"".join(pieces) == b"e.."


@pytest.mark.only("requests")
def test_a_file_that_is_closed_is_empty_as_http_clients(cache: Cache, origin: Origin) -> None:
    """Also where it has failed before."""
    url = origin.on("/", Answer(fields=FRESH, body=b"whole", length=6, end="cut"))
    with requests.Session() as session:
        session.mount("http://", CacheAdapter(cache))
        with session.get(url, stream=True) as response:
            with pytest.raises(requests.exceptions.ChunkedEncodingError):
                list(response.iter_content(10))
            file: Any = response.raw._fp
            file.close()
            assert file.read1() == b""
