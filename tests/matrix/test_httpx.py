"""What is httpx' own: extensions, streams, errors, other transports below ours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import anyio
import httpx
import pytest

from tests.origin import Answer
from vllm_http_cache import Cache
from vllm_http_cache.httpx import EXTENSION, AsyncCacheTransport, CacheTransport

if TYPE_CHECKING:
    from tests.conftest import World
    from tests.origin import Origin

pytestmark = pytest.mark.only("httpx")
FRESH = {"Cache-Control": "max-age=60", "ETag": '"1"'}


@pytest.fixture
def transport(cache: Cache) -> Iterator[CacheTransport]:
    with CacheTransport(httpx.HTTPTransport(verify=False), cache) as transport:
        yield transport


@pytest.fixture
def session(transport: CacheTransport) -> Iterator[httpx.Client]:
    with httpx.Client(transport=transport) as client:
        yield client


def test_the_target_extension_is_the_target(session: httpx.Client, origin: Origin) -> None:
    origin.on("/a b", Answer(404))
    origin.on("/x", lambda seen: Answer(fields=FRESH, body=seen.target.encode()))
    for target in (b"/x?a|b", b"/x?a%7Cb"):
        for hit in (False, True):
            response = session.get(origin.url("/other"), extensions={"target": target})
            assert response.content == target
            assert ("; hit" in response.headers["cache-status"]) is hit


def test_a_request_about_the_whole_server_passes_by(session: httpx.Client, origin: Origin) -> None:
    """RFC 9110 section 9.3.7: ``OPTIONS *``."""
    origin.on("*", Answer(204))
    response = session.options(origin.url("/"), extensions={"target": b"*"})
    assert (response.status_code, origin.seen()[0].target) == (204, "*")
    assert "cache-status" not in response.headers


def test_not_even_the_whole_server_is_asked_in_mode_only_if_cached(cache: Cache, origin: Origin) -> None:
    alone = Cache(cache.storage, replace(cache.options, mode="only-if-cached"))
    with httpx.Client(transport=CacheTransport(httpx.HTTPTransport(), alone)) as client:
        response = client.options(origin.url("/"), extensions={"target": b"*"})
    assert (response.status_code, origin.count()) == (504, 0)


def test_field_values_are_octets(session: httpx.Client, origin: Origin, world: World) -> None:
    """On first fetch and on validation alike."""
    url = origin.on("/", Answer(fields={"Cache-Control": "max-age=1", "ETag": '"1"'}), Answer(304))
    for _ in range(2):
        session.get(url, headers=[(b"X-Own", b"caf\xe9"), (b"X-Own", b"\xe2\x82\xac"), (b"x-CASE", b"1")])
        world.clock.advance(2)
    for seen in origin.seen():
        own = [line for line in seen.fields if line[0].lower().startswith("x-")]
        assert own == [("X-Own", "caf\xe9"), ("X-Own", "\xe2\x82\xac"), ("x-CASE", "1")]


def test_a_streamed_request_body_is_sent_once_and_whole(session: httpx.Client, origin: Origin) -> None:
    url = origin.on("/", Answer(201))

    def pieces() -> Iterator[bytes]:
        yield b"one "
        yield b"two"

    assert session.post(url, content=pieces()).status_code == 201
    assert [seen.body for seen in origin.seen()] == [b"one two"]


def test_extensions_of_an_answer(session: httpx.Client, origin: Origin) -> None:
    url = origin.on(
        "/",
        Answer(
            body=b"HTTP/1.1 200 Very Well\r\nCache-Control: max-age=60\r\nContent-Length: 2\r\n\r\nok", framing="raw"
        ),
    )
    for _ in range(2):
        response = session.get(url)
        assert (response.reason_phrase, response.http_version, response.text) == ("Very Well", "HTTP/1.1", "ok")
        assert response.extensions[EXTENSION].response.status == 200


def test_ambiguous_urls_are_httpx_errors(session: httpx.Client) -> None:
    with pytest.raises(httpx.InvalidURL):
        session.get("http://127.0.0.1\\.good.test/")


@pytest.mark.parametrize("url", ["/path", "//host.test/path", "http:///path"])
def test_a_url_without_an_origin_is_of_no_supported_protocol(cache: Cache, url: str) -> None:
    """And so it says whatever the cache would say of it."""
    raised = []
    inner = httpx.HTTPTransport(verify=False)
    for transport in (inner, CacheTransport(inner, cache), CacheTransport(inner, cache, url_policy=print)):
        with httpx.Client(transport=transport) as client, pytest.raises(httpx.UnsupportedProtocol) as caught:
            client.get(url)
        assert caught.value.request.url.path == "/path"
        raised.append(str(caught.value))
    assert len(set(raised)) == 1


def test_an_empty_reason_phrase_stays_empty(session: httpx.Client, origin: Origin) -> None:
    head = b"HTTP/1.1 200 \r\nCache-Control: max-age=60\r\nContent-Length: 2\r\n\r\n"
    url = origin.on("/", Answer(body=head + b"ok", framing="raw"))
    for _ in range(2):
        assert session.get(url).reason_phrase == ""


def test_a_transport_without_reason_phrases_gets_httpx_own(cache: Cache) -> None:
    inner = httpx.MockTransport(lambda _: httpx.Response(404, headers=FRESH))
    with httpx.Client(transport=CacheTransport(inner, cache)) as client:
        for _ in range(2):
            assert client.get("http://mock.test/").reason_phrase == "Not Found"


def test_it_stands_on_any_transport(cache: Cache) -> None:
    """A mock below, as respx and others are: no extensions, a body that is already there."""
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return httpx.Response(200, json={"n": len(asked)}, headers=FRESH if request.url.path == "/kept" else {})

    with httpx.Client(transport=CacheTransport(httpx.MockTransport(answer), cache)) as client:
        for _ in range(2):
            assert client.get("http://mock.test/kept").json() == {"n": 1}
        assert client.get("http://mock.test/").json() == {"n": 2}
        assert client.get("http://mock.test:80/kept").json() == {"n": 1}  # the default port
        assert client.get("https://mock.test/kept").json() == {"n": 3}


def test_entering_and_closing_reach_the_inner_transport(cache: Cache) -> None:
    done: list[str] = []

    class Inner(httpx.BaseTransport):
        def __enter__(self) -> Self:
            done.append("enter")
            return self

        def __exit__(self, *_: object) -> None:
            done.append("exit")

        def close(self) -> None:
            done.append("close")

    with CacheTransport(Inner(), cache) as transport:
        transport.close()
    assert done == ["enter", "close", "exit"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_one_cache_under_successive_event_loops(cache: Cache, origin: Origin, backend: str) -> None:
    url = origin.on("/", Answer(fields=FRESH, body=b"whole"))

    async def fetch() -> str:
        async with httpx.AsyncClient(
            transport=AsyncCacheTransport(httpx.AsyncHTTPTransport(verify=False), cache)
        ) as client:
            response = await client.get(url)
            assert response.content == b"whole"
            return response.headers["cache-status"]

    said = [anyio.run(fetch, backend=backend) for _ in range(3)]
    assert ["; hit" in status for status in said] == [False, True, True]


def test_a_streamed_request_body_of_an_async_client(cache: Cache, origin: Origin) -> None:
    url = origin.on("/", Answer(201))

    async def pieces() -> AsyncIterator[bytes]:
        yield b"one "
        yield b"two"

    async def post() -> int:
        inner: Any = httpx.AsyncHTTPTransport(verify=False)
        async with httpx.AsyncClient(transport=AsyncCacheTransport(inner, cache)) as client:
            return (await client.post(url, content=pieces())).status_code

    assert anyio.run(post) == 201
    assert [seen.body for seen in origin.seen()] == [b"one two"]


def test_what_the_cache_has_not_changed_is_sent_as_it_is(cache: Cache, origin: Origin) -> None:
    sent: list[httpx.Request] = []

    class Noting(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            sent.append(request)
            return super().handle_request(request)

    url = origin.on("/", Answer(fields={"Cache-Control": "no-cache", "ETag": '"1"'}, body=b"body"))
    with httpx.Client(transport=CacheTransport(Noting(), cache)) as session:
        for _ in range(2):
            request = session.build_request("GET", url)
            assert session.send(request).content == b"body"
            assert (sent.pop() is request) is (origin.requests[-1].get("if-none-match") is None)
    assert origin.count() == 2
