"""The real API server: chat messages with an image's URL, rendered without a GPU."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm.connections")

from tests.folders import holds
from tests.origin import Answer, Origin
from tests.vllm.media import Fetch, picture
from tests.vllm.server import Server
from tests.vllm.tiny_model import write_tiny_model

FRESH = {"Cache-Control": "max-age=600", "ETag": '"1"'}


class Pair:
    """Two servers on one folder, and how to start another."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self.cache = folder / "cache"
        self.model = write_tiny_model(folder / "model")
        with ThreadPoolExecutor() as pool:
            self.one, self.other = pool.map(self.start, ("one", "other"))

    def start(self, name: str, **environ: str) -> Server:
        environ = {"VLLM_MEDIA_CACHE": str(self.cache), "VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB": "1", **environ}
        return self._stack.enter_context(Server(self.model, self._folder / f"{name}.log", environ))

    def stored(self, octets: bytes) -> bool:
        return holds(self.cache, octets)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(tmp_path_factory.mktemp("servers"), stack)


def hashes(server: Server, url: str) -> list[str]:
    """What the model would see, by hash."""
    answer = server.render(url)
    assert answer.status_code == 200, answer.text
    found: list[str] = answer.json()["features"]["mm_hashes"]["image"]
    return found


def test_twenty_one_after_the_other(pair: Pair, origin: Origin) -> None:
    url = origin.on("/a.png", Answer(fields=FRESH, body=picture(1)))
    assert len({tuple(hashes(pair.one, url)) for _ in range(20)}) == 1
    assert origin.count() == 1


def test_twenty_at_once(pair: Pair, origin: Origin) -> None:
    url = origin.on("/a.png", Answer(fields=FRESH, body=picture(2), before=0.3))
    with ThreadPoolExecutor(20) as pool:
        assert len({tuple(found) for found in pool.map(lambda _: hashes(pair.one, url), range(20))}) == 1
    assert origin.count() == 1


def test_two_servers_are_one_download(pair: Pair, origin: Origin) -> None:
    url = origin.on("/a.png", Answer(fields=FRESH, body=picture(3), before=0.3))
    with ThreadPoolExecutor(20) as pool:
        servers = [pair.one, pair.other] * 10
        assert len({tuple(found) for found in pool.map(lambda server: hashes(server, url), servers)}) == 1
    assert origin.count() == 1


def test_changed_content(pair: Pair, origin: Origin) -> None:
    fields = {"Cache-Control": "max-age=0", "ETag": '"1"'}
    url = origin.on(
        "/a.png",
        Answer(fields=fields, body=picture(4)),
        Answer(304, fields),
        Answer(fields={"Cache-Control": "max-age=0", "ETag": '"2"'}, body=picture(5)),
    )
    first, second, third = (hashes(pair.one, url) for _ in range(3))
    assert first == second != third
    assert [seen.get("if-none-match") for seen in origin.requests] == [None, '"1"', '"1"']


def test_no_store(pair: Pair, origin: Origin) -> None:
    body = picture(6)
    url = origin.on("/a.png", Answer(fields={"Cache-Control": "no-store"}, body=body))
    for _ in range(3):
        hashes(pair.one, url)
    assert origin.count() == 3
    assert not pair.stored(body)


def test_refusals(pair: Pair, origin: Origin) -> None:
    absent = origin.on("/absent.png", Answer(404, {"Cache-Control": "max-age=600"}, b"no such thing"))
    page = origin.on("/page.png", Answer(fields=FRESH, body=b"<html>"), Answer(fields=FRESH, body=picture(7)))
    for _ in range(2):
        answer = pair.one.render(absent)
        assert (answer.status_code, "HTTP 404" in answer.text) == (422, True)
    assert pair.one.render(page).status_code == 400
    hashes(pair.one, page)
    assert (origin.count("/absent.png"), origin.count("/page.png")) == (1, 2)


def test_size_limit_from_a_miss_and_from_a_hit(pair: Pair, origin: Origin, plugin: Any) -> None:
    body = picture(8) + bytes(2_000_000)
    missed = origin.on("/missed.png", Answer(fields=FRESH, body=body))
    hit = origin.on("/hit.png", Answer(fields=FRESH, body=body))
    plugin.folder = pair.cache
    plugin.start()
    Fetch(asynchronous=True).octets(hit)  # where no limit is set
    assert pair.stored(body)
    for url in (missed, hit):
        answer = pair.one.render(url)
        assert (answer.status_code, "VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB=1" in answer.text) == (422, True)
    assert origin.count("/hit.png") == 1


def test_the_log(pair: Pair, origin: Origin) -> None:
    url = origin.on("/a.png", Answer(fields=FRESH, body=picture(9)))
    for server in (pair.one, pair.other):
        hashes(server, url)
        lines = server.log.read_text().splitlines()
        (line,) = (line for line in lines if "vllm-http-cache is active" in line)
        assert "INFO" in line
        assert str(pair.cache) in line
        assert not [line for line in lines if "Media cache enabled" in line or "Unknown vLLM environment" in line]


def test_metrics(pair: Pair, origin: Origin) -> None:
    url = origin.on("/a.png", Answer(fields=FRESH, body=picture(11)))
    for _ in range(3):
        hashes(pair.one, url)
    counted = [line for line in pair.one.metrics().splitlines() if line.startswith("vllm_http_cache_requests_total")]
    hits = [line for line in counted if 'outcome="hit"' in line]
    assert float(hits[0].split()[-1]) >= 2


def test_restarted_without_a_network(pair: Pair, origin: Origin) -> None:
    """A new process finds what the others stored; and what it does not find it refuses at once, untried."""
    url = origin.on("/a.png", Answer(fields={"Cache-Control": "max-age=0", "ETag": '"1"'}, body=picture(10)))
    known = hashes(pair.one, url)
    pair.one.close()
    pair.other.close()
    third = pair.start("third", MEDIA_CACHE_MODE="only-if-cached")
    assert hashes(third, url) == known
    begun = time.monotonic()
    answer = third.render(origin.url("/b.png"))
    assert (answer.status_code, "not in the media cache" in answer.text) == (504, True)
    assert time.monotonic() - begun < 1
    assert origin.count() == 1
