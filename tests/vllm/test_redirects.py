"""Each hop is a request of its own, held to vLLM's policy whether it is cached or not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("vllm.connections")

import requests
from aiohttp import TooManyRedirects
from vllm.exceptions import VLLMUnprocessableEntityError

from tests.origin import Answer, Clock, Origin
from tests.vllm.conftest import Plugin
from tests.vllm.media import Fetch, picture

FRESH = {"Cache-Control": "max-age=600"}


@pytest.fixture
def elsewhere(clock: Clock) -> Iterator[Origin]:
    """Another host."""
    with Origin(clock, "127.0.0.2") as origin:
        yield origin


def redirect(status: int, location: str, cache_control: str = "no-store") -> Answer:
    return Answer(status, {"Location": location, "Cache-Control": cache_control}, b"over there")


def test_each_hop_by_its_own_rules(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    plugin.start()
    url = origin.on("/", redirect(307, "/final"))
    origin.on("/final", Answer(fields=FRESH, body=picture(1)))
    assert [fetch.grey(url) for _ in range(3)] == [1, 1, 1]
    assert (origin.count("/"), origin.count("/final")) == (3, 1)


def test_a_cached_redirect(plugin: Plugin, origin: Origin, elsewhere: Origin, fetch: Fetch) -> None:
    plugin.start()
    there = elsewhere.on("/final", Answer(fields=FRESH, body=picture(1)))
    url = origin.on("/", redirect(301, there, "max-age=600"))
    assert [fetch.grey(url) for _ in range(3)] == [1, 1, 1]
    assert (origin.count(), elsewhere.count()) == (1, 1)


def test_a_host_that_is_not_allowed_is_not_dialled(
    plugin: Plugin, origin: Origin, elsewhere: Origin, fetch: Fetch
) -> None:
    plugin.start()
    body = picture(1)
    there = elsewhere.on("/final", Answer(fields=FRESH, body=body))
    url = origin.on("/", redirect(302, there, "max-age=600"))
    with pytest.raises(
        VLLMUnprocessableEntityError, match=r"leads to 127\.0\.0\.2\. The URL must be from one of the allowed domains"
    ):
        fetch("image", url, allowed_media_domains=["127.0.0.1"])
    assert (origin.count(), elsewhere.accepted) == (1, 0)
    assert not plugin.stored(b"over there")
    assert fetch.grey(url) == 1  # without a policy


def test_a_stricter_policy_refuses_what_is_cached(
    plugin: Plugin, origin: Origin, elsewhere: Origin, fetch: Fetch
) -> None:
    plugin.start()
    there = elsewhere.on("/final", Answer(fields=FRESH, body=picture(1)))
    url = origin.on("/", redirect(301, there, "max-age=600"))
    assert fetch.grey(url, allowed_media_domains=["127.0.0.1", "127.0.0.2"]) == 1
    plugin.start()
    with pytest.raises(VLLMUnprocessableEntityError, match="one of the allowed domains"):
        fetch("image", url, allowed_media_domains=["127.0.0.1"])
    assert fetch.grey(url) == 1  # for others it is what it was
    assert (origin.count(), elsewhere.count()) == (1, 1)


def test_redirects_switched_off(plugin: Plugin, origin: Origin, fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin.start()
    url = origin.on("/", Answer(302, {"Location": "/final", "Cache-Control": "max-age=600"}))
    origin.on("/final", Answer(fields=FRESH, body=picture(1)))
    monkeypatch.setenv("VLLM_MEDIA_URL_ALLOW_REDIRECTS", "0")
    for _ in range(2):
        with pytest.raises(ValueError, match="Failed to load image"):
            fetch("image", url)
    monkeypatch.setenv("VLLM_MEDIA_URL_ALLOW_REDIRECTS", "1")
    assert fetch.grey(url) == 1


def test_a_location_is_no_redirect_by_itself_nor_a_redirect_without_one(
    plugin: Plugin, origin: Origin, fetch: Fetch
) -> None:
    plugin.start()
    here = origin.on("/a", Answer(200, {**FRESH, "Location": "/c"}, b"here"))
    nowhere = origin.on("/b", Answer(302, FRESH, b"nowhere"))
    assert [fetch.octets(url) for url in (here, nowhere)] == [b"here", b"nowhere"]
    assert origin.count() == 2


def test_in_circles(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    """As many as the client would follow, and then its own error."""
    plugin.start()
    url = origin.on("/", redirect(302, "/"))
    with pytest.raises((requests.TooManyRedirects, TooManyRedirects)):
        fetch.octets(url)
    assert origin.count() == (10 if fetch.asynchronous else 31)


@pytest.mark.parametrize("location", ["ftp://127.0.0.1/a.png", "file:///etc/passwd", "http://a b/", "http://:x/"])
def test_to_nowhere(plugin: Plugin, origin: Origin, fetch: Fetch, location: str) -> None:
    plugin.start()
    url = origin.on("/", redirect(302, location))
    with pytest.raises(VLLMUnprocessableEntityError, match="Invalid URL"):
        fetch("image", url)
    assert origin.count() == 1


def test_octets_reach_the_origin_as_they_were(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    """Nothing is decoded, or escaped once more; vLLM, and urllib3 below requests, write escapes in capitals."""
    plugin.start()
    target = "/b%28a%2Fb%29+c?X=%2B+%20&sig=a%2Fb%3D&empty="
    origin.on("/b%28a%2Fb%29+c", Answer(fields=FRESH, body=picture(1)))
    assert fetch.grey(origin.url(target)) == 1
    there = "/z%7E%28%2F(~)%29?k=%2B+%27'&empty="
    url = origin.on("/a", redirect(302, there))
    origin.on("/z%7E%28%2F(~)%29", Answer(fields=FRESH, body=picture(2)))
    assert fetch.grey(url) == 2
    assert [seen.target for seen in origin.requests] == [target, "/a", there]


@pytest.mark.parametrize("host", ["127.0.0.1:{port}\\@good.test", "%31%32%37.0.0.1:{port}"])
def test_ambiguous_hosts(plugin: Plugin, origin: Origin, fetch: Fetch, host: str) -> None:
    plugin.start()
    url = f"http://{host.format(port=origin.port)}/"
    with pytest.raises(ValueError, match=r"allowed domains|Invalid URL"):
        fetch("image", url, allowed_media_domains=["good.test"])
    assert origin.accepted == 0


def test_credentials_stay_with_their_origin(plugin: Plugin, origin: Origin, elsewhere: Origin, fetch: Fetch) -> None:
    plugin.start()
    there = elsewhere.on("/final", Answer(fields=FRESH, body=b"x"))
    origin.on("/", redirect(302, "/next"))
    origin.on("/next", redirect(302, there))
    fetch.octets(f"http://user:pass%40word@127.0.0.1:{origin.port}/")
    assert [seen.get("authorization") for seen in origin.requests] == ["Basic dXNlcjpwYXNzQHdvcmQ="] * 2
    assert [seen.get("authorization") for seen in elsewhere.requests] == [None]
