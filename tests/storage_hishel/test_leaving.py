"""as_hishel_async: callers who go while a thread is at work for them."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from hishel import Request, Response

from tests.core.memory import MemoryStorage, MemoryWriter
from tests.storage_hishel.faces import URL
from vllm_http_cache.storage.hishel import as_hishel_async

KEY = "key"


class Slow(MemoryStorage):
    """Beginning or writing a body takes until it is free."""

    def __init__(self, held: str) -> None:
        super().__init__()
        self.held = held
        self.begun, self.free = threading.Event(), threading.Event()
        self.at_work = self.torn = False

    def work(self, kind: str) -> None:
        if kind == self.held:
            self.at_work = True
            self.begun.set()
            assert self.free.wait(10)
            self.at_work = False

    def create_body(self, key: str, length: int | None = None) -> MemoryWriter | None:
        self.work("create")
        return SlowWriter(self)


class SlowWriter(MemoryWriter):
    _storage: Slow

    def write(self, *pieces: bytes) -> bool:
        self._storage.work("write")
        return super().write(*pieces)

    def abort(self) -> None:
        self._storage.torn |= self._storage.at_work
        super().abort()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("held", ["create", "write"])
def test_a_body_is_given_up_once_its_thread_is_done(backend: str, held: str) -> None:
    storage = Slow(held)
    hishel = as_hishel_async(storage)

    async def chunks() -> AsyncIterator[bytes]:
        yield b"body"

    async def read() -> None:
        entry = await hishel.create_entry(Request("GET", URL), Response(200, stream=chunks()), KEY)
        stream: Any = entry.response.stream
        assert [chunk async for chunk in stream]

    async def run() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(read)
            while not storage.begun.is_set():
                await anyio.sleep(0.001)
            threading.Timer(0.05, storage.free.set).start()
            group.cancel_scope.cancel()

    anyio.run(run, backend=backend)
    assert not storage.torn
    assert (storage.open_writers, storage.bodies) == (0, {})
