"""Processes that share a folder share downloads: over real sockets, with real kills."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest

from tests.folders import standing_still
from tests.origin import Answer, Origin, Seen

FRESH = {"Cache-Control": "max-age=600", "ETag": '"1"'}
BODY = bytes(range(256)) * 8192  # 2 MiB


@pytest.fixture
def origin() -> Iterator[Origin]:
    with Origin() as origin:
        yield origin


class Worker:
    def __init__(self, folder: Path, url: str, callers: int, kind: str, timeout: float) -> None:
        command = [sys.executable, "-m", "tests.processes.worker", str(folder), url, str(callers), kind, str(timeout)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._watchdog = threading.Timer(60, self.process.kill)
        self._watchdog.start()

    def hear(self, word: str) -> Self:
        """Wait until it says *word*."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == word
        return self

    def go(self) -> Self:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self

    def end(self) -> tuple[list[str], list[str]]:
        """The digests and errors of its callers."""
        assert self.process.stdout is not None
        said = json.loads(self.process.stdout.read().splitlines()[-1])
        self.process.wait(10)
        return said["digests"], said["errors"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._watchdog.cancel()
        self.process.kill()
        self.process.wait(10)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture(params=["tasks", "threads"])
def workers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[object]:
    with ExitStack() as stack:

        def start(number: int, url: str, callers: int, timeout: float = 20) -> list[Worker]:
            kind = request.param
            started = [stack.enter_context(Worker(tmp_path, url, callers, kind, timeout)) for _ in range(number)]
            return [worker.hear("ready") for worker in started]

        yield start


DIGEST = hashlib.sha256(BODY).hexdigest()


def test_8_processes_of_32_callers_make_one_request(origin: Origin, workers: object) -> None:
    url = origin.on("/cold", Answer(200, FRESH, BODY, before=0.5))
    started = workers(8, url, 32)  # type: ignore[operator]
    for worker in started:
        worker.go()
    assert [worker.end() for worker in started] == [([DIGEST], [])] * 8
    assert origin.count("/cold") == 1


def test_a_just_stale_response_is_validated_once(origin: Origin, workers: object) -> None:
    def answer(seen: Seen) -> Answer:
        if seen.get("if-none-match"):
            return Answer(304, FRESH, before=0.3)
        return Answer(200, {"ETag": '"1"', "Cache-Control": "max-age=1", "Age": "2"}, BODY)

    url = origin.on("/stale", answer)
    workers(1, url, 1)[0].go().end()  # type: ignore[operator]
    started = workers(4, url, 25)  # type: ignore[operator]
    for worker in started:
        worker.go()
    assert [worker.end() for worker in started] == [([DIGEST], [])] * 4
    assert origin.count("/stale") == 2


def test_another_process_gets_the_first_octets_before_the_last_have_come(origin: Origin, workers: object) -> None:
    rest = threading.Event()
    url = origin.on("/drip", Answer(200, FRESH, [BODY[:1000], rest, BODY[1000:]], length=len(BODY)))
    leader, follower = workers(2, url, 1)  # type: ignore[operator]
    leader.go().hear("first")
    follower.go().hear("first")
    rest.set()
    assert leader.end() == follower.end() == ([DIGEST], [])
    assert origin.count("/drip") == 1


@pytest.mark.parametrize("when", ["before the head", "in mid-body"])
def test_a_killed_leader_costs_one_more_request(origin: Origin, workers: object, when: str) -> None:
    first_rest, kill = threading.Event(), threading.Event()

    def answer(seen: Seen) -> Answer:
        if origin.count("/killed") > 1:
            return Answer(200, FRESH, BODY)
        kill.set()
        if when == "before the head":
            return Answer(200, FRESH, BODY, before=first_rest)
        return Answer(200, FRESH, [BODY[:1000], first_rest], length=len(BODY))

    url = origin.on("/killed", answer)
    leader, follower = workers(2, url, 1)  # type: ignore[operator]
    leader.go()
    if when == "in mid-body":
        leader.hear("first")
    assert kill.wait(10)
    follower.go()
    if when == "in mid-body":
        follower.hear("first")
    leader.process.kill()
    assert follower.end() == ([DIGEST], [])
    assert origin.count("/killed") == 2
    first_rest.set()


@pytest.mark.parametrize("when", ["before the head", "in mid-body"])
def test_a_stopped_leader_costs_one_more_request(origin: Origin, workers: object, when: str) -> None:
    rest, asked = threading.Event(), threading.Event()

    def answer(seen: Seen) -> Answer:
        if origin.count("/stopped") > 1:
            return Answer(200, FRESH, BODY)
        asked.set()
        if when == "before the head":
            return Answer(200, FRESH, BODY, before=rest)
        return Answer(200, FRESH, [BODY[:1000], rest, BODY[1000:]], length=len(BODY))

    url = origin.on("/stopped", answer)
    leader, *followers = workers(3, url, 4, timeout=4)  # type: ignore[operator]
    leader.go()
    assert asked.wait(10)
    if when == "in mid-body":
        leader.hear("first")
        followers[0].go().hear("first")
    with standing_still([leader.process.pid]):
        for follower in followers if when == "before the head" else followers[1:]:
            follower.go()
        assert [follower.end() for follower in followers] == [([DIGEST], [])] * 2
        assert origin.count("/stopped") == 2
        rest.set()
    assert leader.end() == ([DIGEST], [])
    assert origin.count("/stopped") == 2


@pytest.mark.slow
def test_a_leader_that_lives_is_waited_for_however_slow_its_origin(origin: Origin, workers: object) -> None:
    asked = threading.Event()

    def answer(seen: Seen) -> Answer:
        asked.set()
        return Answer(200, FRESH, [2.0, BODY[:1000], 2.0, BODY[1000:]], length=len(BODY))

    url = origin.on("/slow", answer)
    leader, follower = workers(2, url, 4, timeout=3)  # type: ignore[operator]
    leader.go()
    assert asked.wait(10)
    follower.go()
    assert leader.end() == follower.end() == ([DIGEST], [])
    assert origin.count("/slow") == 1
