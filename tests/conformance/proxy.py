"""A gateway on loopback with one of our transports in it. Else it adds nothing, hides nothing and decides nothing.

It goes to the origin on a new connection for each request: some of the suite's responses are longer than they say, and
what is left over would be taken for the answer to somebody else's request.

``python -m tests.conformance.proxy --client httpx --origin http://127.0.0.1:8000 --folder FOLDER`` prints the port it
listens at, and runs until its standard input ends.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.conformance.http1 import Lines, Sent, end_to_end, head, read_request, values

if TYPE_CHECKING:
    from vllm_http_cache import Cache

__all__ = ["CLIENTS", "main"]

WORKERS = 128  # requests at once, for the client that needs a thread for each


@dataclass(frozen=True)
class Answer:
    """A client's response, its body still coded and still to come."""

    status: int
    reason: bytes
    fields: Lines
    chunks: AsyncIterator[bytes]


Forward = Callable[[Sent, str], AbstractAsyncContextManager[Answer]]


@asynccontextmanager
async def with_httpx(cache: Cache | None) -> AsyncIterator[Forward]:
    import httpx

    transport: httpx.AsyncBaseTransport = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_keepalive_connections=0))
    if cache is not None:
        from vllm_http_cache.httpx import AsyncCacheTransport

        transport = AsyncCacheTransport(transport, cache)

    @asynccontextmanager
    async def forward(sent: Sent, url: str) -> AsyncIterator[Answer]:
        # A request not made by the client carries none of the client's own fields.
        request = httpx.Request(sent.method.decode(), url, headers=sent.fields, content=sent.body or None)
        response = await client.send(request, stream=True, follow_redirects=False)
        try:
            reason: bytes = response.extensions.get("reason_phrase", b"")
            yield Answer(response.status_code, reason, response.headers.raw, response.aiter_raw())
        finally:
            await response.aclose()

    async with httpx.AsyncClient(transport=transport, trust_env=False, timeout=30) as client:
        yield forward


@asynccontextmanager
async def with_aiohttp(cache: Cache | None) -> AsyncIterator[Forward]:
    import aiohttp
    from multidict import CIMultiDict
    from yarl import URL

    middlewares: tuple[aiohttp.ClientMiddlewareType, ...] = ()
    if cache is not None:
        from vllm_http_cache.aiohttp import CacheMiddleware

        middlewares = (CacheMiddleware(cache),)

    @asynccontextmanager
    async def forward(sent: Sent, url: str) -> AsyncIterator[Answer]:
        fields = CIMultiDict((_text(name), _text(value)) for name, value in sent.fields)
        request = session.request(
            sent.method.decode(),
            URL(url, encoded=True),
            headers=fields,
            data=sent.body or None,
            allow_redirects=False,
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        )
        async with request as response:
            reason = (response.reason or "").encode("utf-8", "surrogateescape")
            yield Answer(response.status, reason, list(response.raw_headers), response.content.iter_any())

    def _text(octets: bytes) -> str:
        return octets.decode("utf-8", "surrogateescape")  # as aiohttp does

    async with aiohttp.ClientSession(
        middlewares=middlewares,
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=30),
    ) as session:
        yield forward


@asynccontextmanager
async def with_requests(cache: Cache | None) -> AsyncIterator[Forward]:
    import requests
    from requests.adapters import BaseAdapter, HTTPAdapter
    from urllib3.util import SKIP_HEADER

    class Bare(HTTPAdapter):
        """Sends no field that the caller has not."""

        def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
            request = request.copy()
            for name in ("Accept-Encoding", "User-Agent"):
                request.headers.setdefault(name, SKIP_HEADER)
            return HTTPAdapter().send(request, *args, **kwargs)  # its pool holds this one connection

    class Stay(requests.Session):
        """Does not read the body of a redirect, which it does to look where it would lead."""

        def resolve_redirects(self, *_: Any, **__: Any) -> Iterator[requests.Response]:
            return iter(())

    pool = ThreadPoolExecutor(WORKERS)
    run = asyncio.get_running_loop().run_in_executor
    adapter: BaseAdapter = Bare()
    if cache is not None:
        from vllm_http_cache.requests import CacheAdapter

        adapter = CacheAdapter(cache, adapter)
    session = Stay()
    session.trust_env = False
    session.mount("http://", adapter)

    def send(sent: Sent, url: str) -> requests.Response:
        fields: dict[str, str] = {}
        for name, value in ((name.decode("latin-1"), value.decode("latin-1")) for name, value in sent.fields):
            fields[name] = f"{fields[name]}, {value}" if name in fields else value  # it knows no repeated fields
        request = requests.Request(sent.method.decode(), url, headers=fields, data=sent.body or None).prepare()
        if not sent.body and "Content-Length" not in fields:
            request.headers.pop("Content-Length", None)
        return session.send(request, stream=True, allow_redirects=False, timeout=30)

    @asynccontextmanager
    async def forward(sent: Sent, url: str) -> AsyncIterator[Answer]:
        response = await run(pool, send, sent, url)
        try:
            fields = [(_octets(name), _octets(value)) for name, value in response.raw.headers.items()]
            chunks = response.raw.stream(65536, decode_content=False)
            yield Answer(response.status_code, _octets(response.reason or ""), fields, _in_pool(chunks))
        finally:
            await run(pool, response.close)

    async def _in_pool(chunks: Any) -> AsyncIterator[bytes]:
        while chunk := await run(pool, partial(next, chunks, b"")):
            yield chunk

    def _octets(text: str) -> bytes:
        return text.encode("latin-1")

    with session, pool:
        yield forward


CLIENTS = {"httpx": with_httpx, "aiohttp": with_aiohttp, "requests": with_requests}


class Gateway:
    """Takes requests, forwards them to *origin*, and gives back what comes."""

    def __init__(self, origin: str, forward: Forward, *, show: bool) -> None:
        self._origin = origin
        self._forward = forward
        self._show = show

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError), closing(writer):
            while (sent := await read_request(reader)) is not None:
                if not await self._answer(sent, writer):
                    break
                await writer.drain()

    async def _answer(self, received: Sent, writer: asyncio.StreamWriter) -> bool:
        """False: the connection ends here."""
        host = (b"Host", self._origin.removeprefix("http://").encode())
        fields = [host, *(line for line in end_to_end(received.fields) if line[0].lower() != b"host")]
        sent = replace(received, fields=fields)
        close = b"close" in b",".join(values(received.fields, b"connection")).lower()
        begun = False
        try:
            async with self._forward(sent, self._origin + sent.target.decode("latin-1")) as answer:
                if answer.status < 200:
                    raise ValueError(f"the client takes an interim {answer.status} for the final response")
                begun = True
                await _give(answer, sent.method, writer, close=close)
        except Exception as error:
            if self._show:
                print(f"{sent.method!r} {sent.target!r}: {error!r}", file=sys.stderr, flush=True)
            if begun:
                return False
            body = repr(error).encode()
            writer.write(head(b"HTTP/1.1 502 Bad Gateway", [(b"Content-Length", b"%d" % len(body))]) + body)
        return not close


async def _give(answer: Answer, method: bytes, writer: asyncio.StreamWriter, *, close: bool) -> None:
    bodiless = method == b"HEAD" or answer.status in (204, 304)
    chunked = not bodiless and not values(answer.fields, b"content-length")
    framing = [(b"Transfer-Encoding", b"chunked")] if chunked else []
    connection = [(b"Connection", b"close")] if close else []
    start = b"HTTP/1.1 %d %b" % (answer.status, answer.reason)
    writer.write(head(start, [*end_to_end(answer.fields), *framing, *connection]))
    held = b""  # the caller sees the end when the client does: a Content-Length would tell it earlier
    async for chunk in answer.chunks:
        writer.write(_framed(held) if chunked else held)
        await writer.drain()
        held = chunk
    writer.write(_framed(held) if chunked else held)
    if chunked:
        writer.write(b"0\r\n\r\n")


def _framed(chunk: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunk else b""


@asynccontextmanager
async def _cache(folder: Path, *, shared: bool) -> AsyncIterator[Cache]:
    from vllm_http_cache import Cache, CacheOptions, FileStorage

    async with Cache(FileStorage(folder), CacheOptions(shared=shared)) as cache:
        yield cache


async def _run(client: str, origin: str, kind: str, folder: Path, *, show: bool) -> None:
    async with AsyncExitStack() as stack:
        plain = kind == "none"
        cache = None if plain else await stack.enter_async_context(_cache(folder, shared=kind == "shared"))
        forward = await stack.enter_async_context(CLIENTS[client](cache))
        server = await asyncio.start_server(Gateway(origin, forward, show=show).serve, "127.0.0.1", 0, backlog=1024)
        async with server:
            print(server.sockets[0].getsockname()[1], flush=True)
            await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.proxy", description=__doc__)
    parser.add_argument("--client", choices=CLIENTS, required=True)
    parser.add_argument("--origin", required=True, help="where requests go: http://HOST:PORT")
    parser.add_argument("--cache", choices=("shared", "private", "none"), default="shared")
    parser.add_argument("--folder", type=Path, required=True, help="where the cache's files go")
    parser.add_argument("--show", action="store_true", help="tell the client's errors")
    chosen = parser.parse_args()
    asyncio.run(_run(chosen.client, chosen.origin, chosen.cache, chosen.folder, show=chosen.show))


if __name__ == "__main__":
    main()
