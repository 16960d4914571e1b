"""Origins without a network: what a client would do, as a function. The clock is the test's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import anyio
import anyio.lowlevel

from tests.core.memory import MemoryStorage
from vllm_http_cache import Cache
from vllm_http_cache.rfc9111.message import Fields, Request, Response
from vllm_http_cache.wire import Fetched, Reply

Answer = tuple[int, Mapping[str, str], Sequence[bytes | Exception]]


class Clock:
    """Seconds since the epoch; goes when told to."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def get(uri: str = "http://origin.test/a", **fields: str) -> Request:
    return Request("GET", uri, Fields((name.replace("_", "-"), value) for name, value in fields.items()))


def ok(body: bytes = b"body", **fields: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in fields.items()}
    return 200, {"Content-Length": str(len(body)), **named}, [body]


class Body:
    def __init__(self, chunks: Sequence[bytes | Exception]) -> None:
        self._chunks = list(chunks)
        self.closed = False

    def read(self) -> bytes:
        if not self._chunks:
            return b""
        chunk = self._chunks.pop(0)
        if isinstance(chunk, Exception):
            raise chunk
        return chunk

    def close(self) -> None:
        self.closed = True


class AsyncBody:
    def __init__(self, body: Body) -> None:
        self._body = body

    async def read(self) -> bytes:
        await anyio.lowlevel.checkpoint()
        return self._body.read()

    async def aclose(self) -> None:
        self._body.close()


class Origin:
    """Answers what *answer* says of a request; remembers what it was asked. ``held`` stops it before the head."""

    def __init__(self, answer: Callable[[Request], Answer | Exception] | Answer) -> None:
        self.answer: Callable[[Request], Answer | Exception] = answer if callable(answer) else lambda _: answer
        self.asked: list[Request] = []
        self.bodies: list[Body] = []
        self.held = threading.Event()
        self.held.set()
        self.arrived = threading.Event()

    def __len__(self) -> int:
        return len(self.asked)

    def send(self, request: Request) -> Reply:
        self.asked.append(request)
        self.arrived.set()
        assert self.held.wait(10)
        body, reply = self._reply(request)
        return Reply(reply, body)

    async def asend(self, request: Request) -> Reply:
        self.asked.append(request)
        self.arrived.set()
        await anyio.lowlevel.checkpoint()
        while not self.held.is_set():
            await anyio.sleep(0.001)
        body, reply = self._reply(request)
        return Reply(reply, AsyncBody(body))

    def _reply(self, request: Request) -> tuple[Body, Response]:
        answer = self.answer(request)
        if isinstance(answer, Exception):
            raise answer
        status, fields, chunks = answer
        self.bodies.append(body := Body(chunks))
        return body, Response(status, Fields(fields.items()))


def whole(fetched: Fetched) -> bytes:
    parts = []
    while data := fetched.body.read():
        parts.append(data)
    fetched.body.close()
    return b"".join(parts)


async def awhole(fetched: Fetched) -> bytes:
    parts = []
    while data := await fetched.body.read():
        parts.append(data)
    await fetched.body.aclose()
    return b"".join(parts)


def fetch(cache: Cache, origin: Origin, request: Request | None = None) -> bytes:
    return whole(cache.fetch(request or get(), origin.send))


async def afetch(cache: Cache, origin: Origin, request: Request | None = None) -> bytes:
    return await awhole(await cache.afetch(request or get(), origin.asend))


def status(fetched: Fetched) -> str:
    return fetched.response.fields.get("cache-status") or ""


def nothing_left(cache: Cache, storage: MemoryStorage) -> bool:
    return (len(cache.flights), storage.open_readers, storage.open_writers) == (0, 0, 0)
