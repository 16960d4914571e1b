"""Sessions on a real cache with files: hits, downloads shared and streamed, loops that come and go."""

from __future__ import annotations

import asyncio
import gzip
import sys
import threading
from typing import Any

import aiohttp
import pytest
from aiohttp.client_proto import ResponseHandler

from tests.aiohttp.stand_ins import eventually, run, session_on
from tests.origin import Answer, Clock, Origin
from vllm_http_cache import Cache, CacheOptions
from vllm_http_cache.aiohttp import CacheMiddleware, refuse

KEPT = {"Cache-Control": "max-age=60", "ETag": '"1"'}
TEXT = b"hello world " * 50_000
CODED = gzip.compress(TEXT)


def status(response: aiohttp.ClientResponse) -> str:
    return response.headers["Cache-Status"]


@pytest.mark.parametrize("given", [None, Cache, "cache"])
def test_what_could_not_fetch_is_refused_at_once(given: Any) -> None:
    with pytest.raises(TypeError, match=r"cache has to be a Cache .*, not "):
        CacheMiddleware(given)


@pytest.mark.parametrize("size", [0, 5, 100_000, 3_000_000])
def test_miss_then_hit(origin: Origin, files: Cache, size: int) -> None:
    octets = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    url = origin.on("/", Answer(200, KEPT, octets))

    async def main() -> None:
        async with session_on(files) as session:
            for what in ("fwd=uri-miss", "hit"):
                async with session.get(url) as response:
                    assert await response.read() == octets
                    assert what in status(response)
                    assert response.content_length == size

    run(main)
    assert origin.count() == 1


@pytest.mark.skipif(sys.version_info < (3, 12), reason="no eager tasks")
def test_a_loop_may_begin_its_tasks_at_once(origin: Origin, files: Cache) -> None:
    octets = bytes(range(256)) * 10_000
    url = origin.on("/", Answer(200, KEPT, octets))

    async def main() -> None:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
        async with asyncio.timeout(10), session_on(files) as session:
            for what in ("fwd=uri-miss", "hit"):
                async with session.get(url) as response:
                    got = b""
                    while piece := await response.content.read(10_000):
                        got += piece
                        await asyncio.sleep(0)
                    assert got == octets and what in status(response)

    run(main)


def test_coded_is_stored_coded(origin: Origin, files: Cache) -> None:
    url = origin.on("/", Answer(200, {**KEPT, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}, CODED))

    async def main() -> None:
        async with session_on(files) as session, session_on(files, auto_decompress=False) as raw:
            for _ in range(2):
                async with session.get(url) as response:
                    assert await response.read() == TEXT
            async with raw.get(url) as response:
                assert await response.read() == CODED
                assert "hit" in status(response)
            async with session.get(url, headers={"Range": "bytes=0-9"}, auto_decompress=False) as response:
                assert (response.status, await response.read()) == (206, CODED[:10])

    run(main)
    assert origin.count() == 1


def test_a_304_to_us_and_to_the_caller(origin: Origin, files: Cache, clock: Clock) -> None:
    url = origin.on("/", Answer(200, KEPT, b"body"), Answer(304, KEPT))

    async def main() -> None:
        async with session_on(files) as session:
            for seconds in (0, 100):
                clock.advance(seconds)
                async with session.get(url) as response:
                    assert (response.status, await response.read()) == (200, b"body")
            async with session.get(url, headers={"If-None-Match": '"1"'}) as response:
                assert (response.status, await response.read()) == (304, b"")

    run(main)
    assert origin.count() == 2


def test_head_from_a_stored_get(origin: Origin, files: Cache) -> None:
    url = origin.on("/", Answer(200, KEPT, b"body"))

    async def main() -> None:
        async with session_on(files) as session:
            async with session.get(url) as response:
                await response.read()
            async with session.head(url) as response:
                assert response.content_length == 4
                assert await response.read() == b""

    run(main)
    assert origin.count() == 1


def test_hops_are_cached_each_by_its_own_rules(origin: Origin, files: Cache) -> None:
    origin.on("/final", Answer(200, KEPT, b"end"))
    origin.on("/kept", Answer(301, {"Location": "/final", **KEPT}))
    url = origin.on("/", Answer(307, {"Location": "/kept", "Cache-Control": "no-store"}))

    async def main() -> None:
        async with session_on(files) as session:
            for _ in range(3):
                async with session.get(url) as response:
                    assert await response.read() == b"end"
                    assert [hop.status for hop in response.history] == [307, 301]
                    assert str(response.url).endswith("/final")

    run(main)
    assert [origin.count(path) for path in ("/", "/kept", "/final")] == [3, 1, 1]


@pytest.mark.parametrize("rest", [0.1, 10.0])
def test_the_content_of_a_redirect(origin: Origin, files: Cache, rest: float) -> None:
    """aiohttp leaves it unread. It is stored all the same if it comes soon, and not waited for otherwise."""
    origin.on("/to", Answer(200, KEPT, b"end"))
    url = origin.on("/", Answer(301, {"Location": "/to", **KEPT}, [b"moved", rest, b"away"]))

    async def main() -> None:
        async with session_on(files) as session:
            for _ in range(2):
                async with session.get(url) as response:
                    assert await response.read() == b"end"

    run(main)
    assert origin.count("/") == (1 if rest == 0.1 else 2)


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_followers_stream_along(origin: Origin, files: Cache, framing: str) -> None:
    go = threading.Event()
    url = origin.on("/", Answer(200, KEPT, [b"first", go, b"second"], framing))  # type: ignore[arg-type]

    async def main() -> None:
        one, other = session_on(files), session_on(files)
        async with one, other, one.get(url) as leading, other.get(url) as following:
            assert await leading.content.readany() == b"first"
            assert await following.content.readany() == b"first"
            go.set()
            assert await following.read() == b"second"
            assert await leading.read() == b"second"
            assert "collapsed" in status(following)

    run(main)
    assert origin.count() == 1


def test_a_followers_timeouts(origin: Origin, files: Cache) -> None:
    go = threading.Event()
    url = origin.on("/", Answer(200, KEPT, [b"first", go, b"second"]))

    async def main() -> None:
        async with session_on(files) as session, session.get(url) as leading:
            await leading.content.readany()
            with pytest.raises(aiohttp.SocketTimeoutError):
                async with session.get(url, timeout=aiohttp.ClientTimeout(sock_read=0.1)) as following:
                    await following.read()
            with pytest.raises(TimeoutError):
                async with session.get(url, timeout=aiohttp.ClientTimeout(total=0.1)) as following:
                    await following.read()
            go.set()
            assert await leading.read() == b"second"

    run(main)
    assert origin.count() == 1


@pytest.mark.parametrize("how", ["leaves", "times out", "closes its session"])
def test_the_leader_goes(origin: Origin, files: Cache, how: str) -> None:
    go = threading.Event()
    url = origin.on("/", Answer(200, KEPT, [b"first", go, b"second"]))

    if how == "closes its session" and not hasattr(ResponseHandler, "closed"):
        pytest.skip("this aiohttp does not say when a connection is closed")

    async def main() -> None:
        async with session_on(files) as other:
            one = session_on(files)
            async with one.get(url, timeout=aiohttp.ClientTimeout(total=0.3)) as leading:
                assert await leading.content.readany() == b"first"
                following = await other.get(url)
                assert await following.content.readany() == b"first"
                if how == "times out":
                    with pytest.raises(TimeoutError):
                        await leading.content.readany()
            if how == "closes its session":
                await one.close()
            go.set()
            assert await following.read() == b"second"
            await one.close()

    run(main)
    assert origin.count() == (2 if how == "closes its session" else 1)


def test_cold_together(origin: Origin, files: Cache) -> None:
    url = origin.on("/", Answer(200, KEPT, TEXT, before=0.3))

    async def one(session: aiohttp.ClientSession) -> bytes:
        async with session.get(url) as response:
            return await response.read()

    async def main() -> None:
        async with session_on(files) as session:
            assert set(await asyncio.gather(*(one(session) for _ in range(32)))) == {TEXT}

    run(main)
    assert origin.count() == 1


def test_a_leader_cancelled_before_the_head(origin: Origin, files: Cache) -> None:
    url = origin.on("/", Answer(200, KEPT, TEXT, before=0.3))

    async def one(session: aiohttp.ClientSession) -> bytes:
        async with session.get(url) as response:
            return await response.read()

    async def main() -> None:
        async with session_on(files) as session:
            leader = asyncio.create_task(one(session))
            await asyncio.sleep(0.05)
            followers = [asyncio.create_task(one(session)) for _ in range(10)]
            await asyncio.sleep(0.05)
            leader.cancel()
            assert set(await asyncio.gather(*followers)) == {TEXT}
            with pytest.raises(asyncio.CancelledError):
                await leader

    run(main)
    assert origin.count() == 2


def test_stopped_after_a_chunk(origin: Origin, files: Cache) -> None:
    url = origin.on("/", Answer(200, KEPT, [b"first", 0.3, bytes(1_000_000), 0.3, b"x"]))

    async def main() -> None:
        async with session_on(files) as session:
            async with session.get(url) as response:
                await response.content.readany()
            for what in ("fwd", "hit"):
                async with session.get(url) as response:
                    assert what in status(response)
                    assert len(await response.read()) == 1_000_006

    run(main)
    assert origin.count() == 2


def test_two_loops_one_after_the_other_and_two_at_once(origin: Origin, files: Cache) -> None:
    url = origin.on("/", Answer(200, KEPT, TEXT))
    results: list[bytes] = []

    async def main() -> None:
        async with session_on(files) as session, session.get(url) as response:
            results.append(await response.read())

    for _ in range(2):
        run(main)
    threads = [threading.Thread(target=run, args=(main,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [TEXT] * 4
    assert origin.count() == 1


def test_validated_in_the_background(origin: Origin, files: Cache, clock: Clock) -> None:
    fields = {"Cache-Control": "max-age=1, stale-while-revalidate=60", "ETag": '"1"'}
    url = origin.on("/", Answer(200, fields, b"old"), Answer(200, {**fields, "ETag": '"2"'}, b"new"))

    async def main() -> None:
        async with session_on(files) as session:
            async with session.get(url, headers={"X-Mine": "1"}) as response:
                assert await response.read() == b"old"
            clock.advance(5)
            await asyncio.sleep(0.2)
            async with session.get(url, headers={"X-Mine": "1"}) as response:
                assert await response.read() == b"old"
            await eventually(lambda: origin.count() == 2)
            await asyncio.sleep(0.2)
            async with session.get(url) as response:
                assert await response.read() == b"new"

    run(main)
    assert origin.count() == 2
    assert origin.seen()[1].get("X-Mine") == "1"
    assert origin.seen()[1].get("If-None-Match") == '"1"'


def test_refused_octets_are_fetched_again(origin: Origin, files: Cache) -> None:
    url = origin.on("/", Answer(200, KEPT, b"bad"), Answer(200, KEPT, b"good"))

    async def main() -> None:
        async with session_on(files) as session:
            async with session.get(url) as response:
                assert await response.read() == b"bad"
                refuse(response)
            await asyncio.sleep(0.05)
            async with session.get(url) as response:
                assert await response.read() == b"good"

    run(main)


def test_invalid_target(files: Cache) -> None:
    async def main() -> None:
        async with session_on(files) as session:
            with pytest.raises(aiohttp.InvalidURL):
                await session.get("http://a%2fb.test/")

    run(main)


def test_only_if_cached(files: Cache, origin: Origin) -> None:
    url = origin.on("/", Answer(200, KEPT, b"x"))

    async def main() -> None:
        fields = {"Cache-Control": "only-if-cached"}
        async with session_on(files) as session, session.get(url, headers=fields) as response:
            assert response.status == 504
            assert await response.read() == b""

    run(main)
    assert not origin.count()


def test_what_is_not_from_the_cache_is_as_without_it(files: Cache, origin: Origin) -> None:
    url = origin.on("/", Answer(200, {"Content-Encoding": "gzip", "Cache-Status": "other; hit"}, CODED))

    async def main() -> None:
        async with (
            session_on(files) as session,
            aiohttp.ClientSession() as bare,
            session.post(url) as response,
            bare.post(url) as plain,
        ):
            assert await response.read() == await plain.read() == TEXT
            ours = {line for line in response.raw_headers if line[1].startswith(b"vllm-http-cache")}
            assert len(ours) == 1
            assert sorted(set(response.raw_headers) - ours) == sorted(plain.raw_headers)

    run(main)


def test_of_two_lines_of_codings_the_last_counts(files: Cache, origin: Origin) -> None:
    """As aiohttp has it."""
    fields = [("Cache-Control", "max-age=60"), ("Content-Encoding", "identity"), ("Content-Encoding", "gzip")]
    url = origin.on("/", Answer(200, fields, CODED))

    async def main() -> None:
        async with session_on(files) as session, aiohttp.ClientSession() as bare:
            async with bare.get(url) as plain:
                expected = await plain.read()
            for _ in range(2):
                async with session.get(url) as response:
                    assert await response.read() == expected == TEXT

    run(main)


def test_what_no_cache_understands_is_not_sent_in_mode_only_if_cached(files: Cache, origin: Origin) -> None:
    url = origin.on("/", Answer(200, KEPT, b"x"))
    alone = Cache(files.storage, CacheOptions(mode="only-if-cached"))

    async def main() -> None:
        requests: list[dict[str, Any]] = [{"data": b"content"}, {"headers": {"Upgrade": "foo"}}, {"expect100": True}]
        async with session_on(alone) as session:
            for request in requests:
                async with session.get(url, **request) as response:
                    assert response.status == 504

    run(main)
    assert not origin.count()
