"""One process of many on one folder: ``python -m tests.processes.worker FOLDER URL CALLERS tasks|threads SECONDS``.

Says ``ready``; at a line on standard input asks for the URL as CALLERS at once, who wait for SECONDS; says ``first``
with the first octets that one of them gets, and at the end one line of JSON: the digests of the bodies, and the errors.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import anyio
import httpx

from vllm_http_cache import Cache, FileStorage
from vllm_http_cache.httpx import AsyncCacheTransport, CacheTransport

LIMITS = httpx.Limits(max_connections=None)


class Heard:
    """What the callers of this process got."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first = True
        self.digests: set[str] = set()
        self.errors: list[str] = []

    def octets(self) -> None:
        with self._lock:
            if self._first:
                self._first = False
                print("first", flush=True)

    @contextmanager
    def body(self) -> Iterator[Any]:
        """The digest of one caller's body, to be updated."""
        digest = hashlib.sha256()
        try:
            yield digest
        except httpx.HTTPError as error:
            self.errors.append(repr(error))
        else:
            self.digests.add(digest.hexdigest())

    def report(self) -> None:
        print(json.dumps({"digests": sorted(self.digests), "errors": self.errors}), flush=True)


async def tasks(folder: str, url: str, callers: int, timeout: float, heard: Heard) -> None:
    async with (
        Cache(FileStorage(folder)) as cache,
        httpx.AsyncClient(transport=AsyncCacheTransport(httpx.AsyncHTTPTransport(limits=LIMITS), cache)) as client,
    ):

        async def one() -> None:
            with heard.body() as digest:
                async with client.stream("GET", url, timeout=timeout) as response:
                    async for chunk in response.aiter_raw():
                        heard.octets()
                        digest.update(chunk)

        print("ready", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.readline)
        async with anyio.create_task_group() as group:
            for _ in range(callers):
                group.start_soon(one)


def threads(folder: str, url: str, callers: int, timeout: float, heard: Heard) -> None:
    with (
        Cache(FileStorage(folder)) as cache,
        httpx.Client(transport=CacheTransport(httpx.HTTPTransport(limits=LIMITS), cache)) as client,
        ThreadPoolExecutor(callers) as pool,
    ):

        def one() -> None:
            with heard.body() as digest, client.stream("GET", url, timeout=timeout) as response:
                for chunk in response.iter_raw():
                    heard.octets()
                    digest.update(chunk)

        print("ready", flush=True)
        sys.stdin.readline()
        for _ in range(callers):
            pool.submit(one)


if __name__ == "__main__":
    heard = Heard()
    folder, url, callers, kind, seconds = sys.argv[1:]
    if kind == "tasks":
        anyio.run(tasks, folder, url, int(callers), float(seconds), heard)
    else:
        threads(folder, url, int(callers), float(seconds), heard)
    heard.report()
