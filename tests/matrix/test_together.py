"""Many callers at once in one process."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.clients import AsyncClient, Got
from tests.origin import Answer

if TYPE_CHECKING:
    from concurrent.futures import Future

    from tests.clients import Client
    from tests.conftest import World
    from tests.origin import Clock, Origin, Part

FRESH = {"Cache-Control": "max-age=60", "ETag": '"1"'}


def wait_for(origin: Origin, count: int) -> None:
    deadline = time.monotonic() + 5
    while origin.count() < count:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_cold_callers_share_one_request(world: World, client: Client, origin: Origin) -> None:
    url = origin.on("/", Answer(fields=FRESH, body=b"whole" * 10_000, before=0.3))
    answers = world.together([lambda: client.get(url).body] * 32)
    assert set(answers) == {b"whole" * 10_000}
    assert origin.count() == 1


def test_callers_of_a_just_stale_entry_share_one_validation(
    world: World, client: Client, origin: Origin, clock: Clock
) -> None:
    fields = {"Cache-Control": "max-age=1", "ETag": '"1"'}
    url = origin.on("/", Answer(fields=fields, body=b"one"), Answer(304, FRESH, before=0.3))
    client.get(url)
    clock.advance(2)
    assert set(world.together([lambda: client.get(url).body] * 32)) == {b"one"}
    assert origin.count() == 2


def test_what_is_not_shared_is_not_queued(world: World, client: Client, origin: Origin) -> None:
    """Not one after the other."""
    url = origin.on("/", Answer(fields={"Cache-Control": "no-store"}, body=b"mine", before=0.2))
    began = time.monotonic()
    assert set(world.together([lambda: client.get(url).body] * 8)) == {b"mine"}
    assert origin.count() == 8
    assert time.monotonic() - began < 8 * 0.2


def start(client: Client, origin: Origin, url: str, followers: int) -> list[Future[Got]]:
    """The leader's request, and those of its followers, under way."""
    if not isinstance(client, AsyncClient):
        pytest.skip("a thread cannot be cancelled")
    leader = client.start(url)
    wait_for(origin, 1)
    callers = [leader, *(client.start(url) for _ in range(followers))]
    time.sleep(0.1)
    return callers


def test_a_leader_cancelled_before_the_head_harms_no_follower(client: Client, origin: Origin) -> None:
    """One more request at most."""
    release = threading.Event()
    url = origin.on("/", Answer(fields=FRESH, body=b"whole", before=release))
    leader, *followers = start(client, origin, url, 7)
    leader.cancel()
    wait_for(origin, 2)
    release.set()
    assert {follower.result(5).body for follower in followers} == {b"whole"}
    assert origin.count() == 2


def test_a_leader_cancelled_in_mid_body_harms_no_follower(client: Client, origin: Origin) -> None:
    more = threading.Event()
    body: list[Part] = [b"first", more, b"last"]
    url = origin.on("/", Answer(fields=FRESH, body=body))
    leader, *followers = start(client, origin, url, 7)
    leader.cancel()
    more.set()
    assert {follower.result(5).body for follower in followers} == {b"firstlast"}
    assert origin.count() <= 2


def test_when_all_are_cancelled_the_fetch_stops(client: Client, origin: Origin) -> None:
    """And the next caller begins anew."""
    more = threading.Event()
    body: list[Part] = [b"first", more, *[b"x" * 65536] * 1000]
    url = origin.on("/", Answer(fields=FRESH, body=body), Answer(fields=FRESH, body=b"whole"))
    for caller in start(client, origin, url, 3):
        caller.cancel()
    time.sleep(0.1)
    more.set()
    assert origin.hangups.get(timeout=5) == "/"
    assert client.get(url).body == b"whole"


def test_a_failed_leaders_error_is_its_own(world: World, client: Client, origin: Origin) -> None:
    """It is not stored, and the next caller asks again."""
    url = origin.on(
        "/", Answer(fields=FRESH, body=[b"x" * 10], length=100, end="cut"), Answer(fields=FRESH, body=b"whole")
    )
    with pytest.raises(client.broken):
        client.get(url)
    assert set(world.together([lambda: client.get(url).body] * 8)) == {b"whole"}
    assert origin.count() == 2
