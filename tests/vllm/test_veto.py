"""Octets that do not decode drop their entry, and are fetched once more where they had been stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests

pytest.importorskip("vllm.connections")

from vllm.connections import MediaRequestDownloadBudget
from vllm.multimodal.media import MediaConnector
from vllm.multimodal.media.base import MediaDecodedBudget

from tests.origin import Answer, Origin
from tests.vllm.conftest import Plugin
from tests.vllm.media import Fetch, Octets, clip, picture, sound
from vllm_http_cache import Cache, FileStorage
from vllm_http_cache.requests import CacheAdapter

FRESH = {"Cache-Control": "max-age=600", "ETag": '"1"'}
PAGE = b"<html>come back later</html>"


@pytest.mark.parametrize("bad", [PAGE, b"", picture(1)[:60]], ids=["html", "empty", "cut"])
def test_the_next_call_succeeds(plugin: Plugin, origin: Origin, fetch: Fetch, bad: bytes) -> None:
    plugin.start()
    url = origin.on("/a.png", Answer(fields=FRESH, body=bad), Answer(fields=FRESH, body=picture(1)))
    with pytest.raises(ValueError, match="Failed to load image"):
        fetch("image", url)
    assert origin.count() == 1  # the octets are the origin's, just now: no use to ask again
    assert [fetch.grey(url) for _ in range(2)] == [1, 1]
    assert origin.count() == 2


@pytest.mark.parametrize("kind", ["image", "audio", "video"])
def test_what_was_stored_is_fetched_once_more(
    plugin: Plugin, origin: Origin, fetch: Fetch, kind: str, tmp_path: Path
) -> None:
    good = {"image": picture(1), "audio": sound(), "video": clip(tmp_path)}[kind]
    plugin.start()
    url = origin.on("/media", Answer(fields=FRESH, body=PAGE * 100), Answer(fields=FRESH, body=good))
    assert fetch.octets(url) == PAGE * 100  # somebody who does not decode it
    soundfile = {"audio": {"audio_backend": "soundfile"}}  # the other, PyAV, is not in the small environment
    for _ in range(2):
        fetch(kind, url, media_io_kwargs=soundfile)
    assert origin.count() == 2
    assert not plugin.stored(PAGE)


def test_only_once_more(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    plugin.start()
    url = origin.on("/a.png", Answer(fields=FRESH, body=PAGE))
    fetch.octets(url)
    with pytest.raises(ValueError, match="Failed to load image"):
        fetch("image", url)
    assert origin.count() == 2
    assert not plugin.stored(PAGE)


def test_a_validated_body_counts_as_stored(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    plugin.start()
    fields = {"Cache-Control": "max-age=0", "ETag": '"1"'}
    answers = (Answer(fields=fields, body=PAGE), Answer(304, fields), Answer(fields=fields, body=picture(1)))
    url = origin.on("/a.png", *answers)
    fetch.octets(url)
    assert fetch.grey(url) == 1
    assert [seen.get("if-none-match") for seen in origin.requests] == [None, '"1"', None]


def test_empty_content_is_not_kept(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    plugin.start()
    url = origin.on("/a", Answer(fields=FRESH), Answer(fields=FRESH, body=b"something"))
    assert [fetch.octets(url) for _ in range(3)] == [b"", b"something", b"something"]
    assert origin.count() == 2


def test_empty_content_that_others_have_stored_is_not_kept(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    url = origin.on("/a", Answer(fields=FRESH), Answer(fields=FRESH, body=b"something"))
    with Cache(FileStorage(plugin.folder)) as cache, requests.Session() as session:
        session.mount("http://", CacheAdapter(cache))
        assert [session.get(url).content for _ in range(2)] == [b"", b""]
    assert origin.count() == 1
    plugin.start()
    fetch.octets(origin.on("/b", Answer(body=b"x")))  # the cache is open
    assert [fetch.load(url, Octets()) for _ in range(3)] == [b"", b"something", b"something"]
    assert [seen.target for seen in origin.requests].count("/a") == 2


def test_limits_are_no_veto(plugin: Plugin, origin: Origin, fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin.start()
    url = origin.on("/a.png", Answer(fields=FRESH, body=picture(1)))
    fetch("image", url)
    monkeypatch.setenv("VLLM_MAX_IMAGE_PIXELS", "10")
    for _ in range(2):
        with pytest.raises(ValueError, match="VLLM_MAX_IMAGE_PIXELS"):
            fetch("image", url)
    monkeypatch.delenv("VLLM_MAX_IMAGE_PIXELS")
    assert fetch.grey(url) == 1
    assert origin.count() == 1


@pytest.mark.parametrize(
    "error, asked",
    [
        (ValueError("Failed to load image: broken"), 2),
        (ValueError("Failed to load image: more than VLLM_MAX_IMAGE_PIXELS"), 1),
        (RuntimeError("Failed to load image: no thread to do it in"), 1),
    ],
    ids=["octets", "limit", "circumstances"],
)
def test_only_octets_are_vetoed(plugin: Plugin, origin: Origin, fetch: Fetch, error: Exception, asked: int) -> None:
    plugin.start()
    url = origin.on("/a.png", Answer(fields=FRESH, body=picture(1)))
    fetch.octets(url)
    with pytest.raises(type(error), match="Failed"):
        fetch.load(url, Octets(error))
    assert origin.count() == asked


def test_a_silent_clip_is_no_veto(plugin: Plugin, origin: Origin, fetch: Fetch, tmp_path: Path) -> None:
    """vLLM asks a clip for its soundtrack, and it may have none."""
    plugin.start()
    url = origin.on("/a.avi", Answer(fields=FRESH, body=clip(tmp_path)))
    fetch("video", url)

    for _ in range(2):
        with pytest.raises(ValueError, match="No audio stream"):
            fetch.load(url, Octets(ValueError("No audio stream found.")))
    fetch("video", url)
    assert origin.count() == 1


def test_budgets_are_charged_once(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    plugin.start()
    whole = picture(1, side=64)
    cut = whole[:-30]  # its size is known, and charged, before its end is missed
    url = origin.on("/a.png", Answer(fields=FRESH, body=cut), Answer(fields=FRESH, body=whole))
    fetch.octets(url)
    downloads, decoded = MediaRequestDownloadBudget(), MediaDecodedBudget()
    downloads.used, decoded.used = 100, 1000  # of the request's other media
    fetch("image", url, download_budget=downloads, decoded_budget=decoded)
    assert origin.count() == 2
    assert downloads.used == 100 + len(whole)
    assert decoded.used == 1000 + 64 * 64 * 4


def test_an_error_of_the_fetch_is_no_veto(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    plugin.start()
    url = origin.on("/a.png", Answer(404, FRESH, b"Failed to load image"))
    for _ in range(2):
        with pytest.raises(Exception, match="HTTP 404"):
            fetch("image", url)
    assert origin.count() == 1


def test_many_at_once(plugin: Plugin, origin: Origin) -> None:
    """A stored page that many ask for together is replaced by few requests."""
    plugin.start()
    url = origin.on("/a.png", Answer(fields=FRESH, body=PAGE), Answer(fields=FRESH, body=picture(1), before=0.2))
    Fetch(asynchronous=True).octets(url)

    async def together(fetch: Callable[[str], Any]) -> list[Any]:
        return await asyncio.gather(*(fetch(url) for _ in range(20)))

    assert len(asyncio.run(together(MediaConnector().fetch_image_async))) == 20
    assert origin.count() <= 3
