"""What the cache gets from the network through a session, and answers that go through untouched."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import aiohttp
import pytest
from aiohttp import hdrs
from aiohttp.client_proto import ResponseHandler

from tests.aiohttp.stand_ins import Body, Script, passing, reading, run, session_on, whole
from tests.origin import Answer, Origin, Part
from vllm_http_cache.aiohttp import CacheMiddleware
from vllm_http_cache.rfc9111.message import Fields, Request, Response
from vllm_http_cache.wire import AsyncSend, Caller, Fetched, Reply

TEXT = b"hello world " * 5000
CODED = gzip.compress(TEXT)
GZIP = {"Content-Encoding": "gzip", "ETag": '"g"'}


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
@pytest.mark.parametrize("decode", [True, False])
def test_the_cache_reads_coded_octets(origin: Origin, framing: Any, decode: bool) -> None:
    url = origin.on("/", Answer(200, GZIP, CODED, framing))
    replies: list[tuple[Reply, bytes]] = []

    async def main() -> None:
        async with session_on(reading(replies), auto_decompress=decode) as session, session.get(url) as response:
            assert await response.read() == (TEXT if decode else CODED)
            assert response.headers[hdrs.CONTENT_ENCODING] == "gzip"
        [(reply, body)] = replies
        assert body == CODED
        assert reply.framed is (framing != "close")
        assert reply.response.fields.get("content-encoding") == "gzip"
        assert reply.response.reason == "OK"

    run(main)


def test_an_untouched_answer_shows_the_callers_request(origin: Origin) -> None:
    url = origin.on("/", Answer(500))

    async def validate(request: Request, send: AsyncSend, caller: Caller) -> Fetched:
        conditional = replace(request, fields=Fields((*request.fields, ("If-None-Match", '"1"'))))
        reply = await send(conditional)
        return Fetched(reply.response, reply.source, reply.native)

    async def main() -> None:
        async with session_on(Script(validate)) as session, session.get(url, headers={"X-Own": "1"}) as response:
            info = response.request_info
            assert (info.method, str(info.real_url), info.headers["X-Own"]) == ("GET", url, "1")
            assert hdrs.IF_NONE_MATCH not in info.headers
            with pytest.raises(aiohttp.ClientResponseError) as caught:
                response.raise_for_status()
            assert caught.value.request_info is info

    run(main)
    assert origin.seen()[0].get("if-none-match") == '"1"'


@pytest.mark.parametrize("framing", ["length", "chunked", "close"])
@pytest.mark.parametrize("decode", [True, False])
@pytest.mark.parametrize("slow", [True, False])
def test_untouched_answers_are_decoded(origin: Origin, framing: Any, decode: bool, slow: bool) -> None:
    parts: list[Part] = [CODED[:50], 0.1, CODED[50:]] if slow else [CODED]
    url = origin.on("/", Answer(200, GZIP, parts, framing))

    async def main() -> None:
        async with session_on(passing(), auto_decompress=decode) as session:
            for _ in range(2):
                async with session.get(url) as response:
                    assert await response.read() == (TEXT if decode else CODED)
                    assert response.headers[hdrs.CONTENT_ENCODING] == "gzip"
                    assert response.headers["Cache-Status"] == "stand-in"
                    assert (b"Cache-Status", b"stand-in") in response.raw_headers

    run(main)
    assert origin.count() == 2


def test_untouched_answers_without_coding_are_the_origins_own(origin: Origin) -> None:
    url = origin.on("/", Answer(200, {"X-A": "1"}, [b"some", 0.1, b"more"]))

    async def main() -> None:
        async with session_on(passing()) as session, session.get(url) as response:
            connection = response.connection
            assert connection is not None
            assert connection.transport is not None
            assert connection.transport.get_extra_info("peername")[1] == origin.port
            assert response.headers["Cache-Status"] == "stand-in"
            assert response.headers["X-A"] == "1"
            assert await response.read() == b"somemore"

    run(main)


def test_the_answer_to_what_is_not_a_get_is_the_origins_own(origin: Origin) -> None:
    url = origin.on("/", Answer(200, GZIP, [CODED[:50], 0.1, CODED[50:]]))

    async def main() -> None:
        async with session_on(passing()) as session, session.post(url, data=b"content") as response:
            assert response.connection is not None
            assert response.connection.transport is not None
            assert response.connection.transport.get_extra_info("peername")[1] == origin.port
            assert await response.read() == TEXT

    run(main)


@pytest.mark.parametrize("coded", [True, False])
def test_untouched_answers_keep_the_total_timeout(origin: Origin, coded: bool) -> None:
    url = origin.on("/", Answer(200, GZIP if coded else {}, [CODED[:50], 5.0, CODED[50:]]))

    async def main() -> None:
        async with session_on(passing()) as session:
            with pytest.raises(TimeoutError):
                async with session.get(url, timeout=aiohttp.ClientTimeout(total=0.3)) as response:
                    await response.read()

    run(main)


@pytest.mark.parametrize("coded", [True, False])
def test_untouched_answers_keep_the_read_timeout(origin: Origin, coded: bool) -> None:
    url = origin.on("/", Answer(200, GZIP if coded else {}, [CODED[:50], 5.0, CODED[50:]]))

    async def main() -> None:
        async with session_on(passing()) as session:
            with pytest.raises(aiohttp.SocketTimeoutError):
                async with session.get(url, timeout=aiohttp.ClientTimeout(sock_read=0.3)) as response:
                    await response.read()

    run(main)


@pytest.mark.parametrize("coded", [True, False])
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_cut_short(origin: Origin, coded: bool, framing: Any) -> None:
    url = origin.on("/", Answer(200, GZIP if coded else {}, [CODED[:50]], framing, length=len(CODED), end="cut"))
    replies: list[tuple[Reply, bytes]] = []

    async def main() -> None:
        for cache in (passing(), reading(replies)):
            async with session_on(cache) as session:
                with pytest.raises(aiohttp.ClientPayloadError):
                    async with session.get(url) as response:
                        await response.read()

    run(main)
    assert not replies


@pytest.mark.parametrize("coded", [True, False])
def test_untouched_and_unread(origin: Origin, coded: bool) -> None:
    url = origin.on("/", Answer(200, GZIP if coded else {}, [CODED[:50], 10.0, CODED[50:]]))

    async def main() -> None:
        async with session_on(passing()) as session:
            async with session.get(url):
                pass
            assert session.connector is not None
            assert not session.connector._acquired

    run(main)


def test_sent_twice_with_other_fields(origin: Origin) -> None:
    url = origin.on("/", Answer(304, {"ETag": '"x"'}), Answer(200, {}, b"new"))

    async def afetch(request: Request, send: AsyncSend, caller: Caller) -> Fetched:
        condition = ("If-None-Match", '"caf\u00c3\u00a9"')
        first = await send(Request("GET", request.uri, request.fields.replaced(condition, ("X-Mine", "cache's"))))
        assert first.response.status == 304
        assert first.framed
        await first.source.aclose()
        reply = await send(request)
        return Fetched(reply.response, reply.source, reply.native)

    async def main() -> None:
        fields = {"X-Mine": "caller's", "X-Too": "1"}
        async with session_on(Script(afetch)) as session, session.get(url, headers=fields) as response:
            assert await response.read() == b"new"
            assert response.request_info.headers["X-Mine"] == "caller's"

    run(main)
    first, second = origin.seen()
    assert first.get("If-None-Match") == '"caf\u00c3\u00a9"'
    assert (first.get("X-Mine"), second.get("X-Mine")) == ("cache's", "caller's")
    assert second.get("If-None-Match") is None
    assert first.get("X-Too") == second.get("X-Too") == "1"
    assert len(first.fields) == len(second.fields) + 1


def test_a_field_that_aiohttp_cannot_send_is_left_out(origin: Origin) -> None:
    """Octets that are not UTF-8, in a validator say: it would send others in their place."""
    url = origin.on("/", Answer(200, {}, b"new"))

    async def afetch(request: Request, send: AsyncSend, caller: Caller) -> Fetched:
        reply = await send(Request("GET", request.uri, request.fields.replaced(("If-None-Match", '"caf\u00e9"'))))
        return Fetched(reply.response, reply.source, reply.native)

    async def main() -> None:
        async with session_on(Script(afetch)) as session, session.get(url) as response:
            assert await response.read() == b"new"

    run(main)
    assert origin.seen()[0].get("If-None-Match") is None


def test_many_sends_on_one_connection(origin: Origin) -> None:
    url = origin.on("/", Answer(200, GZIP, CODED, "chunked"))
    replies: list[tuple[Reply, bytes]] = []

    async def main() -> None:
        async with session_on(reading(replies, times=5)) as session:
            for _ in range(2):
                async with session.get(url) as response:
                    assert await response.read() == TEXT
            assert origin.connections() == 1

    run(main)
    assert [body for _, body in replies] == [CODED] * 10


def test_sent_later_in_the_background(origin: Origin) -> None:
    url = origin.on("/", Answer(200, GZIP, [CODED[:50], 0.3, CODED[50:]]))
    later: list[asyncio.Task[bytes]] = []

    async def afetch(request: Request, send: AsyncSend, caller: Caller) -> Fetched:
        async def work() -> bytes:
            await asyncio.sleep(0.1)
            return await whole(await send(request))

        later.append(asyncio.create_task(work()))
        return Fetched(Response(200), Body([b"stale"]))

    async def main() -> None:
        async with session_on(Script(afetch)) as session:
            async with session.get(url, timeout=aiohttp.ClientTimeout(total=1.0)) as response:
                assert await response.read() == b"stale"
            assert await later.pop() == CODED
            async with session.get(url, timeout=aiohttp.ClientTimeout(total=0.2)):
                pass
            with pytest.raises(TimeoutError):  # which it has to itself
                await later.pop()
            async with session.get(url):
                pass
        with pytest.raises(aiohttp.ClientConnectionError, match="closed"):
            await later.pop()

    run(main)


def test_the_callers_timeout_is_not_that_of_others_who_read_along(origin: Origin) -> None:
    url = origin.on("/", Answer(200, {}, [b"first", 0.5, b"second"]))
    pumps: list[asyncio.Task[bytes]] = []

    async def afetch(request: Request, send: AsyncSend, caller: Caller) -> Fetched:
        reply = await send(request)
        pumps.append(asyncio.create_task(whole(reply)))
        return Fetched(Response(200), Body([b"first", asyncio.Event()]))

    async def main() -> None:
        async with session_on(Script(afetch)) as session:
            with pytest.raises(TimeoutError):
                async with session.get(url, timeout=aiohttp.ClientTimeout(total=0.2)) as response:
                    await response.read()
            assert await pumps[0] == b"firstsecond"

    run(main)


def test_a_session_that_closes_ends_what_it_was_reading(origin: Origin) -> None:
    url = origin.on("/", Answer(200, {}, [b"first", 10.0, b"second"]))
    pumps: list[asyncio.Task[bytes]] = []

    async def afetch(request: Request, send: AsyncSend, caller: Caller) -> Fetched:
        pumps.append(asyncio.create_task(whole(await send(request))))
        return Fetched(Response(200), Body([b"first"]))

    async def main() -> None:
        async with session_on(Script(afetch)) as session, session.get(url):
            await asyncio.sleep(0.1)
        with pytest.raises(aiohttp.ClientError):
            await asyncio.wait_for(pumps[0], 1.0)

    if not hasattr(ResponseHandler, "closed"):
        pytest.skip("this aiohttp does not say when a connection is closed")
    run(main)


def drifted(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """An aiohttp that is built differently."""
    if how == "settings":
        monkeypatch.setattr("vllm_http_cache.aiohttp._settings", lambda handler: {})
    else:
        arm = ResponseHandler.set_response_params
        armed: list[ResponseHandler] = []

        def set_response_params(self: ResponseHandler, **settings: Any) -> None:
            if self in armed:  # by the session, so that this is ours
                raise TypeError("no such keyword")
            armed.append(self)
            arm(self, **settings)

        monkeypatch.setattr(ResponseHandler, "set_response_params", set_response_params)


@pytest.mark.parametrize("how", ["settings", "parser"])
def test_another_aiohttp_stores_decoded(origin: Origin, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    url = origin.on("/", Answer(200, GZIP, CODED))
    replies: list[tuple[Reply, bytes]] = []
    drifted(monkeypatch, how)

    async def main() -> None:
        async with session_on(reading(replies)) as session, session.get(url) as response:
            assert await response.read() == TEXT
            assert hdrs.CONTENT_ENCODING not in response.headers
            assert hdrs.CONTENT_LENGTH not in response.headers
        assert replies[0][1] == TEXT
        async with session_on(passing()) as session, session.get(url) as response:
            assert await response.read() == TEXT

    run(main)


@pytest.mark.parametrize("how", ["settings", "parser"])
def test_another_aiohttp_leaves_what_it_does_not_decode(
    origin: Origin, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    coded, plain = origin.on("/coded", Answer(200, GZIP, CODED)), origin.on("/", Answer(200, {}, b"plain"))
    replies: list[tuple[Reply, bytes]] = []
    drifted(monkeypatch, how)

    async def main() -> None:
        async with session_on(reading(replies), auto_decompress=False) as session, session.get(coded) as response:
            assert await response.read() == CODED
            assert response.headers[hdrs.CONTENT_ENCODING] == "gzip"
        async with session_on(reading(replies)) as session, session.get(plain) as response:
            assert await response.read() == b"plain"

    run(main)
    assert [body for _, body in replies] == [CODED, b"plain"]
    assert [reply.response.fields.get("content-length") for reply, _ in replies] == [str(len(CODED)), "5"]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_among_other_middlewares(origin: Origin, place: int) -> None:
    url = origin.on("/", Answer(200, GZIP, CODED))
    replies: list[tuple[Reply, bytes]] = []

    async def other(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        return await handler(request)

    async def main() -> None:
        middlewares: list[aiohttp.ClientMiddlewareType] = [other, other]
        middlewares.insert(place, CacheMiddleware(reading(replies)))  # type: ignore[arg-type]
        async with aiohttp.ClientSession(middlewares=middlewares) as session, session.get(url) as response:
            assert await response.read() == TEXT

    run(main)
    assert replies[0][1] == CODED


def around(handler: aiohttp.ClientHandlerType) -> aiohttp.ClientHandlerType:
    async def call(request: aiohttp.ClientRequest) -> aiohttp.ClientResponse:
        return await inner(request)

    inner = handler
    return call


@pytest.mark.parametrize("wrapped", [partial, around])
def test_what_the_session_was_told_cannot_be_seen_through_others_handlers(
    origin: Origin, wrapped: Callable[[aiohttp.ClientHandlerType], aiohttp.ClientHandlerType]
) -> None:
    """A middleware that calls ours with a handler of its own."""
    url = origin.on("/", Answer(200, GZIP, CODED))
    replies: list[tuple[Reply, bytes]] = []
    ours: Any = CacheMiddleware(reading(replies))  # type: ignore[arg-type]

    async def composed(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        answer: aiohttp.ClientResponse = await ours(request, wrapped(handler))
        return answer

    async def main() -> None:
        async with aiohttp.ClientSession(middlewares=[composed]) as session, session.get(url) as response:
            assert await response.read() == TEXT

    run(main)
    assert replies[0][1] == TEXT, "stored decoded"
