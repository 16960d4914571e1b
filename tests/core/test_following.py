"""A body that another process is writing, followed by looking at it again and again."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from tests.core.scripted import get
from vllm_http_cache import bodies
from vllm_http_cache.bodies import POLL, POLLS_PER_CLAIM, CachedBody, ForeignSupply
from vllm_http_cache.downloads import Broken
from vllm_http_cache.rfc9111.message import Fields, StoredResponse
from vllm_http_cache.storage.protocol import Claim
from vllm_http_cache.wire import Caller


class Followed:
    """A body as its writer left it: ``end`` is True when it is whole, False when it was given up, None before."""

    def __init__(self, length: str = "4", octets: bytes = b"body", end: bool | None = True) -> None:
        fields = Fields([("Content-Length", length)])
        self.stored = StoredResponse(get().uri, 200, fields, (), 0, 0, 0, None)
        self.octets = octets
        self.end = end

    def read(self, offset: int, size: int) -> bytes:
        return self.octets[offset : offset + size]

    def ended(self) -> bool | None:
        return self.end

    def close(self) -> None:
        pass


class Given:
    """A claim that nobody else had."""

    released = False

    def release(self) -> None:
        self.released = True


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that were waited for, though nobody did."""
    pauses: list[float] = []
    monkeypatch.setattr(bodies, "time", SimpleNamespace(sleep=pauses.append))
    return pauses


def unclaimed() -> Claim | None:
    return None


def wait_until_the_claim_is_tried(supply: ForeignSupply) -> None:
    for _ in range(POLLS_PER_CLAIM):
        assert supply.take() is None
        supply.wait(Caller())


@pytest.mark.parametrize("length, whole", [("4", True), ("5", False), ("3", False)])
def test_it_is_as_long_as_announced(length: str, whole: bool) -> None:
    body = CachedBody(ForeignSupply(Followed(length), unclaimed, remote=False), Caller(), None, None)
    assert body.read() == b"body"
    with nullcontext() if whole else pytest.raises(ConnectionError, match="announced"):
        assert body.read() == b""


def test_behind_a_network_it_is_read_where_it_may_wait() -> None:
    supply = ForeignSupply(Followed(), unclaimed, remote=True)
    with pytest.raises(BlockingIOError):
        supply.take(wait=False)
    assert supply.take() == b"body"
    assert ForeignSupply(Followed(), unclaimed, remote=False).take(wait=False) == b"body"


def test_what_comes_is_given_as_it_comes() -> None:
    body = Followed(octets=b"bo", end=None)
    supply = ForeignSupply(body, unclaimed, remote=False)
    assert (supply.take(), supply.take()) == (b"bo", None)
    body.octets, body.end = b"body", True
    assert (supply.take(), supply.take()) == (b"dy", b"")


def test_what_its_writer_gives_up_is_broken() -> None:
    supply = ForeignSupply(Followed(octets=b"bo", end=False), unclaimed, remote=False)
    assert supply.take() == b"bo"
    with pytest.raises(Broken, match="gave it up"):
        supply.take()


def test_its_writer_is_alive_while_it_holds_the_claim() -> None:
    supply = ForeignSupply(Followed(octets=b"", end=None), unclaimed, remote=False)
    for _ in range(2):
        wait_until_the_claim_is_tried(supply)
    assert supply.take() is None


def test_whoever_has_the_claim_is_no_longer_its_writer() -> None:
    claim = Given()
    supply = ForeignSupply(Followed(octets=b"", end=None), lambda: claim, remote=False)
    wait_until_the_claim_is_tried(supply)
    assert not claim.released
    with pytest.raises(Broken, match="gave it up"):
        supply.take()
    assert claim.released


def test_what_its_writer_has_written_just_before_its_end_is_given() -> None:
    body = Followed(octets=b"bo", end=None)

    def end() -> Claim:
        body.octets, body.end = b"body", True
        return Given()

    supply = ForeignSupply(body, end, remote=False)
    assert supply.take() == b"bo"
    wait_until_the_claim_is_tried(supply)
    assert [supply.take() for _ in range(3)] == [None, b"dy", b""]


def test_a_caller_waits_no_longer_than_it_wants_to_for_the_next_octets(pauses: list[float]) -> None:
    body = Followed(octets=b"", end=None)
    supply = ForeignSupply(body, unclaimed, remote=False)
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
