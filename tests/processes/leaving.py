"""A program that ends: ``python -m tests.processes.leaving FOLDER URL CLIENT WAY [uvloop]``.

It asks for the URL, leaves its event loop in that WAY, and comes to its own end.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress

import aiohttp
import httpx
from hishel.httpx import AsyncCacheTransport as HishelTransport

from vllm_http_cache import Cache, FileStorage, loops
from vllm_http_cache.aiohttp import CacheMiddleware
from vllm_http_cache.aiohttp_client_cache import CachedSession
from vllm_http_cache.httpx import AsyncCacheTransport
from vllm_http_cache.storage.hishel import as_hishel_async

storage = FileStorage(sys.argv[1])
cache = Cache(storage)
url, client, way = sys.argv[2:5]
kept: list[object] = []  # clients that nobody closes
kept_busy: list[object] = []  # threads, until they are free
free = threading.Event()


async def by_httpx() -> None:
    """It reads as much as was announced, and does not wait for the end."""
    kept.append(client := httpx.AsyncClient(transport=AsyncCacheTransport(httpx.AsyncHTTPTransport(), cache)))
    response = await client.send(client.build_request("GET", url), stream=True)
    kept.append(response)
    left = int(response.headers["Content-Length"])
    kept.append(chunks := response.aiter_raw())
    while left and "unread" not in way:
        left -= len(await anext(chunks))


async def by_aiohttp() -> None:
    async with aiohttp.ClientSession(middlewares=[CacheMiddleware(cache)]) as session, session.get(url) as response:
        await response.read()


async def by_session() -> None:
    async with CachedSession(cache=cache) as session, session.get(url) as response:
        await response.read()


async def by_hishel() -> None:
    transport = HishelTransport(httpx.AsyncHTTPTransport(), as_hishel_async(storage))
    kept.append(client := httpx.AsyncClient(transport=transport))
    await client.get(url)


ask: Callable[[], Awaitable[None]] = globals()[f"by_{client}"]


async def main() -> None:
    await ask()
    if way == "interrupted":
        signal.raise_signal(signal.SIGINT)
    if way in ("exits", "exits unread"):
        sys.exit(3)
    if way == "stopped":
        asyncio.get_running_loop().stop()
    if way == "forked" and not kept_busy:
        kept_busy.extend(loops._pool().submit(free.wait) for _ in range(loops.THREADS))


if way in ("runs", "exits unread"):
    asyncio.run(main())
    sys.exit()
if way == "closed unread":
    for _ in range(2):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
        loop.close()
        kept.clear()
        gc.collect()
    sys.exit(3)
loop = importlib.import_module("uvloop").new_event_loop() if "uvloop" in sys.argv else asyncio.new_event_loop()
with suppress(KeyboardInterrupt):
    loop.run_until_complete(main()) if way != "stopped" else (loop.create_task(main()), loop.run_forever())
if way == "closed":
    loop.close()
if way == "cache closed":
    cache.close()
if way == "forked":
    if child := os.fork():
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        free.set()
        sys.exit(ended)
    signal.alarm(20)
    loop.run_until_complete(main())
