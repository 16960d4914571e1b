"""The real MediaConnector fetches through the cache, on both its paths."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm.connections")

import aiohttp
import requests
from vllm.connections import HTTPConnection, HTTPResponseSizeExceededError, MediaRequestDownloadBudget
from vllm.connections import global_http_connection as connection
from vllm.exceptions import VLLMUnprocessableEntityError
from vllm.multimodal.media import MediaConnector

from tests.origin import Answer, Origin
from tests.vllm.conftest import Plugin
from tests.vllm.media import Fetch, clip, picture, sound

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

FRESH = {"Cache-Control": "max-age=600", "ETag": '"1"'}


def test_twenty_fetches_are_one_request(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    plugin.start()
    url = origin.on("/a.png", Answer(fields=FRESH, body=picture(7)))
    assert {fetch.grey(url) for _ in range(20)} == {7}
    assert origin.count() == 1


def test_sound_and_clip(plugin: Plugin, origin: Origin, fetch: Fetch, tmp_path: Path) -> None:
    plugin.start()
    heard = origin.on("/a.wav", Answer(fields=FRESH, body=sound(1600)))
    seen = origin.on("/a.avi", Answer(fields=FRESH, body=clip(tmp_path)))
    for _ in range(3):
        samples, rate = fetch("audio", heard)
        frames, metadata = fetch("video", seen)
        assert (len(samples), rate) == (1600, 16_000)
        assert frames.shape[1:] == (64, 64, 3)
        assert metadata["total_num_frames"] == 4
    assert (origin.count("/a.wav"), origin.count("/a.avi")) == (1, 1)


def test_what_one_path_stores_answers_the_other(plugin: Plugin, origin: Origin) -> None:
    plugin.start()
    url = origin.on("/a.png", Answer(fields={**FRESH, "Vary": "Accept, Accept-Encoding, User-Agent"}, body=picture(7)))
    assert [Fetch(asynchronous=form).grey(url) for form in (False, True, False)] == [7, 7, 7]
    assert origin.count() == 1
    assert (origin.requests[0].get("user-agent") or "").startswith("vLLM/")


def test_changed_content_is_seen(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    plugin.start()
    url = origin.on(
        "/a.png",
        Answer(fields={"Cache-Control": "max-age=0", "ETag": '"1"'}, body=picture(1)),
        Answer(304, {"Cache-Control": "max-age=0", "ETag": '"1"'}),
        Answer(fields={"Cache-Control": "max-age=600", "ETag": '"2"'}, body=picture(2)),
    )
    assert [fetch.grey(url) for _ in range(4)] == [1, 1, 2, 2]
    assert [seen.get("if-none-match") for seen in origin.requests] == [None, '"1"', '"1"']
    assert all((seen.get("user-agent") or "").startswith("vLLM/") for seen in origin.requests)


def test_no_store_is_never_on_disk(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    plugin.start()
    body = picture(3)
    url = origin.on("/a.png", Answer(fields={"Cache-Control": "no-store"}, body=body))
    assert [fetch.grey(url) for _ in range(3)] == [3, 3, 3]
    assert origin.count() == 3
    assert not plugin.stored(body)


def test_restarted(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    url = origin.on("/a.png", Answer(fields=FRESH, body=picture(4)))
    for _ in range(2):
        plugin.start()
        assert fetch.grey(url) == 4
    assert origin.count() == 1


def test_two_loops_one_after_the_other(plugin: Plugin, origin: Origin) -> None:
    """VLLM's own session ends with its first loop."""
    plugin.start()
    fetch = Fetch(asynchronous=True)
    urls = [origin.on(path, Answer(fields=FRESH, body=picture(5))) for path in ("/a.png", "/b.png")]
    assert [fetch.grey(url) for url in (*urls, *urls)] == [5] * 4
    assert origin.count() == 2


def test_together(plugin: Plugin, origin: Origin) -> None:
    """Without the server."""
    plugin.start()
    url = origin.on("/a.png", Answer(fields=FRESH, body=picture(6), before=0.3))

    async def together() -> list[Any]:
        connector = MediaConnector()
        return await asyncio.gather(*(connector.fetch_image_async(url) for _ in range(20)))

    assert len(asyncio.run(together())) == 20
    assert origin.count() == 1


class Taking:
    """A consumer that takes so many octets; keeps them, and where it got them."""

    def __init__(self, octets: int | None = None) -> None:
        self._octets = octets

    def get_max_bytes(self) -> int | None:
        return self._octets

    def load_bytes(self, data: bytes) -> bytes:
        self.thread = threading.current_thread()
        return data


def test_a_small_hit_does_not_pass_vllms_connection(
    plugin: Plugin, origin: Origin, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.start()
    url = origin.on("/a", Answer(fields=FRESH, body=b"octets"))
    assert fetch.load(url, Taking()) == b"octets"
    for name in ("get_bytes", "async_get_bytes"):
        monkeypatch.setattr(connection, name, None)
    taking = Taking()
    assert fetch.load(url, taking) == b"octets"
    if fetch.asynchronous:  # a consumer may take its time, so a task has a thread for it
        assert taking.thread is not threading.current_thread()


def test_a_hit_is_held_to_the_consumers_limit(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    plugin.start()
    url = origin.on("/a", Answer(fields=FRESH, body=b"octets"))
    assert fetch.load(url, Taking(6)) == b"octets"
    assert fetch.load(url, Taking(6)) == b"octets"
    with pytest.raises(HTTPResponseSizeExceededError, match="5 bytes"):
        fetch.load(url, Taking(5))
    assert origin.count() == 1


def test_a_hit_is_held_to_the_allowed_domains(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    plugin.start()
    url = origin.on("/a.png", Answer(fields=FRESH, body=picture(1)))
    assert fetch.grey(url) == fetch.grey(url, allowed_media_domains=["127.0.0.1"]) == 1
    with pytest.raises(ValueError, match="allowed domains"):
        fetch("image", url, allowed_media_domains=["good.test"])


def test_a_connection_of_the_users_own_is_not_answered(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    class Own(HTTPConnection):  # type: ignore[misc]
        def get_bytes(self, *_: Any, **__: Any) -> bytes:
            return picture(2)

        async def async_get_bytes(self, *_: Any, **__: Any) -> bytes:
            return picture(2)

    plugin.start()
    url = origin.on("/a.png", Answer(fields=FRESH, body=picture(1)))
    assert [fetch.grey(url), fetch.grey(url), fetch.grey(url, connection=Own())] == [1, 1, 2]


# what is refused, and as what.


@pytest.mark.parametrize("stored", [False, True], ids=["miss", "hit"])
def test_download_limit(
    plugin: Plugin, origin: Origin, fetch: Fetch, stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.start()
    body = sound(1_000_000)
    url = origin.on("/a.wav", Answer(fields=FRESH, body=body))
    if stored:
        assert fetch.octets(url) == body
    monkeypatch.setenv("VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB", "1")
    with pytest.raises(VLLMUnprocessableEntityError, match="VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB=1"):
        fetch("audio", url)
    assert origin.count() == 1


@pytest.mark.parametrize("stored", [False, True], ids=["miss", "hit"])
def test_limit_without_content_length(
    plugin: Plugin, origin: Origin, fetch: Fetch, stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.start()
    url = origin.on("/a.wav", Answer(fields=FRESH, body=sound(1_000_000), framing="chunked"))
    if stored:
        fetch.octets(url)
    monkeypatch.setenv("VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB", "1")
    with pytest.raises(VLLMUnprocessableEntityError, match="VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB=1"):
        fetch("audio", url)


@pytest.mark.parametrize("stored", [False, True], ids=["miss", "hit"])
def test_request_budget(
    plugin: Plugin, origin: Origin, fetch: Fetch, stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.start()
    url = origin.on("/a.wav", Answer(fields=FRESH, body=sound(400_000)))
    if stored:
        fetch("audio", url)
    monkeypatch.setenv("VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB", "1")
    budget = MediaRequestDownloadBudget()
    fetch("audio", url, download_budget=budget)
    with pytest.raises(VLLMUnprocessableEntityError, match="REQUEST_DOWNLOAD_SIZE_MB=1"):
        fetch("audio", url, download_budget=budget)


def test_what_came_of_a_content_that_broke_counts(
    plugin: Plugin, origin: Origin, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As "including retried attempts" has it."""
    plugin.start()
    monkeypatch.setenv("VLLM_MEDIA_FETCH_MAX_RETRIES", "1")
    url = origin.on("/a.wav", Answer(fields=FRESH, body=bytes(600_000), length=700_000, end="cut"))
    budget = MediaRequestDownloadBudget()
    with pytest.raises((requests.RequestException, aiohttp.ClientError)):
        fetch("audio", url, download_budget=budget)
    assert budget.used == 600_000


def test_a_limit_is_noticed_while_more_would_come(
    plugin: Plugin, origin: Origin, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request's budget is held to before the body's end, which may never come."""
    plugin.start()
    rest = threading.Event()
    body = bytes(3 * 1024**2)
    url = origin.on("/a.wav", Answer(fields=FRESH, body=[body, rest, body], length=2 * len(body)))
    monkeypatch.setenv("VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB", "1")
    with pytest.raises(VLLMUnprocessableEntityError, match="REQUEST_DOWNLOAD_SIZE_MB=1"):
        fetch("audio", url, download_budget=MediaRequestDownloadBudget())
    assert not rest.is_set()
    rest.set()


def test_at_hand_is_what_vllm_would_dial(
    plugin: Plugin, origin: Origin, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.start()
    origin.on("/a", Answer(fields=FRESH, body=b"octets"))
    url = f"http://127.0.0.1:{origin.port}/x/../a"
    assert fetch.load(url, Taking()) == b"octets"
    for name in ("get_bytes", "async_get_bytes"):
        monkeypatch.setattr(connection, name, None)
    assert fetch.load(url, Taking()) == b"octets"


@pytest.mark.parametrize("fields", [{"Cache-Control": "max-age=600"}, {"Cache-Control": "no-store"}])
def test_404_is_422(plugin: Plugin, origin: Origin, fetch: Fetch, fields: dict[str, str]) -> None:
    plugin.start()
    url = origin.on("/a.png", Answer(404, fields, b"no such thing"))
    for _ in range(2):
        with pytest.raises(VLLMUnprocessableEntityError, match="HTTP 404"):
            fetch("image", url)
    assert origin.count() == (1 if "max-age" in fields["Cache-Control"] else 2)


def test_503_is_retried(plugin: Plugin, origin: Origin, fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin.start()
    monkeypatch.setattr("vllm.connections._RETRY_BACKOFF_FACTOR", 0.1)
    url = origin.on("/a.png", Answer(503), Answer(fields=FRESH, body=picture(8)))
    assert fetch.grey(url) == 8
    assert origin.count() == 2


def test_invalid_urls_are_refused_in_vllms_words(plugin: Plugin, fetch: Fetch) -> None:
    plugin.start()
    with pytest.raises(ValueError, match="Invalid HTTP URL"):
        fetch.octets("ftp://example.test/a.png")


# no cache.


def test_unwritable_folder(plugin: Plugin, origin: Origin, fetch: Fetch, caplog: pytest.LogCaptureFixture) -> None:
    plugin.folder.write_bytes(b"a file where the folder should be")
    plugin.start()
    url = origin.on("/a.png", Answer(fields=FRESH, body=picture(9)))
    assert [fetch.grey(url) for _ in range(3)] == [9, 9, 9]
    assert origin.count() == 3
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


def test_bad_setting(plugin: Plugin, origin: Origin, fetch: Fetch, caplog: pytest.LogCaptureFixture) -> None:
    plugin.start(MEDIA_CACHE_MODE="sometimes")
    url = origin.on("/a.png", Answer(fields=FRESH, body=picture(9)))
    assert [fetch.grey(url) for _ in range(2)] == [9, 9]
    assert origin.count() == 2
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "MEDIA_CACHE_MODE='sometimes'" in warning
    assert not plugin.folder.exists()
