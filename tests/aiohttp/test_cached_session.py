"""CachedSession: what users of aiohttp-client-cache call, on a cache of ours."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.aiohttp.cached import KEPT, fetched, session_of
from tests.aiohttp.stand_ins import run
from tests.origin import Answer, Clock, Origin
from vllm_http_cache import Cache, CacheOptions, FileStorage

theirs = pytest.importorskip("aiohttp_client_cache")

from vllm_http_cache.aiohttp_client_cache import CachedSession  # noqa: E402 - without its extra there is none


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


def test_a_response_and_its_redirects_say_where_they_are_from(origin: Origin, files: Cache, clock: Clock) -> None:
    """Times are as that library has them: in UTC, and naive."""
    moved = origin.on("/moved", Answer(301, {"Location": "/", "Cache-Control": "max-age=5"}))
    origin.on("/", Answer(200, {"Cache-Control": "max-age=9999999999", "Expires": "0"}, b"x"))
    began = datetime.fromtimestamp(clock.now, UTC).replace(tzinfo=None)

    async def faces(session: Any) -> list[tuple[Any, ...]]:
        async with session.get(moved) as response:
            await response.read()
        hops = (*response.history, response)
        return [(hop.from_cache, hop.is_expired, hop.created_at, hop.expires) for hop in hops]

    async def main() -> None:
        async with session_of(files) as session:
            assert await faces(session) == [(False, False, None, None)] * 2
            clock.advance(2)
            day = timedelta(seconds=files.options.ttl)
            assert await faces(session) == [
                (True, False, began, began + timedelta(seconds=5)),
                (True, False, began, began + day),
            ]
        clock.advance(10)
        anyhow = Cache(files.storage, CacheOptions(mode="force-cache"), clock=clock)
        async with session_of(anyhow) as session:
            assert [face[:2] for face in await faces(session)] == [(True, True), (True, False)]

    run(main)


@pytest.mark.parametrize("dates", [("9999", "1700"), ("1700", "9999")])
def test_times_that_no_datetime_can_say_break_nothing(
    origin: Origin, tmp_path: Path, clock: Clock, dates: tuple[str, str]
) -> None:
    date, expires = (f"Fri, 31 Dec {year} 23:59:60 GMT" for year in dates)
    url = origin.on("/", Answer(200, {"Date": date, "Expires": expires}, b"x", date=False))

    async def main() -> None:
        options = CacheOptions(mode="force-cache", ttl=inf)
        with Cache(FileStorage(tmp_path, ttl=inf, clock=clock), options, clock=clock) as cache:
            async with session_of(cache) as session:
                assert [await fetched(session, url) for _ in range(2)] == [(b"x", False), (b"x", True)]

    run(main)


def test_what_was_read_can_be_read_after_leaving_and_nothing_else(origin: Origin, files: Cache) -> None:
    """As aiohttp has it."""
    url = origin.on("/", Answer(200, KEPT, b"x"))

    async def main() -> None:
        async with session_of(files) as session:
            for hit in (False, True):
                async with session.get(url) as response:
                    assert (await response.read(), response.from_cache) == (b"x", hit)
                assert await response.text() == "x"
            async with session.get(url) as response:
                pass
            with pytest.raises(aiohttp.ClientConnectionError):
                await response.read()

    run(main)


@pytest.mark.parametrize("all_", [False, True])
def test_what_is_deleted_while_it_arrives_is_not_stored(origin: Origin, files: Cache, all_: bool) -> None:
    held = threading.Event()
    url = origin.on("/", Answer(200, KEPT, [b"x", held, b"y"], framing="chunked"))

    async def main() -> None:
        async with session_of(files) as session:
            async with session.get(url) as response:
                assert await response.content.readany() == b"x"
                await (session.cache.clear() if all_ else session.cache.delete_url(url))
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


def test_disabled_ends_with_an_error(files: Cache) -> None:
    async def main() -> None:
        async with session_of(files) as session:
            with pytest.raises(KeyError):
                async with session.disabled():
                    raise KeyError
            assert not session.cache.disabled

    run(main)


def test_what_is_changed_while_disabled_is_invalidated(origin: Origin, files: Cache) -> None:
    """And what the change redirects to in the end is not answered from the cache."""
    url = origin.on("/", Answer(200, KEPT, b"x"))
    changing = origin.on("/change", Answer(303, {"Location": "/between"}))
    origin.on("/between", Answer(302, {"Location": "/"}))

    async def main() -> None:
        async with session_of(files) as session:
            await fetched(session, url)
            async with session.disabled():
                async with session.post(changing) as response:
                    assert (await response.read(), response.from_cache) == (b"x", False)
                assert await session.has_url(url)
                async with session.post(url):
                    pass
            assert not await session.has_url(url)

    run(main)


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
            async with session.disabled():
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
        with pytest.raises(NotImplementedError, match="expire_after"):
            session_of(files, expire_after=60)
        with pytest.raises(TypeError, match="nonsense"):
            session_of(files, nonsense=3)
        async with session_of(files) as session:
            for where in (session, session.cache):
                for call in (where.has_url, where.delete_url):
                    with pytest.raises(NotImplementedError, match="headers, data"):
                        await call("http://origin.test/", headers={}, data=None)
            with pytest.raises(TypeError, match="nonsense"):
                await session.get("http://origin.test/", nonsense=3)
            with pytest.raises(AttributeError, match="save_response"):
                await session.cache.save_response(None)
            with pytest.raises(NotImplementedError, match="expire_after"):
                await session.get("http://origin.test/", expire_after=60)

    run(main)
