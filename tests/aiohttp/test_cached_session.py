"""CachedSession: what users of aiohttp-client-cache call, on a cache of ours."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

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


async def fetched(session: Any, url: str | URL, **request: Any) -> tuple[bytes, bool]:
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
            assert {url async for url in session.cache.get_urls()} == {URL(url) for url in (short, long, moved)}

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


def test_a_url_is_named_as_it_is_asked_for(origin: Origin, files: Cache) -> None:
    """With params, from a base, with user information."""
    url = origin.on("/x", Answer(200, {"Cache-Control": "public, max-age=60"}, b"x"))
    base = URL(origin.url("/")).with_user("user").with_password("word")
    ways: list[dict[str, Any]] = [{}, {"params": {"a": "1"}}, {"params": [("q", "é ü"), ("q", "+")]}, {"params": "a=2"}]

    async def main() -> None:
        async with CachedSession(base, cache=files) as session:
            for way in ways:
                await fetched(session, "x?y", **way)
            for name, where in (("x?y", session), (url + "?y", session.cache), (f"{base}x?y#z", session.cache)):
                there: Any = where
                assert [await there.has_url(name, **way) for way in ways] == [True] * 4
                assert not await there.has_url(name, params={"a": "9"})
            assert not await session.cache.has_url("x?y")
            for left, way in enumerate(ways[1:], 1):
                await session.delete_url("x?y", **way)
                assert [await session.has_url("x?y", **other) for other in ways] == [
                    n == 0 or n > left for n in range(4)
                ]
            await session.cache.delete_url(f"{base}x?y")
            assert not await session.has_url("x?y")

    run(main)


def test_urls_are_listed_byte_for_byte(origin: Origin, files: Cache) -> None:
    url = URL(origin.on("/x", Answer(200, KEPT, b"x")) + "?%28", encoded=True)

    async def main() -> None:
        async with session_of(files) as session:
            await fetched(session, url)
            (listed,) = [listed async for listed in session.cache.get_urls()]
            assert str(listed) == str(url)
            assert await session.has_url(listed)

    run(main)


@pytest.mark.parametrize("url", ["", "nope", "//host/", "http://a b/", "ftp://host/", "http:///x"])
def test_nothing_is_stored_for_what_no_request_can_have(files: Cache, url: str) -> None:
    async def main() -> None:
        async with session_of(files) as session:
            for where in (session, session.cache):
                assert not await where.has_url(url)
                await where.delete_url(url)

    run(main)


def test_a_shared_folder_keeps_what_is_others(origin: Origin, files: Cache, clock: Clock, tmp_path: Path) -> None:
    """A cache of other options, and a user of hishel, which goes by rules of its own."""
    hishel = pytest.importorskip("hishel")
    from vllm_http_cache.storage.hishel import as_hishel

    url = origin.on("/", Answer(200, {"Cache-Control": "max-age=1"}, b"x"))
    entries = as_hishel(FileStorage(tmp_path / "cache", clock=clock), clock=clock)
    created = entries.create_entry(
        hishel.Request("GET", origin.url("/h")), hishel.Response(200, hishel.Headers({}), iter((b"h",))), "key"
    )
    stream: Any = created.response.stream
    assert list(stream) == [b"h"]

    async def main() -> None:
        private = Cache(files.storage, CacheOptions(shared=False), clock=clock)
        async with session_of(files) as session, session_of(private) as other:
            await fetched(session, url)
            clock.advance(5)
            assert [url async for url in other.cache.get_urls()] == []
            await other.delete_expired_responses()
            await other.cache.clear()
            assert await session.has_url(url)
            assert [str(url) async for url in session.cache.get_urls()] == [url]
            await session.delete_expired_responses()
            assert not await session.has_url(url)
            await session.cache.clear()

    run(main)
    assert len(entries.get_entries("key")) == 1


def test_a_storage_that_cannot_list_says_so(tmp_path: Path) -> None:
    hishel = pytest.importorskip("hishel")
    from vllm_http_cache.storage.hishel import HishelStorage

    async def main() -> None:
        with Cache(HishelStorage(hishel.SqliteStorage(database_path=tmp_path / "db"))) as cache:
            async with session_of(cache) as session:
                for call in (session.cache.clear, session.delete_expired_responses, session.cache.get_urls().__anext__):
                    with pytest.raises(NotImplementedError, match="cannot list"):
                        await call()

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
