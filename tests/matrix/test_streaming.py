"""Octets on their way: as they come, how long one waits for them, and how it shows when they do not come."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.clients import CLIENTS
from tests.origin import Answer, Stop

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.clients import Client
    from tests.conftest import World
    from tests.origin import Framing, Origin, Part, Seen

FRESH = {"Cache-Control": "max-age=60", "ETag": '"1"'}
KEPT = pytest.mark.parametrize("control", ["max-age=60", "no-store"])
MIB = 1024**2


@KEPT
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_the_first_octets_arrive_before_the_last_are_sent(
    client: Client, origin: Origin, framing: Framing, control: str
) -> None:
    more = threading.Event()
    answer = Answer(fields={"Cache-Control": control}, body=[b"first", more, b"last"], framing=framing)
    chunk = 1 if control == "no-store" else 65536  # what is not kept, requests gives in whole chunks, as it always does
    with client.stream(origin.on("/", answer), chunk=chunk) as stream:
        assert stream.status == 200
        assert stream.take(5) == b"first"
        more.set()
        assert stream.rest() == b"last"


def test_a_follower_reads_what_the_leader_has_so_far(world: World, client: Client, origin: Origin) -> None:
    """The first octets reach everybody who asked."""
    more = threading.Event()
    url = origin.on("/", Answer(fields=FRESH, body=[b"first", more, b"last"]))
    other = world.client(client.cache)
    with client.stream(url) as leader:
        assert leader.read() == b"first"
        with other.stream(url) as follower:
            assert follower.read() == b"first"
            more.set()
            assert follower.rest() == b"last"
        assert leader.rest() == b"last"
    assert origin.count() == 1


def test_a_leader_who_reads_nothing_holds_up_no_other_process(world: World, client: Client, origin: Origin) -> None:
    url = origin.on("/", Answer(fields=FRESH, body=b"x" * 4 * MIB))
    with client.stream(url) as leader:
        assert len(world.client().get(url, timeout=2).body) == 4 * MIB
        assert len(leader.rest()) == 4 * MIB
    assert origin.count() == 1


@pytest.mark.parametrize("kind", CLIENTS.values(), ids=lambda kind: kind.name)
def test_a_follower_may_be_of_another_kind(client: Client, origin: Origin, kind: type[Client]) -> None:
    """Decision 9: threads and tasks of any loop."""
    more = threading.Event()
    url = origin.on("/", Answer(fields=FRESH, body=[b"first", more, b"last"]))
    with client.stream(url) as leader, closing(kind(client.cache)) as other:
        assert leader.read() == b"first"
        with other.stream(url) as follower:
            assert follower.read() == b"first"
            more.set()
            assert follower.rest() == b"last"
        assert leader.rest() == b"last"
    assert origin.count() == 1


def test_a_leader_who_goes_away_harms_no_follower(world: World, client: Client, origin: Origin) -> None:
    more = threading.Event()
    url = origin.on("/", Answer(fields=FRESH, body=[b"first", more, b"last"]))
    leader = client.stream(url)
    assert leader.read() == b"first"
    with world.client(client.cache).stream(url) as follower:
        assert follower.read() == b"first"
        leader.close()
        more.set()
        assert follower.rest() == b"last"
    assert client.get(url).body == b"firstlast"
    assert origin.count() <= 2


@pytest.mark.parametrize("tag", [{"ETag": '"1"'}, {"ETag": 'W/"1"'}, {}], ids=["strong", "weak", "none"])
def test_a_follower_goes_on_by_itself_when_the_leader_fails(
    world: World, client: Client, origin: Origin, tag: dict[str, str]
) -> None:
    """By a new request, skipping what was given."""
    more, fields = threading.Event(), {"Cache-Control": "max-age=60", **tag}
    cut = Answer(fields=fields, body=[b"first", more], length=9, end="cut")
    url = origin.on("/", cut, Answer(fields=fields, body=b"firstlast"))
    with client.stream(url) as leader:
        assert leader.read() == b"first"
        with world.client(client.cache).stream(url) as follower:
            assert follower.read() == b"first"
            more.set()
            assert follower.rest() == b"last"
        with pytest.raises(client.broken):
            leader.rest()
    got = client.get(url)
    assert (got.body, got.hit, origin.count()) == (b"firstlast", True, 2)


def test_a_slow_reader_holds_nobody_back(world: World, client: Client, origin: Origin) -> None:
    """Decision 9: the disk is the buffer."""
    size = 8 * MIB
    url = origin.on("/", Answer(fields=FRESH, body=b"x" * size))
    with client.stream(url) as slow:
        taken = len(slow.read())
        assert len(world.client(client.cache).get(url).body) == size
        assert taken + len(slow.rest()) == size
    assert origin.count() == 1


def hang_up(seen: Seen) -> Answer:
    raise Stop


FAULTS: dict[str, Answer | Callable[[Seen], Answer]] = {
    "no answer": Answer(before=threading.Event()),
    "hangs up": hang_up,
    "no HTTP": Answer(body=b"garbage\r\n\r\n", framing="raw"),
    "length cut": Answer(fields=FRESH, body=[b"x" * 500], length=1000, end="cut"),
    "chunked cut": Answer(fields=FRESH, body=[b"x" * 500], framing="chunked", end="cut"),
    "reset": Answer(fields=FRESH, body=[b"x" * 500], length=1000, end="reset"),
    "bad chunk": Answer(
        body=b"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", framing="raw"
    ),
    "stalls": Answer(fields=FRESH, body=[b"x" * 500, threading.Event()], length=1000),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_error_is_the_one_that_the_client_raises_without_a_cache(
    world: World, client: Client, origin: Origin, fault: str
) -> None:
    url = origin.on("/", FAULTS[fault])
    raised = []
    for caller in (world.bare_client(), client):
        with pytest.raises(Exception) as caught:
            caller.get(url, timeout=0.2)
        raised.append(caught.type)
    assert raised[0] is raised[1]


def test_a_refused_connection_is_the_clients_own_error(client: Client, origin: Origin) -> None:
    url = origin.url("/")
    origin.close()
    with pytest.raises(client.failed):
        client.get(url)


def test_a_follower_keeps_its_own_timeout(world: World, client: Client, origin: Origin) -> None:
    """Issue 5.1: and harms nobody by leaving."""
    head, more = threading.Event(), threading.Event()
    url = origin.on("/", Answer(fields=FRESH, body=[b"first", more, b"last"], before=head))
    other = world.client(client.cache)
    with ThreadPoolExecutor(1) as pool:
        leader = pool.submit(client.stream, url)
        while not origin.count():
            time.sleep(0.01)
        with pytest.raises(client.timed_out):
            other.get(url, timeout=0.2)
        head.set()
        with leader.result() as stream:
            assert stream.read() == b"first"
            with pytest.raises(client.timed_out):
                other.get(url, timeout=0.2)
            more.set()
            assert stream.rest() == b"last"
    got = other.get(url)
    assert (got.body, got.hit, origin.count()) == (b"firstlast", True, 1)


def test_a_followers_broken_body_is_the_clients_own_error(world: World, client: Client, origin: Origin) -> None:
    """The leader's body is cut off, and what it was cannot be had again."""
    more = threading.Event()
    cut = Answer(fields=FRESH, body=[b"first", more], length=1000, end="cut")
    url = origin.on("/", cut, Answer(fields={**FRESH, "ETag": '"2"'}, body=b"something else"))
    with client.stream(url) as leader:
        assert leader.read() == b"first"
        with world.client(client.cache).stream(url) as follower:
            assert follower.read() == b"first"
            more.set()
            with pytest.raises(client.broken):
                follower.rest()
        with pytest.raises(client.broken):
            leader.rest()
    assert client.get(url).body == b"something else"


def test_a_followers_error_is_a_timeout_when_its_leaders_was_one(world: World, client: Client, origin: Origin) -> None:
    stalling = Answer(fields={"Cache-Control": "max-age=60"}, body=[b"first", threading.Event()], length=1000)
    url = origin.on("/", stalling, Answer(body=b"something else"))
    with client.stream(url, timeout=0.3) as leader:
        assert leader.read() == b"first"
        with world.client(client.cache).stream(url) as follower:
            assert follower.read() == b"first"
            with pytest.raises(client.timed_out):
                leader.rest()
            with pytest.raises(client.timed_out, match="no octets"):
                follower.rest()


def test_the_total_timeout_holds_on_the_stream_of_a_hit(client: Client, origin: Origin) -> None:
    if not client.has_total:
        pytest.skip(f"{client.name} knows no timeout for a whole request")
    url = origin.on("/", Answer(fields=FRESH, body=b"x" * (16 * MIB)))
    client.get(url)
    with client.stream(url, total=0.3) as stream:
        assert stream.read()
        time.sleep(0.5)
        with pytest.raises(client.timed_out):
            stream.rest()
    assert origin.count() == 1


def test_the_total_timeout_holds_while_following(world: World, client: Client, origin: Origin) -> None:
    if not client.has_total:
        pytest.skip(f"{client.name} knows no timeout for a whole request")
    more = threading.Event()
    body: list[Part] = [b"first", more, b"last"]
    url = origin.on("/", Answer(fields=FRESH, body=body))
    with client.stream(url) as leader:
        assert leader.read() == b"first"
        began = time.monotonic()
        with pytest.raises(client.timed_out):
            world.client(client.cache).get(url, total=0.3)
        assert time.monotonic() - began < 2
        more.set()
        assert leader.rest() == b"last"
    assert origin.count() == 1
