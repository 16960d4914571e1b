"""vLLM's connection, used directly: what its callers use of its answers, and the world around it."""

from __future__ import annotations

import asyncio
import gzip
import time
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm.connections")

import aiohttp
import requests
from vllm.connections import global_http_connection as connection
from vllm.exceptions import VLLMUnprocessableEntityError
from vllm.multimodal.media import MediaConnector

from tests.origin import Answer, Origin
from tests.vllm.conftest import Plugin
from tests.vllm.media import Fetch, Octets, picture

FRESH = {"Cache-Control": "max-age=600", "ETag": '"1"'}
TEXT = "Ü" * 100_000


@pytest.fixture(autouse=True)
def _one_try(plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_MEDIA_FETCH_MAX_RETRIES", "1")


def bare_deflate(data: bytes) -> bytes:
    squeeze = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return squeeze.compress(data) + squeeze.flush()


CODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "gzip in members": lambda data: gzip.compress(data[:1000]) + gzip.compress(data[1000:]),
    "deflate": zlib.compress,
    "deflate bare": bare_deflate,
    "gzip, gzip": lambda data: gzip.compress(gzip.compress(data)),
    "unheard-of": lambda data: data,
}


@pytest.mark.parametrize("coder", CODERS)
def test_content_codings(plugin: Plugin, origin: Origin, fetch: Fetch, coder: str) -> None:
    plugin.start()
    coded = CODERS[coder](TEXT.encode())
    coding = coder if "," in coder else coder.split(maxsplit=1)[0]
    url = origin.on("/a", Answer(fields={**FRESH, "Content-Encoding": coding}, body=coded))
    assert [fetch.octets(url) for _ in range(3)] == [TEXT.encode()] * 3
    if coder != "deflate bare":  # not to the letter of the RFC, and not kept
        assert plugin.stored(coded)
        assert origin.count() == 1


@pytest.mark.parametrize("framing", ["chunked", "length"])
def test_a_bomb_is_stopped_at_the_limit(
    plugin: Plugin, origin: Origin, fetch: Fetch, framing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is decoded, and not after."""
    plugin.start()
    monkeypatch.setenv("VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB", "1")
    bomb = gzip.compress(bytes(100 * 1024 * 1024))
    url = origin.on("/a", Answer(fields={**FRESH, "Content-Encoding": "gzip"}, body=bomb, framing=framing))
    tracemalloc.start()
    try:
        with pytest.raises(VLLMUnprocessableEntityError):
            fetch.load(url, Octets(most=1024**2))
        assert tracemalloc.get_traced_memory()[1] < 50 * 1024**2
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "damage", [lambda c: b"nonsense" + c, lambda c: c[:50] + b"nonsense" * 50], ids=["at the start", "later"]
)
def test_damaged_codings(plugin: Plugin, origin: Origin, fetch: Fetch, damage: Callable[[bytes], bytes]) -> None:
    plugin.start()
    coded = damage(gzip.compress(bytes(range(256)) * 100))
    url = origin.on("/a", Answer(fields={**FRESH, "Content-Encoding": "gzip"}, body=coded))
    for _ in range(2):
        with pytest.raises((requests.exceptions.ContentDecodingError, aiohttp.ClientPayloadError)):
            fetch.octets(url)
    assert origin.count() == 2


@pytest.mark.parametrize("coding", ["chunked ", "identity, chunked"])
def test_chunks_however_they_are_announced(plugin: Plugin, origin: Origin, fetch: Fetch, coding: str) -> None:
    plugin.start()
    head = f"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nTransfer-Encoding: {coding}\r\n\r\n".encode()
    cut = b"a\r\nPNG octets\r\n4\r\nmo"
    url = origin.on("/a", Answer(body=head + cut + b"re\r\n0\r\n\r\n", framing="raw"))
    assert [fetch.octets(url) for _ in range(2)] == [b"PNG octetsmore"] * 2
    with pytest.raises((requests.exceptions.ChunkedEncodingError, aiohttp.ClientPayloadError)):
        fetch.octets(origin.on("/b", Answer(body=head + cut, framing="raw", end="cut")))


@pytest.mark.parametrize("damage", ["cut", "reset"])
def test_cut_bodies(plugin: Plugin, origin: Origin, fetch: Fetch, damage: Any) -> None:
    plugin.start()
    whole = b"x" * 200_000
    cut = Answer(fields=FRESH, body=whole[:100_000], length=len(whole), end=damage)
    url = origin.on("/a", cut, Answer(fields=FRESH, body=whole))
    with pytest.raises((requests.exceptions.RequestException, aiohttp.ClientError, ConnectionError)):
        fetch.octets(url)
    assert [fetch.octets(url) for _ in range(2)] == [whole, whole]
    assert origin.count() == 2


async def json_whatever_it_is(url: str) -> object:
    async with await connection.get_async_response(url) as answer:
        found: object = await answer.json(content_type=None)
        return found


def test_text_and_json(plugin: Plugin, origin: Origin) -> None:
    plugin.start()
    text = origin.on("/text", Answer(fields={**FRESH, "Content-Type": "text/plain; charset=latin-1"}, body=b"\xdc"))
    unknown = origin.on("/b", Answer(fields={**FRESH, "Content-Type": "text/plain; charset=x"}, body="Ü".encode()))
    data = origin.on("/json", Answer(fields={**FRESH, "Content-Type": "application/json"}, body=b'{"a": [1]}'))
    page = origin.on("/page", Answer(fields={**FRESH, "Content-Type": "text/html"}, body=b"{}"))
    for _ in range(2):
        assert connection.get_text(text) == "Ü"
        assert connection.get_json(data) == {"a": [1]}
        assert asyncio.run(connection.async_get_text(text)) == "Ü"
        assert asyncio.run(connection.async_get_text(unknown)) == "Ü"
        assert asyncio.run(connection.async_get_json(data)) == {"a": [1]}
        with pytest.raises(aiohttp.ContentTypeError):
            asyncio.run(connection.async_get_json(page))
        assert asyncio.run(json_whatever_it_is(page)) == {}
    assert (origin.count("/text"), origin.count("/json")) == (
        1,
        1,
    )  # of /page nothing is read, so perhaps nothing stored


def test_files(plugin: Plugin, origin: Origin, tmp_path: Path) -> None:
    plugin.start()
    body = bytes(range(256)) * 1000
    url = origin.on("/a", Answer(fields=FRESH, body=body))
    assert connection.download_file(url, tmp_path / "one").read_bytes() == body
    assert asyncio.run(connection.async_download_file(url, tmp_path / "two")).read_bytes() == body
    assert origin.count() == 1


def test_answers_are_awaited_or_entered(plugin: Plugin, origin: Origin) -> None:
    plugin.start()
    url = origin.on("/a", Answer(fields=FRESH, body=b"x"))

    async def both() -> None:
        answer = await (await connection.get_async_response(url))
        assert (answer.status, answer.reason, answer.ok, answer.content_length) == (200, "OK", True, 1)
        assert str(answer.url) == url
        assert await answer.read() == b"x"
        await answer.aclose()
        async with await connection.get_async_response(url) as answer:
            assert [piece async for piece in answer.content.iter_any()] == [b"x"]
            assert "hit" in answer.headers["Cache-Status"]

    asyncio.run(both())
    with connection.get_response(url, stream=True) as answer:
        assert (answer.status_code, answer.reason, answer.ok, answer.url) == (200, "OK", True, url)
        assert list(answer.iter_content(10)) == [b"x"]
        assert "hit" in answer.headers["Cache-Status"]
    with connection.get_response(url, stream=True) as answer:
        assert list(answer.iter_content(None)) == [b"x"], "as it comes"


def test_a_field_on_several_lines_is_joined(plugin: Plugin, origin: Origin) -> None:
    plugin.start()
    url = origin.on("/a", Answer(fields=(*FRESH.items(), ("X-A", "1"), ("x-a", "2")), body=b"x"))
    assert [connection.get_response(url).headers["X-A"] for _ in range(2)] == ["1, 2"] * 2


def test_extra_headers(plugin: Plugin, origin: Origin) -> None:
    plugin.start()
    url = origin.on("/a", Answer(fields={**FRESH, "Vary": "X-One"}, body=b"x"))

    async def get(value: str) -> None:
        async with await connection.get_async_response(url, extra_headers={"X-One": value}) as answer:
            await answer.read()

    for value in ("1", "2", "1", "2"):
        connection.get_response(url, extra_headers={"X-One": value})
        asyncio.run(get(value))
    assert [seen.get("x-one") for seen in origin.requests] == ["1", "2"]


def test_extra_headers_replace_the_usual(plugin: Plugin, origin: Origin) -> None:
    plugin.start()
    url = origin.on("/a", Answer(fields={"Cache-Control": "no-store"}, body=b"x"))

    async def get() -> None:
        async with await connection.get_async_response(url, extra_headers={"accept-encoding": "identity"}) as answer:
            await answer.read()

    connection.get_response(url, extra_headers={"accept-encoding": "identity"})
    asyncio.run(get())
    assert [seen.get("accept-encoding") for seen in origin.requests] == ["identity", "identity"]


def test_what_we_do_not_know_is_vllms(plugin: Plugin, origin: Origin) -> None:
    """An argument of a vLLM to come must not be lost."""
    plugin.start()
    url = origin.on("/a", Answer(fields=FRESH, body=b"x"))
    with pytest.raises(TypeError, match="to_come"):
        connection.get_response(url, to_come=1)
    with pytest.raises(TypeError, match="to_come"):
        asyncio.run(connection.get_async_response(url, to_come=1))


def test_clients_that_others_take(plugin: Plugin, origin: Origin) -> None:
    """They go through the cache, once, and keep no cookies."""
    plugin.start()
    url = origin.on("/a", Answer(fields={**FRESH, "Set-Cookie": "a=b"}, body=b"x"))
    other = origin.on("/b", Answer(fields={"Cache-Control": "no-store"}, body=b"x"))

    async def get(url: str) -> bytes:
        session = await connection.get_async_client()
        assert session is await connection.get_async_client()
        async with session.get(url) as answer:
            return bytes(await answer.read())

    for _ in range(2):
        assert connection.get_sync_client().get(url).content == b"x"
        assert asyncio.run(get(url)) == b"x"
    assert origin.count() == 1
    assert connection.get_sync_client().get(other).content == b"x"
    assert asyncio.run(get(other)) == b"x"
    assert [seen.get("cookie") for seen in origin.requests] == [None] * 3


def test_no_cookies(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    plugin.start()
    url = origin.on("/a", Answer(fields={"Cache-Control": "no-store", "Set-Cookie": "a=b"}, body=b"x"))
    assert [fetch.octets(url) for _ in range(2)] == [b"x", b"x"]
    assert [seen.get("cookie") for seen in origin.requests] == [None, None]


# Time.


def test_a_slow_head(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    plugin.start()
    url = origin.on("/a", Answer(fields=FRESH, body=b"x", before=5.0))
    begun = time.monotonic()
    with pytest.raises((TimeoutError, requests.Timeout)):
        fetch.octets(url, timeout=0.3)
    assert time.monotonic() - begun < 2


def test_a_slow_body(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    """aiohttp's timeout is for the whole, requests' for each read."""
    plugin.start()
    url = origin.on("/a", Answer(fields=FRESH, body=[b"x", 0.2, b"x", 0.2, b"x", 0.2, b"x"], framing="chunked"))
    if fetch.asynchronous:
        with pytest.raises(TimeoutError):
            fetch.octets(url, timeout=0.5)
    else:
        assert fetch.octets(url, timeout=0.5) == b"xxxx"


def test_stale_when_the_time_is_up(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    plugin.start(MEDIA_CACHE_STALE_IF_ERROR="600")
    fields = {"Cache-Control": "max-age=0", "ETag": '"1"'}
    url = origin.on("/a", Answer(fields=fields, body=b"x"), Answer(304, fields, before=5.0))
    assert [fetch.octets(url, timeout=0.5) for _ in range(2)] == [b"x", b"x"]


def test_retries(plugin: Plugin, origin: Origin, fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin.start()
    monkeypatch.setenv("VLLM_MEDIA_FETCH_MAX_RETRIES", "3")
    monkeypatch.setattr("vllm.connections._RETRY_BACKOFF_FACTOR", 1.0)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: sleep(min(seconds, 0.01)))
    url = origin.on("/a", Answer(framing="raw"), Answer(503), Answer(fields=FRESH, body=b"x"))
    assert fetch.octets(url) == b"x"
    assert origin.count() == 3


def test_a_connector_of_ones_own(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    plugin.start()

    class Own(MediaConnector):  # type: ignore[misc]
        def load_from_url(self, url: str, *arguments: Any, **more: Any) -> Any:
            return super().load_from_url(url + "?own", *arguments, **more)

        async def load_from_url_async(self, url: str, *arguments: Any, **more: Any) -> Any:
            return await super().load_from_url_async(url + "?own", *arguments, **more)

    url = origin.on("/a.png", Answer(fields=FRESH, body=picture(1)))
    for _ in range(2):
        fetch.on(Own(), "image", url)
    assert [seen.target for seen in origin.requests] == ["/a.png?own"]


def test_data_and_file_urls(plugin: Plugin, fetch: Fetch, tmp_path: Path) -> None:
    from base64 import b64encode

    plugin.start()
    fetch("image", "data:image/png;base64," + b64encode(picture()).decode())
    (tmp_path / "a.png").write_bytes(picture())
    fetch("image", (tmp_path / "a.png").as_uri(), allowed_local_media_path=str(tmp_path))
    assert not plugin.folder.exists()
