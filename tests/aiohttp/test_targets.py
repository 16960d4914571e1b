"""Which requests reach the cache, and what goes out: methods, contents, URLs, hops, policies."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import aiohttp
import pytest
from yarl import URL

from tests.aiohttp.stand_ins import Script, passing, run, session_on, stored
from tests.origin import Answer, Origin
from vllm_http_cache.rfc9111.options import CacheOptions


@pytest.mark.parametrize("data", [b"content", {"a": "b"}])
def test_requests_with_content_pass_whole(origin: Origin, data: Any) -> None:
    url = origin.on("/", Answer(200, {}, b"done"))
    cache = passing()

    async def main() -> None:
        async with session_on(cache) as session:
            for method in ("POST", "PUT", "DELETE"):
                async with session.request(method, url, data=data) as response:
                    assert await response.read() == b"done"
                    assert response.headers["Cache-Status"] == "stand-in"

    run(main)
    assert [seen.body for seen in origin.seen()] == [b"content" if isinstance(data, bytes) else b"a=b"] * 3
    assert [asked.method for asked in cache.asked] == ["POST", "PUT", "DELETE"]


def test_a_307_sends_the_content_again(origin: Origin) -> None:
    origin.on("/to", Answer(200, {}, b"done"))
    url = origin.on("/", Answer(307, {"Location": "/to"}))

    async def main() -> None:
        async with session_on(passing()) as session, session.post(url, data=b"content") as response:
            assert await response.read() == b"done"

    run(main)
    assert [seen.body for seen in origin.seen()] == [b"content", b"content"]


def test_what_goes_by(origin: Origin) -> None:
    url = origin.on("/", Answer(200, {}, b"done"))
    cache, _ = stored(b"stored")

    async def main() -> None:
        async with session_on(cache) as session:
            async with session.get(url, data=b"query") as response:
                assert await response.read() == b"done"
            for field in ("Upgrade", "Expect"):
                async with session.get(url, headers={field: "x"}) as response:
                    assert await response.read() == b"done"
            with pytest.raises(aiohttp.WSServerHandshakeError):
                await session.ws_connect(url)
        off = Script(cache.afetch_, CacheOptions(mode="off"))
        async with session_on(off) as session, session.get(url) as response:
            assert await response.read() == b"done"

    run(main)
    assert not cache.asked


def test_targets_go_out_as_they_came(origin: Origin) -> None:
    target = "/a%2Fb?X-Sig=%28a%2Fb%29+c%2Bd&e=~"
    origin.on("/a%2Fb", Answer(200, {}, b"x"))
    cache = passing()

    async def main() -> None:
        async with session_on(cache) as session, session.get(URL(origin.url(target), encoded=True)) as response:
            assert await response.read() == b"x"

    run(main)
    assert origin.seen()[0].target == target
    assert cache.asked[0].uri == origin.url(target)


def test_every_hop_passes(origin: Origin) -> None:
    origin.on("/b", Answer(301, {"Location": "/c"}))
    origin.on("/c", Answer(200, {}, b"end"))
    url = origin.on("/a", Answer(302, {"Location": "/b"}, b"unread"))
    cache = passing()
    policed: list[str] = []

    async def main() -> None:
        async with session_on(cache, url_policy=policed.append) as session, session.get(url) as response:
            assert await response.read() == b"end"
            assert [hop.status for hop in response.history] == [302, 301]
            assert all("Cache-Status" in hop.headers for hop in response.history)

    run(main)
    assert [asked.uri for asked in cache.asked] == policed == [origin.url(path) for path in ("/a", "/b", "/c")]


def test_the_policy_refuses_before_the_cache_is_asked(origin: Origin) -> None:
    url = origin.on("/a", Answer(302, {"Location": "http://169.254.169.254/"}))
    cache = passing()

    def policy(uri: str) -> None:
        if "169.254" in uri:
            raise ValueError(uri)

    async def main() -> None:
        async with session_on(cache, url_policy=policy) as session:
            with pytest.raises(ValueError, match=r"169\.254"):
                await session.get(url)

    run(main)
    assert len(cache.asked) == origin.count() == 1


@pytest.mark.parametrize("url", ["http://good%2Etest/", "http://good.test%00.evil.test/", "http://a%5Cb.test/"])
def test_an_ambiguous_host_is_refused(url: str) -> None:
    cache, _ = stored(b"x")

    async def main() -> None:
        async with session_on(cache, url_policy=lambda uri: None) as session:
            with pytest.raises((aiohttp.InvalidURL, ValueError)):
                await session.get(URL(url, encoded=True))

    run(main)
    assert not cache.asked


def test_policy_and_dial_read_one_url(origin: Origin) -> None:
    """An authority with a backslash: whoever is policed is who is dialled."""
    policed: list[str] = []

    async def main() -> None:
        async with session_on(passing(), url_policy=policed.append) as session:
            with suppress(aiohttp.ClientError, ValueError):
                await session.get(f"http://127.0.0.1:{origin.port}\\@good.test/")

    run(main)
    assert not origin.seen()
    assert all("good.test" in uri for uri in policed)
