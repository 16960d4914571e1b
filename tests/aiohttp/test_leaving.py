"""Answers that are not read to their end: timeouts, errors, and callers who go away."""

from __future__ import annotations

import asyncio
import gc
from typing import Any
from weakref import ref

import aiohttp
import pytest

from tests.aiohttp.stand_ins import Body, Script, eventually, run, session_on, stored
from vllm_http_cache.rfc9111.message import Request, Response
from vllm_http_cache.wire import AsyncSend, Caller, Fetched

URL = "http://origin.test/"


@pytest.mark.parametrize("parts", [(), (b"some",)])
def test_total_timeout(parts: tuple[bytes, ...]) -> None:
    async def main() -> None:
        cache, body = stored(*parts, asyncio.Event())
        async with session_on(cache) as session:
            with pytest.raises(TimeoutError):
                async with session.get(URL, timeout=aiohttp.ClientTimeout(total=0.1)) as response:
                    await response.read()
            assert body.closed

    run(main)


def test_total_timeout_before_the_answer() -> None:
    async def afetch(request: Request, send: AsyncSend, caller: Caller) -> Fetched:
        await asyncio.sleep(60)
        raise AssertionError

    async def main() -> None:
        async with session_on(Script(afetch)) as session:
            with pytest.raises(TimeoutError):
                await session.get(URL, timeout=aiohttp.ClientTimeout(total=0.1))

    run(main)


@pytest.mark.parametrize("where", ["session", "request"])
def test_the_cache_is_told_the_read_timeout(where: str) -> None:
    cache, _ = stored(b"x")
    timeout: dict[str, Any] = {"timeout": aiohttp.ClientTimeout(sock_read=1.5)}

    async def main() -> None:
        session = session_on(cache, **(timeout if where == "session" else {}))
        async with session, session.get(URL, **(timeout if where == "request" else {})):
            pass
        caller = cache.callers[0]
        assert caller.timeout == 1.5
        assert isinstance(caller.timed_out(), aiohttp.SocketTimeoutError)
        assert isinstance(caller.broken("why"), aiohttp.ClientPayloadError)

    run(main)


def test_a_broken_body_is_the_callers_error() -> None:
    cache, body = stored(b"some", 0.0, aiohttp.ClientPayloadError("broken"))

    async def main() -> None:
        async with session_on(cache) as session, session.get(URL) as response:
            with pytest.raises(aiohttp.ClientPayloadError, match="broken"):
                await response.read()
            assert body.closed

    run(main)


def test_what_the_cache_raises_comes_through() -> None:
    async def afetch(request: Request, send: AsyncSend, caller: Caller) -> Fetched:
        raise aiohttp.ServerDisconnectedError

    async def main() -> None:
        cache = Script(afetch)
        async with session_on(cache) as session:
            with pytest.raises(aiohttp.ServerDisconnectedError):
                await session.get(URL)
        assert len(cache.asked) == 2  # aiohttp asks once more

    run(main)


@pytest.mark.parametrize("how", ["with", "release", "close", "break"])
@pytest.mark.parametrize("waiting", [True, False])
def test_unread_answers_are_closed(how: str, waiting: bool) -> None:
    async def main() -> None:
        parts: list[Any] = [asyncio.Event()] if waiting else [bytes(128 * 1024)] * 10
        cache, body = stored(*parts, close_takes=0.01)
        async with session_on(cache) as session:
            if how in ("with", "break"):
                async with session.get(URL) as response:
                    if how == "break" and not waiting:
                        async for _ in response.content.iter_chunked(1024):
                            break
                assert body.closed, "a response that has been left has let go of its body"
            else:
                response = await session.get(URL)
                getattr(response, how)()
                with pytest.raises(aiohttp.ClientConnectionError):
                    await response.read()
            assert response.closed
            await eventually(lambda: body.closed)

    run(main)


def test_releasing_twice_closes_all_the_same() -> None:
    async def main() -> None:
        cache, body = stored(asyncio.Event(), close_takes=0.05)
        async with session_on(cache) as session, session.get(URL) as response:
            await asyncio.sleep(0)
            response.release()
            await asyncio.sleep(0)
        assert body.closed

    run(main)


def test_the_last_act_of_a_loop() -> None:
    cache, body = stored(*[bytes(128 * 1024)] * 10)

    async def main() -> None:
        async with session_on(cache) as session:
            (await session.get(URL)).release()

    asyncio.run(main())
    assert body.closed


def test_a_forgotten_answer_is_closed_by_the_collector() -> None:
    async def main() -> None:
        cache, body = stored(*[bytes(128 * 1024)] * 10)
        async with session_on(cache) as session:
            response: Any = await session.get(URL)
            response = None  # noqa: F841
            gc.collect()
            await asyncio.sleep(0.05)
            assert body.closed

    run(main)


@pytest.mark.parametrize("parts", [1, 20])
def test_an_answer_that_was_read_needs_no_collector(parts: int) -> None:
    cache, _ = stored(*[bytes(128 * 1024)] * parts)

    async def main() -> None:
        async with session_on(cache) as session:
            gc.collect()
            gc.disable()
            try:
                response: Any = await session.get(URL)
                await response.read()
                gone = ref(response)
                response = None
                await asyncio.sleep(0)
                assert gone() is None
            finally:
                gc.enable()

    run(main)


def test_cancelled_while_reading() -> None:
    async def main() -> None:
        cache, body = stored(b"some", asyncio.Event())

        async def work() -> None:
            async with session.get(URL) as response:
                await response.read()

        async with session_on(cache) as session:
            task = asyncio.create_task(work())
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert body.closed

    run(main)


def test_the_loop_ends_in_the_middle() -> None:
    body = Body([b"some"])

    async def main() -> None:
        body.parts.append(asyncio.Event())

        async def afetch(request: Request, send: AsyncSend, caller: Caller) -> Fetched:
            return Fetched(Response(200), body)

        async with session_on(Script(afetch)) as session:
            response = await session.get(URL)
            await response.content.readany()

    asyncio.run(main())
    assert body.closed
