"""Each client with the cache under it, as a user would set it up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from vllm_http_cache import Cache

__all__ = ["CLIENTS", "Answer", "Fetch"]


@dataclass(frozen=True)
class Answer:
    body: bytes
    cache_status: str


Fetch = Callable[[str], Answer]


@contextmanager
def httpx_sync(cache: Cache) -> Iterator[Fetch]:
    import httpx

    from vllm_http_cache.httpx import CacheTransport

    with httpx.Client(transport=CacheTransport(httpx.HTTPTransport(), cache), trust_env=False) as client:

        def fetch(url: str) -> Answer:
            response = client.get(url)
            return Answer(response.content, response.headers["Cache-Status"])

        yield fetch


@contextmanager
def httpx_async(cache: Cache) -> Iterator[Fetch]:
    import httpx

    from vllm_http_cache.httpx import AsyncCacheTransport

    client = httpx.AsyncClient(transport=AsyncCacheTransport(httpx.AsyncHTTPTransport(), cache), trust_env=False)

    async def fetch(url: str) -> Answer:
        response = await client.get(url)
        return Answer(response.content, response.headers["Cache-Status"])

    with asyncio.Runner() as runner:
        yield lambda url: runner.run(fetch(url))
        runner.run(client.aclose())


@contextmanager
def aiohttp(cache: Cache) -> Iterator[Fetch]:
    from aiohttp import ClientSession

    from vllm_http_cache.aiohttp import CacheMiddleware

    async def open_session() -> ClientSession:
        return ClientSession(middlewares=[CacheMiddleware(cache)])

    with asyncio.Runner() as runner:
        session = runner.run(open_session())

        async def fetch(url: str) -> Answer:
            async with session.get(url) as response:
                return Answer(await response.read(), response.headers["Cache-Status"])

        yield lambda url: runner.run(fetch(url))
        runner.run(session.close())


@contextmanager
def requests(cache: Cache) -> Iterator[Fetch]:
    from requests import Session

    from vllm_http_cache.requests import CacheAdapter

    with Session() as session:
        session.trust_env = False
        session.mount("http://", CacheAdapter(cache))

        def fetch(url: str) -> Answer:
            response = session.get(url, timeout=10)
            return Answer(response.content, response.headers["Cache-Status"])

        yield fetch


CLIENTS: dict[str, Callable[[Cache], AbstractContextManager[Fetch]]] = {
    "httpx": httpx_sync,
    "httpx, async": httpx_async,
    "aiohttp": aiohttp,
    "requests": requests,
}
