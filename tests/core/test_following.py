"""A body that another process is writing, followed by looking at it again and again."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from tests.core.scripted import get
from vllm_http_cache import bodies
from vllm_http_cache.bodies import POLL, POLLS_PER_WRITER, CachedBody, ForeignSupply
from vllm_http_cache.downloads import Broken
from vllm_http_cache.rfc9111.message import Fields, StoredResponse
from vllm_http_cache.wire import Caller


class Followed:
    """A body as its writer left it: ``end`` is True when it is whole, False when it was given up, None before."""

    def __init__(self, length: str = "4", octets: bytes = b"body", end: bool | None = True) -> None:
        fields = Fields([("Content-Length", length)])
        self.stored = StoredResponse(get().uri, 200, fields, (), 0, 0, 0, None)
        self.octets = octets
        self.end = end
        self.dead = False
        self.silence = 0.0

    def read(self, offset: int, size: int) -> bytes:
        return self.octets[offset : offset + size]

    def ended(self) -> bool | None:
        return self.end

    def orphaned(self) -> bool:
        return self.dead

    def silent(self) -> float:
        return self.silence

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that were waited for, though nobody did."""
    pauses: list[float] = []
    monkeypatch.setattr(bodies, "time", SimpleNamespace(sleep=pauses.append))
    return pauses


def wait_until_its_writer_is_looked_for(supply: ForeignSupply) -> None:
    for _ in range(POLLS_PER_WRITER):
        assert supply.take() is None
        supply.wait(Caller())


@pytest.mark.parametrize("length, whole", [("4", True), ("5", False), ("3", False)])
def test_it_is_as_long_as_announced(length: str, whole: bool) -> None:
    body = CachedBody(ForeignSupply(Followed(length), remote=False), Caller(), None, None)
    assert body.read() == b"body"
    with nullcontext() if whole else pytest.raises(ConnectionError, match="announced"):
        assert body.read() == b""


def test_behind_a_network_it_is_read_where_it_may_wait() -> None:
    supply = ForeignSupply(Followed(), remote=True)
    with pytest.raises(BlockingIOError):
        supply.take(wait=False)
    assert supply.take() == b"body"
    assert ForeignSupply(Followed(), remote=False).take(wait=False) == b"body"


def test_what_comes_is_given_as_it_comes() -> None:
    body = Followed(octets=b"bo", end=None)
    supply = ForeignSupply(body, remote=False)
    assert (supply.take(), supply.take()) == (b"bo", None)
    body.octets, body.end = b"body", True
    assert (supply.take(), supply.take()) == (b"dy", b"")


def test_what_its_writer_gives_up_is_broken() -> None:
    supply = ForeignSupply(Followed(octets=b"bo", end=False), remote=False)
    assert supply.take() == b"bo"
    with pytest.raises(Broken, match="gave it up"):
        supply.take()


def test_its_writer_is_waited_for_while_it_lives() -> None:
    supply = ForeignSupply(body := Followed(octets=b"", end=None), remote=False)
    for _ in range(2):
        wait_until_its_writer_is_looked_for(supply)
    assert supply.take() is None
    body.dead = True
    for _ in range(POLLS_PER_WRITER - 1):
        supply.wait(Caller())
        assert supply.take() is None
    supply.wait(Caller())
    with pytest.raises(Broken, match="gave it up"):
        supply.take()


@pytest.mark.parametrize("timeout, remote, seconds", [(None, False, 3.0), (None, True, 10.0), (4.0, False, 2.0)])
def test_a_writer_that_gives_no_sign_of_life_is_not_waited_for(
    pauses: list[float], timeout: float | None, remote: bool, seconds: float
) -> None:
    supply = ForeignSupply(body := Followed(octets=b"", end=None), remote=remote)
    caller = Caller(timeout=timeout)
    for _ in range(int((seconds - 1) / POLL)):
        assert supply.take() is None
        supply.wait(caller)
    body.silence = seconds
    body.octets = b"bo"
    assert supply.take() == b"bo"
    pauses.clear()

    def never_ends() -> None:
        while True:
            assert supply.take() is None
            supply.wait(caller)

    with pytest.raises(Broken, match="does not get on"):
        never_ends()
    assert seconds <= sum(pauses) + POLL / 2 < seconds + 2 * POLL * POLLS_PER_WRITER


def test_a_writer_that_lives_is_waited_for_though_nothing_comes() -> None:
    supply = ForeignSupply(Followed(octets=b"", end=None), remote=False)
    for _ in range(int(30 / POLL)):
        assert supply.take() is None
        supply.wait(Caller())


def test_what_its_writer_has_written_just_before_its_end_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    body = Followed(octets=b"bo", end=None)

    def end() -> bool:
        body.octets, body.end = b"body", True
        return True

    monkeypatch.setattr(body, "orphaned", end)
    supply = ForeignSupply(body, remote=False)
    assert supply.take() == b"bo"
    wait_until_its_writer_is_looked_for(supply)
    assert [supply.take() for _ in range(3)] == [None, b"dy", b""]


def test_a_caller_waits_no_longer_than_it_wants_to_for_the_next_octets(pauses: list[float]) -> None:
    body = Followed(octets=b"", end=None)
    supply = ForeignSupply(body, remote=False)
    caller = Caller(timeout=5 * POLL)
    for octets in (b"b", b"bo"):
        for _ in range(5):
            assert supply.take() is None
            supply.wait(caller)
        body.octets = octets
        assert supply.take()
    for _ in range(5):
        supply.wait(caller)
    with pytest.raises(TimeoutError):
        supply.wait(caller)
    assert pauses == [POLL] * 15
