"""CachedSession: what users of aiohttp-client-cache call, on a cache of ours."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.aiohttp.stand_ins import run
from tests.origin import Answer, Clock, Origin
from vllm_http_cache import Cache, CacheOptions, FileStorage

theirs = pytest.importorskip("aiohttp_client_cache")

from vllm_http_cache.aiohttp_client_cache import CachedSession  # noqa: E402 - without its extra there is none

KEPT = {"Cache-Control": "max-age=60", "ETag": '"1"'}


@pytest.fixture
def files(tmp_path: Path, clock: Clock) -> Iterator[Cache]:
    with Cache(FileStorage(tmp_path / "cache", clock=clock), CacheOptions(), clock=clock) as cache:
        yield cache


def session_of(cache: Cache, **session: Any) -> Any:
    """As users have it: what that library adds to responses has no types."""
    return CachedSession(cache=cache, **session)


async def fetched(session: Any, url: str, **request: Any) -> tuple[bytes, bool]:
    async with session.get(url, **request) as response:
        return await response.read(), response.from_cache


def test_hits(origin: Origin, files: Cache) -> None:
    url = origin.on("/", Answer(200, KEPT, b"x"))

    async def main() -> None:
        async with session_of(files) as session:
            assert isinstance(session, theirs.CachedSession)
            assert isinstance(session, aiohttp.ClientSession)
            assert await fetched(session, url) == (b"x", False)
            response: Any
            async with session.get(url) as response:
                assert response.from_cache
                assert response.is_expired is False
                assert response.created_at is None
                assert await response.text() == "x"
        async with CachedSession(origin.url("/"), cache=files, headers={"X-Mine": "1"}) as session:
            assert await fetched(session, "") == (b"x", True)

    run(main)
    assert origin.count() == 1


def test_a_hit_in_a_cache_upstream_is_none_of_ours(origin: Origin, files: Cache) -> None:
    url = origin.on("/", Answer(200, {**KEPT, "Cache-Status": "vllm-http-cache; hit"}, b"x"))

    async def main() -> None:
        async with session_of(files) as session:
            assert [await fetched(session, url) for _ in range(2)] == [(b"x", False), (b"x", True)]

    run(main)


def test_what_is_deleted_while_it_arrives_is_not_stored(origin: Origin, files: Cache) -> None:
    held = threading.Event()
    url = origin.on("/", Answer(200, KEPT, [b"x", held, b"y"], framing="chunked"))

    async def main() -> None:
        async with session_of(files) as session:
            async with session.get(url) as response:
                assert await response.content.readany() == b"x"
                await session.cache.delete_url(url)
                held.set()
                assert await response.content.read() == b"y"
            assert not (await fetched(session, url))[1]

    run(main)


def test_http_decides(origin: Origin, files: Cache) -> None:
    url = origin.on("/", Answer(200, {"Cache-Control": "no-store"}, b"x"))

    async def main() -> None:
        async with session_of(files) as session:
            for _ in range(2):
                assert await fetched(session, url) == (b"x", False)
            assert not await session.has_url(url)

    run(main)
    assert origin.count() == 2


def test_what_is_stored(origin: Origin, files: Cache, clock: Clock) -> None:
    short = origin.on("/short", Answer(200, {"Cache-Control": "max-age=1"}, b"x"))
    long, moved = origin.on("/long", Answer(200, KEPT, b"x")), origin.on("/moved", Answer(301, {"Location": "/long"}))

    async def main() -> None:
        async with session_of(files) as session:
            for url in (short, long, moved):
                await fetched(session, url)
            await asyncio.sleep(0.1)
            assert [await session.has_url(url) for url in (short, long, moved)] == [True] * 3
            assert await session.cache.has_url(long, "HEAD")
            assert not await session.has_url(long, "POST")
            assert not await session.has_url(origin.url("/never"))
            assert {url async for url in session.cache.get_urls()} == {short, long, moved}

            clock.advance(5)
            await session.delete_expired_responses()
            assert [await session.has_url(url) for url in (short, long, moved)][:2] == [False, True]
            await session.delete_url(long, "POST")
            assert await session.has_url(long)
            await session.delete_url(long)
            assert not await session.has_url(long)

            await fetched(session, long)
            await session.cache.clear()
            assert [url async for url in session.cache.get_urls()] == []
            assert await fetched(session, long) == (b"x", False)

    run(main)


def test_disabled(origin: Origin, files: Cache) -> None:
    url = origin.on("/", Answer(200, KEPT, b"x"))

    async def main() -> None:
        async with session_of(files) as session:
            await fetched(session, url)
            async with session.disabled():
                assert session.cache.disabled
                assert await fetched(session, url) == (b"x", False)
            assert not session.cache.disabled
            assert await fetched(session, url) == (b"x", True)

    run(main)
    assert origin.count() == 2


def test_refresh(origin: Origin, files: Cache) -> None:
    url = origin.on("/", Answer(200, KEPT, b"x"), Answer(304, KEPT))

    async def main() -> None:
        async with session_of(files) as session:
            await fetched(session, url)
            assert await fetched(session, url, refresh=True) == (b"x", False)

    run(main)
    assert origin.seen()[1].get("If-None-Match") == '"1"'


def test_other_middlewares_see_answers_from_the_cache(origin: Origin, files: Cache) -> None:
    url = origin.on("/", Answer(200, KEPT, b"x"))
    seen: list[str] = []

    async def look(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        response = await handler(request)
        seen.append(response.headers["Cache-Status"])
        return response

    async def main() -> None:
        async with CachedSession(cache=files, middlewares=[look]) as session:
            await fetched(session, url)
            await fetched(session, url)
            await fetched(session, url, middlewares=[])

    run(main)
    assert ["hit" in status for status in seen] == [False, True]
    assert origin.count() == 1


def test_closing_it_leaves_the_cache_open(origin: Origin, files: Cache) -> None:
    url = origin.on("/", Answer(200, KEPT, b"x"))

    async def main() -> None:
        for hit in (False, True):
            session = session_of(files)
            assert await fetched(session, url) == (b"x", hit)
            await session.cache.close()
            await session.close()
            await session.close()
            assert session.closed

    run(main)


def test_url_policy(origin: Origin, files: Cache) -> None:
    def policy(uri: str) -> None:
        raise ValueError("no")

    async def main() -> None:
        async with CachedSession(cache=files, url_policy=policy) as session:
            with pytest.raises(ValueError, match="no"):
                await session.get(origin.url("/"))

    run(main)
    assert not origin.count()


def test_what_is_not_supported_says_so(files: Cache) -> None:
    async def main() -> None:
        with pytest.raises(TypeError, match="CacheBackend"):
            CachedSession(cache=theirs.CacheBackend())
        with pytest.raises(TypeError, match="cache"):
            CachedSession()  # type: ignore[call-arg]
        async with session_of(files) as session:
            with pytest.raises(AttributeError, match="save_response"):
                await session.cache.save_response(None)
            with pytest.raises(NotImplementedError, match="expire_after"):
                await session.get("http://origin.test/", expire_after=60)

    run(main)
