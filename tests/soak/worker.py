"""One of the soak's processes: two asynchronous clients and requests on one cache, cancelling at random.

``python -m tests.soak.worker FOLDER BASE_URL SEED SECONDS MAX_SIZE`` says what it has counted, a line of JSON a
second and a last one at the end, with what it has left open.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from contextlib import suppress

import aiohttp
import httpx
import requests
import urllib3

from tests.soak.world import KINDS, NUMBERS, is_right
from vllm_http_cache import Cache, FileStorage
from vllm_http_cache.aiohttp import CacheMiddleware
from vllm_http_cache.httpx import AsyncCacheTransport
from vllm_http_cache.requests import CacheAdapter

TASKS, THREADS = 8, 4  # of each asynchronous client; of requests
CANCELLED = 0.08  # share of requests that are given up early
ERRORS = (httpx.HTTPError, aiohttp.ClientError, requests.RequestException, urllib3.exceptions.HTTPError)


class Tally:
    def __init__(self, base: str, seed: int, seconds: float) -> None:
        self.base = base
        self.chance = random.Random(seed)
        self.deadline = time.time() + seconds
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._lock = threading.Lock()

    def running(self) -> bool:
        return time.time() < self.deadline

    def choose(self) -> tuple[str, str]:
        """A resource's name and the URL to ask for."""
        with self._lock:
            kind = self.chance.choice(tuple(KINDS))
            number = min(self.chance.randrange(NUMBERS), self.chance.randrange(NUMBERS))
            signature = self.chance.randrange(4)
        url = f"{self.base}/{kind}/{number}"
        if kind == "signed":
            url += "?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=k&X-Amz-Date=d&X-Amz-Expires=9"
            url += f"&X-Amz-SignedHeaders=host&X-Amz-Signature={signature:064x}"
        return f"{kind}/{number}", url

    def patience(self) -> float | None:
        """Seconds after which to give a request up; None: never."""
        with self._lock:
            return self.chance.random() * 0.05 if self.chance.random() < CANCELLED else None

    def answered(self, client: str, name: str, status: int, cache_status: str, octets: bytes, begun: float) -> None:
        with self._lock:
            self.counts["requests"] += 1
            self.counts[f"by {client}"] += 1
            if "hit" in cache_status or "collapsed" in cache_status:
                self.counts["from cache"] += 1
            if status == 200:
                wrong = is_right(name, octets, begun, time.time())
            else:
                wrong = None if status == 503 and octets == b"overloaded" else f"{name}: status {status}"
                self.counts["origin errors"] += 1
            if wrong is not None:
                self.wrong.append(f"{client}, {cache_status or 'no Cache-Status'}: {wrong}")

    def count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def ended(self, thread: threading.ExceptHookArgs) -> None:
        """A thread has, by an exception that nobody expects."""
        with self._lock:
            self.wrong.append(f"a thread ended: {thread.exc_value!r}")
        threading.__excepthook__(thread)

    def say(self, **more: object) -> None:
        with self._lock:
            print(json.dumps({"counts": self.counts, "wrong": self.wrong, **more}), flush=True)


async def with_httpx(tally: Tally, client: httpx.AsyncClient) -> None:
    while tally.running():
        name, url = tally.choose()
        begun = time.time()
        try:
            async with asyncio.timeout(tally.patience()):
                got = await client.get(url)
            tally.answered("httpx", name, got.status_code, got.headers.get("cache-status", ""), got.content, begun)
        except TimeoutError:
            tally.count("given up")
        except ERRORS:
            tally.count("errors")


async def with_aiohttp(tally: Tally, session: aiohttp.ClientSession) -> None:
    while tally.running():
        name, url = tally.choose()
        begun = time.time()
        try:
            async with asyncio.timeout(tally.patience()), session.get(url) as got:
                octets = await got.read()
            tally.answered("aiohttp", name, got.status, got.headers.get("Cache-Status", ""), octets, begun)
        except TimeoutError:
            tally.count("given up")
        except ERRORS:
            tally.count("errors")


def with_requests(tally: Tally, cache: Cache) -> None:
    with requests.Session() as session:
        session.mount("http://", CacheAdapter(cache))
        while tally.running():
            name, url = tally.choose()
            begun = time.time()
            try:
                with session.get(url, timeout=10, stream=True) as got:
                    if tally.patience() is not None:
                        got.raw.read(1000)
                        tally.count("given up")
                        continue
                    octets = got.content
                tally.answered("requests", name, got.status_code, got.headers.get("Cache-Status", ""), octets, begun)
            except ERRORS:
                tally.count("errors")


async def tasks(tally: Tally, cache: Cache, readers: list[threading.Thread]) -> int:
    """Run both asynchronous clients, and close the cache when *readers* too are done; how many tasks are left."""
    transport = AsyncCacheTransport(httpx.AsyncHTTPTransport(), cache)
    session = aiohttp.ClientSession(middlewares=[CacheMiddleware(cache)], timeout=aiohttp.ClientTimeout(total=10))
    client = httpx.AsyncClient(transport=transport, follow_redirects=True, timeout=10)
    async with client, session, asyncio.TaskGroup() as group:
        for _ in range(TASKS):
            group.create_task(with_httpx(tally, client))
            group.create_task(with_aiohttp(tally, session))
        while tally.running():
            await asyncio.sleep(1)
            tally.say()
    for reader in readers:
        await asyncio.to_thread(reader.join)
    await cache.aclose()
    for _ in range(200):  # what was given up last may still be closing its connection
        if len(asyncio.all_tasks()) == 1:
            break
        await asyncio.sleep(0.01)
    return len(asyncio.all_tasks()) - 1


def open_files() -> set[str]:
    """What this process has open, by number and by what it is."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
    return found


def main(folder: str, base: str, seed: int, seconds: float, max_size: int) -> None:
    files, threads = open_files(), threading.active_count()
    tally = Tally(base, seed, seconds)
    threading.excepthook = tally.ended
    cache = Cache(FileStorage(folder, max_size=max_size))
    readers = [threading.Thread(target=with_requests, args=(tally, cache)) for _ in range(THREADS)]
    for reader in readers:
        reader.start()
    tasks_left = asyncio.run(tasks(tally, cache, readers))
    del readers
    cache.close()
    flights = len(cache.flights)
    left: list[str] = []
    for _ in range(200):  # threads that were closing what a caller gave up
        gc.collect()
        cache.close()  # and what has been collected only now
        if not (left := sorted(open_files() - files)) and threading.active_count() <= threads:
            break
        time.sleep(0.01)
    leaked = {"tasks": tasks_left, "files": len(left), "threads": threading.active_count() - threads}
    tally.say(leaked={**leaked, "flights": flights}, left=left)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
