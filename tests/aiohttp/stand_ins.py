"""A cache that says what a test wants, and a body that comes as a test wants."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp

from vllm_http_cache.aiohttp import CacheMiddleware
from vllm_http_cache.rfc9111.message import Fields, Request, Response
from vllm_http_cache.rfc9111.options import CacheOptions
from vllm_http_cache.wire import AsyncSend, Caller, Fetched, Reply

__all__ = [
    "STATUS",
    "Body",
    "Part",
    "Script",
    "eventually",
    "passing",
    "reading",
    "run",
    "session_on",
    "stored",
    "whole",
]

T = TypeVar("T")
Part = bytes | float | asyncio.Event | Exception
STATUS = ("Cache-Status", "stand-in")


@dataclass
class Body:
    """Octets to give, seconds or an event to wait for, or an error to raise, one after the other."""

    parts: list[Part]
    length: int | None = None
    given: int = 0
    closed: bool = False
    close_takes: float = 0.0

    def ready(self) -> bytes | None:
        if not self.parts:
            return b""
        if not isinstance(self.parts[0], bytes):
            return None
        data = self.parts.pop(0)
        assert isinstance(data, bytes)
        self.given += len(data)
        return data

    async def read(self) -> bytes:
        while (data := self.ready()) is None:
            match self.parts.pop(0):
                case float(seconds):
                    await asyncio.sleep(seconds)
                case asyncio.Event() as event:
                    await event.wait()
                case Exception() as error:
                    raise error
        return data

    async def aclose(self) -> None:
        if self.close_takes:
            await asyncio.sleep(self.close_takes)
        self.closed = True


@dataclass
class Script:
    """Stands in for a Cache: *afetch* is the test's; what it was asked is kept."""

    afetch_: Callable[[Request, AsyncSend, Caller], Awaitable[Fetched]]
    options: CacheOptions = field(default_factory=CacheOptions)
    asked: list[Request] = field(default_factory=list)
    callers: list[Caller] = field(default_factory=list)

    async def afetch(self, request: Request, send: AsyncSend, caller: Caller) -> Fetched:
        self.asked.append(request)
        self.callers.append(caller)
        return await self.afetch_(request, send, caller)


def stored(*parts: Part, status: int = 200, fields: Iterable[tuple[str, str]] = (), **body: Any) -> tuple[Script, Body]:
    """A cache that answers every request with these, once, and the body it gives."""
    answer = Body(list(parts), **body)

    async def afetch(request: Request, send: AsyncSend, caller: Caller) -> Fetched:
        return Fetched(Response(status, Fields((*fields, STATUS)), "Reason"), answer)

    return Script(afetch), answer


async def whole(reply: Reply) -> bytes:
    """What a cache that stores would read of a reply."""
    chunks = []
    try:
        while chunk := await reply.source.read():
            chunks.append(chunk)
        return b"".join(chunks)
    finally:
        await reply.source.aclose()


def passing() -> Script:
    """A cache that has no use for anything."""

    async def afetch(request: Request, send: AsyncSend, caller: Caller) -> Fetched:
        reply = await send(request)
        fields = Fields((*reply.response.fields, STATUS))
        return Fetched(Response(reply.response.status, fields), reply.source, reply.native)

    return Script(afetch)


def reading(replies: list[tuple[Reply, bytes]], times: int = 1) -> Script:
    """A cache that reads every body itself, *times* times over."""

    async def afetch(request: Request, send: AsyncSend, caller: Caller) -> Fetched:
        for _ in range(times):
            reply = await send(request)
            replies.append((reply, await whole(reply)))
        reply, body = replies[-1]
        return Fetched(Response(reply.response.status, Fields((*reply.response.fields, STATUS))), Body([body]))

    return Script(afetch)


async def eventually(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.01)


def session_on(cache: Any, **session: Any) -> aiohttp.ClientSession:
    policy = session.pop("url_policy", None)
    return aiohttp.ClientSession(middlewares=[CacheMiddleware(cache, url_policy=policy)], **session)


def run(main: Callable[[], Awaitable[T]]) -> T:
    """Run *main* on a loop of its own; fails when it leaves a task behind."""

    async def watched() -> T:
        result = await main()
        patience = 200
        while (left := asyncio.all_tasks() - {asyncio.current_task()}) and patience:
            patience -= 1
            await asyncio.sleep(0.01)
        assert not left, f"left behind: {left}"
        return result

    try:
        return asyncio.run(watched())
    finally:
        gc.collect()  # what is unclosed warns here
