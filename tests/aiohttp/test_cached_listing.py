"""CachedSession: what it says is stored, and what it deletes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from tests.aiohttp.cached import KEPT, fetched, session_of
from tests.aiohttp.stand_ins import run
from tests.origin import Answer, Clock, Origin
from vllm_http_cache import Cache, CacheOptions, FileStorage

theirs = pytest.importorskip("aiohttp_client_cache")

from vllm_http_cache.aiohttp_client_cache import CachedSession  # noqa: E402 - without its extra there is none


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
            before = files.forgotten.now
            await session.delete_expired_responses()
            assert files.forgotten.now == before, "what is arriving is fresh"
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


def test_what_cannot_be_removed_is_no_longer_there(
    origin: Origin, files: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = origin.on("/", Answer(200, KEPT, b"x"))
    monkeypatch.setattr(files.storage, "forget", lambda key: None)

    async def main() -> None:
        async with session_of(files) as session:
            await fetched(session, url)
            await session.delete_url(url)
            assert not await session.has_url(url)

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
