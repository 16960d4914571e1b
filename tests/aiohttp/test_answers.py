"""Answers that come from the cache: what a caller sees is what aiohttp would have shown."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from importlib.util import find_spec
from typing import Any

import aiohttp
import pytest
from aiohttp import hdrs

from tests.aiohttp.stand_ins import STATUS, Body, Part, Script, run, session_on, stored
from vllm_http_cache.aiohttp import refuse
from vllm_http_cache.rfc9111.message import Fields, Request, Response
from vllm_http_cache.wire import AsyncSend, Caller, Fetched

TEXT = b"hello world " * 50_000
GZIP = ("Content-Encoding", "gzip")
URL = "http://origin.test/a%2Fb?x=%28y%29"


def codings() -> dict[str, bytes]:
    raw = zlib.compressobj(wbits=-15)
    coded = {
        "gzip": gzip.compress(TEXT),
        "deflate": zlib.compress(TEXT),
        "Deflate": raw.compress(TEXT) + raw.flush(),  # as some servers do
    }
    if find_spec("brotli"):
        import brotli

        coded["br"] = brotli.compress(TEXT)
    return coded


@pytest.mark.parametrize("coding", codings())
@pytest.mark.parametrize("at_once", [True, False])
def test_stored_codings_are_decoded(coding: str, at_once: bool) -> None:
    coded = codings()[coding]
    parts: list[Part] = [coded] if at_once else [0.0, coded[:100], 0.0, coded[100:]]
    cache, body = stored(*parts, fields=[("Content-Encoding", coding), ("Content-Length", str(len(coded)))])

    async def main() -> None:
        async with session_on(cache) as session, session.get(URL) as response:
            assert await response.read() == TEXT
            assert response.headers[hdrs.CONTENT_ENCODING] == coding
            assert response.content_length == len(coded)
        assert body.closed

    run(main)


@pytest.mark.parametrize("where", ["session", "request"])
def test_auto_decompress_off(where: str) -> None:
    coded = gzip.compress(TEXT)
    cache, _ = stored(coded, fields=[GZIP])
    off: dict[str, Any] = {"auto_decompress": False}

    async def main() -> None:
        session = session_on(cache, **(off if where == "session" else {}))
        async with session, session.get(URL, **(off if where == "request" else {})) as response:
            assert await response.read() == coded

    run(main)


def test_a_coding_aiohttp_does_not_know_stays() -> None:
    cache, _ = stored(b"coded", fields=[("Content-Encoding", "gzip, br")])

    async def main() -> None:
        async with session_on(cache) as session, session.get(URL) as response:
            assert await response.read() == b"coded"

    run(main)


@pytest.mark.parametrize("first", [b"", b"so far"])
def test_damaged_coding_is_a_payload_error(first: bytes) -> None:
    parts: list[Part] = [first, 0.0] if first else []
    cache, body = stored(*parts, b"not gzip", fields=[GZIP])

    async def main() -> None:
        async with session_on(cache) as session, session.get(URL) as response:
            with pytest.raises(aiohttp.ClientPayloadError, match="gzip"):
                await response.read()
            assert body.closed

    run(main)


def test_head_of_an_answer() -> None:
    fields = [("X-A", "1"), ("x-a", "2"), ("X-Text", "caf\u00c3\u00a9"), ("Content-Type", "text/plain; charset=utf-8")]
    cache, _ = stored("ümlaut".encode(), fields=fields)

    async def main() -> None:
        session = session_on(cache)
        async with session, session.get(URL + "#fragment", headers={"X-Mine": "é"}) as response:
            assert (response.status, response.reason, response.ok) == (200, "Reason", True)
            assert response.headers.getall("X-A") == ["1", "2"]
            assert response.headers["x-text"] == "café"
            assert (b"X-Text", "café".encode()) in response.raw_headers
            assert response.raw_headers[1][0] == b"x-a"
            assert response.version == aiohttp.HttpVersion11
            assert response.method == "GET"
            assert response.url.raw_fragment == ""
            assert response.real_url.raw_fragment == "fragment"
            assert response.request_info.headers["X-Mine"] == "é"
            assert response.request_info.url == response.url
            assert response.history == ()
            assert response.charset == "utf-8"
            assert await response.text() == "ümlaut"
        asked = cache.asked[0]
        assert asked.method == "GET"
        assert asked.uri.startswith("http://origin.test/a%2Fb?x=")
        assert asked.fields.get("x-mine") == "\u00c3\u00a9"
        assert asked.fields.get("host") == "origin.test"

    run(main)


def test_cookies_are_set_as_by_the_origin() -> None:
    cookies = [("Set-Cookie", "a=1; Path=/"), ("Set-Cookie", "b=2; Path=/a")]
    cache, _ = stored(b"x", fields=cookies)

    async def main() -> None:
        async with session_on(cache) as session:
            async with session.get(URL) as response:
                assert {name: morsel.value for name, morsel in response.cookies.items()} == {"a": "1", "b": "2"}
            assert {cookie.key for cookie in session.cookie_jar} == {"a", "b"}
            (await session.get(URL)).release()
            assert set((cache.asked[1].fields.get("cookie") or "").split("; ")) == {"a=1", "b=2"}

    run(main)


@pytest.mark.parametrize("method, status", [("HEAD", 200), ("GET", 304), ("GET", 204)])
def test_no_content(method: str, status: int) -> None:
    cache, body = stored(status=status, fields=[("Content-Length", "1000"), GZIP])

    async def main() -> None:
        async with session_on(cache) as session, session.request(method, URL) as response:
            assert response.status == status
            assert await response.read() == b""
            assert response.headers[hdrs.CONTENT_LENGTH] == "1000"
            assert body.closed

    run(main)


def test_raise_for_status() -> None:
    cache, body = stored(b"gone", status=410)

    async def main() -> None:
        async with session_on(cache) as session:
            with pytest.raises(aiohttp.ClientResponseError, match="410"):
                await session.get(URL, raise_for_status=True)
            assert body.closed
            async with session.get(URL) as response:
                with pytest.raises(aiohttp.ClientResponseError, match="Reason"):
                    response.raise_for_status()

    run(main)


def test_the_first_octets_come_first() -> None:
    async def main() -> None:
        go = asyncio.Event()
        cache, _ = stored(b"first", go, b"second")
        async with session_on(cache) as session, session.get(URL) as response:
            assert await response.content.readany() == b"first"
            go.set()
            assert await response.content.readany() == b"second"
            assert await response.content.readany() == b""

    run(main)


@pytest.mark.parametrize("coded", [False, True])
def test_a_slow_reader_holds_the_body_back(coded: bool) -> None:
    size = (64 if coded else 8) * 1024 * 1024
    octets = gzip.compress(bytes(size)) if coded else bytes(size)
    step = 1024 if coded else 128 * 1024
    cache, body = stored(
        *(octets[at : at + step] for at in range(0, len(octets), step)), fields=[GZIP] if coded else []
    )

    async def main() -> None:
        async with session_on(cache, read_bufsize=64 * 1024) as session, session.get(URL) as response:
            received = 0
            async for chunk in response.content.iter_chunked(32 * 1024):
                await asyncio.sleep(0)
                received += len(chunk)
                assert coded or body.given - received <= (128 + 128) * 1024
            assert received == size
            assert body.closed

    run(main)


@pytest.mark.parametrize("how", ["read", "iter_any", "iter_chunks", "readline"])
def test_ways_of_reading(how: str) -> None:
    line = b"x" * 999 + b"\n"
    cache, _ = stored(*[line * 100] * 50)

    async def main() -> None:
        async with session_on(cache) as session, session.get(URL) as response:
            if how == "read":
                octets = await response.read()
            elif how == "iter_any":
                octets = b"".join([chunk async for chunk in response.content.iter_any()])
            elif how == "iter_chunks":
                octets = b"".join([chunk async for chunk, _ in response.content.iter_chunks()])
            else:
                octets = b"".join([one async for one in response.content])
            assert octets == line * 5000

    run(main)


def test_refuse() -> None:
    refused = []

    async def afetch(request: Request, send: AsyncSend, caller: Caller) -> Fetched:
        return Fetched(Response(200, Fields([STATUS])), Body([b"x"]), refuse=lambda: refused.append(request.uri))

    async def main() -> None:
        async with session_on(Script(afetch)) as session, session.get(URL) as response:
            refuse(response)
            assert refused == [str(response.url)]

    run(main)


def test_own_response_class() -> None:
    class Mine(aiohttp.ClientResponse):
        pass

    cache, _ = stored(b"x")

    async def main() -> None:
        async with session_on(cache, response_class=Mine) as session, session.get(URL) as response:
            assert isinstance(response, Mine)
            assert await response.read() == b"x"

    run(main)


def test_traces_see_the_answer() -> None:
    seen: list[str] = []
    trace = aiohttp.TraceConfig()

    async def end(session: Any, context: Any, params: aiohttp.TraceRequestEndParams) -> None:
        seen.append(str(params.response.status))

    async def chunk(session: Any, context: Any, params: aiohttp.TraceResponseChunkReceivedParams) -> None:
        seen.append(params.chunk.decode())

    trace.on_request_end.append(end)
    trace.on_response_chunk_received.append(chunk)
    cache, _ = stored(b"x")

    async def main() -> None:
        async with session_on(cache, trace_configs=[trace]) as session, session.get(URL) as response:
            await response.read()
        assert seen == ["200", "x"]

    run(main)
