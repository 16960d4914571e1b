"""Processes that leave their event loop in whatever way come to their end, and without a word."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.origin import Answer, Origin
from vllm_http_cache import Cache, FileStorage
from vllm_http_cache.httpx import CacheTransport

BODY = b"picture " * 1000
End = Callable[..., tuple[int, str]]


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as origin:
        origin.on("/a", Answer(fields={"Cache-Control": "max-age=600"}, body=BODY))
        yield origin


@pytest.fixture
def end(origin: Origin, tmp_path: Path) -> End:
    """Run one to its end: its exit code, and what it said."""

    def end(*how: str) -> tuple[int, str]:
        python = [sys.executable, "-W", "ignore::DeprecationWarning"]  # of forks
        command = [*python, "-m", "tests.processes.leaving", str(tmp_path), origin.url("/a"), *how]
        ended = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30, check=False
        )
        return ended.returncode, ended.stdout

    return end


def is_stored(origin: Origin, folder: Path) -> bool:
    before = len(origin.seen("/a"))
    with (
        Cache(FileStorage(folder)) as cache,
        httpx.Client(transport=CacheTransport(httpx.HTTPTransport(), cache)) as client,
    ):
        assert client.get(origin.url("/a")).content == BODY
    return len(origin.seen("/a")) == before


@pytest.mark.parametrize("client", ["httpx", "aiohttp", "session", "hishel"])
@pytest.mark.parametrize("way", ["interrupted", "exits"])
def test_a_loop_that_is_left_by_an_exception(end: End, client: str, way: str) -> None:
    assert end(client, way) == (3 if way == "exits" else 0, "")


@pytest.mark.parametrize("way", ["left", "stopped", "closed"])
def test_a_loop_that_is_left_while_a_body_comes_to_its_end(end: End, way: str) -> None:
    assert end("httpx", way) == (0, "")


@pytest.mark.skipif(importlib.util.find_spec("uvloop") is None, reason="no uvloop")
@pytest.mark.parametrize("way", ["interrupted", "left", "closed"])
def test_a_loop_of_another_make(end: End, way: str) -> None:
    assert end("httpx", way, "uvloop") == (0, "")


@pytest.mark.parametrize("way", ["exits unread", "closed unread"])
def test_a_response_that_nobody_has_read(end: End, origin: Origin, way: str) -> None:
    held = threading.Event()
    origin.on("/a", Answer(fields={"Cache-Control": "max-age=600"}, body=[BODY, held], length=len(BODY) + 1))
    said = end("httpx", way)
    held.set()
    assert said == (3, "")


@pytest.mark.parametrize("way", ["runs", "cache closed"])
def test_what_has_come_is_stored(end: End, origin: Origin, tmp_path: Path, way: str) -> None:
    assert end("httpx", way) == (0, "")
    assert is_stored(origin, tmp_path)


def test_a_child_has_threads_of_its_own(end: End) -> None:
    assert end("aiohttp", "forked") == (0, "")
