"""One process of many on one folder: ``python -m tests.processes.worker FOLDER URL CALLERS``.

Says ``ready``; at a line on standard input asks for the URL as CALLERS tasks at once; says ``first`` with the first
octets that one of them gets, and at the end one line of JSON: the digests of the bodies, and the errors.
"""

from __future__ import annotations

import hashlib
import json
import sys

import anyio
import httpx

from vllm_http_cache import Cache, FileStorage
from vllm_http_cache.httpx import AsyncCacheTransport


async def main(folder: str, url: str, callers: int) -> None:
    digests: set[str] = set()
    errors: list[str] = []
    first = True
    limits = httpx.Limits(max_connections=None)
    async with (
        Cache(FileStorage(folder)) as cache,
        httpx.AsyncClient(transport=AsyncCacheTransport(httpx.AsyncHTTPTransport(limits=limits), cache)) as client,
    ):

        async def one() -> None:
            nonlocal first
            digest = hashlib.sha256()
            try:
                async with client.stream("GET", url, timeout=20) as response:
                    async for chunk in response.aiter_raw():
                        if first:
                            first = False
                            print("first", flush=True)
                        digest.update(chunk)
            except httpx.HTTPError as error:
                errors.append(repr(error))
            else:
                digests.add(digest.hexdigest())

        print("ready", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.readline)
        async with anyio.create_task_group() as tasks:
            for _ in range(callers):
                tasks.start_soon(one)
    print(json.dumps({"digests": sorted(digests), "errors": errors}), flush=True)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]))
