"""How stored responses are validated, and what happens while and when that fails."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.origin import Answer, Stop

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.clients import Client
    from tests.conftest import World
    from tests.origin import Clock, Origin, Seen

BRIEF = {"Cache-Control": "max-age=1", "ETag": '"1"'}
STATUSES = [403, 404, 410, 500, 503]


@pytest.mark.parametrize(
    "answer, body",
    [
        (Answer(304, {"Cache-Control": "max-age=60", "ETag": '"1"'}), b"one"),
        (Answer(200, {"Cache-Control": "max-age=60", "ETag": '"2"'}, b"two"), b"two"),
    ],
    ids=["304", "200"],
)
def test_one_validation_serves_the_next_minute_in_every_process(
    world: World, client: Client, origin: Origin, clock: Clock, answer: Answer, body: bytes
) -> None:
    url = origin.on("/", Answer(fields=BRIEF, body=b"one"), answer)
    client.get(url)
    clock.advance(2)
    assert client.get(url).body == body
    clock.advance(58)
    for caller in (client, world.client()):
        got = caller.get(url)
        assert (got.status, got.body, got.hit) == (200, body, True)
    assert origin.count() == 2


def test_validations_share_a_connection(client: Client, origin: Origin) -> None:
    url = origin.on("/", Answer(fields={"Cache-Control": "no-cache", "ETag": '"1"'}, body=b"one"), Answer(304))
    assert [client.get(url).body for _ in range(10)] == [b"one"] * 10
    assert (origin.count(), origin.accepted) == (10, 1)


@pytest.mark.parametrize(
    "name, value",
    [
        ("Content-Length", "0"),
        ("Content-Encoding", "gzip"),
        ("Content-Range", "bytes 0-0/1"),
        ("Content-Type", "text/html"),
    ],
)
def test_a_304_leaves_alone_the_fields_that_describe_the_stored_octets(
    client: Client, origin: Origin, clock: Clock, name: str, value: str
) -> None:
    """RFC 9111 section 3.2."""
    url = origin.on(
        "/",
        Answer(fields={**BRIEF, "Content-Type": "image/png"}, body=b"picture"),
        Answer(304, {"Cache-Control": "max-age=60", "ETag": '"1"', "X-New": "yes", name: value}),
    )
    first = client.get(url)
    clock.advance(2)
    client.get(url)
    got = client.get(url)
    assert (got.status, got.body, got.hit) == (200, b"picture", True)
    assert got.get(name) == first.get(name)
    assert got.get("x-new") == "yes"


def test_a_304_to_what_is_not_stored_is_asked_again_without_condition(
    client: Client, origin: Origin, clock: Clock
) -> None:
    """RFC 9111 section 4.3.4."""
    url = origin.on(
        "/",
        Answer(fields={**BRIEF, "X-Which": "first"}, body=b"one"),
        Answer(304, {"Cache-Control": "max-age=60", "ETag": '"2"', "X-Which": "second"}),
        Answer(fields={"Cache-Control": "max-age=60", "ETag": '"2"', "X-Which": "third"}, body=b"two"),
    )
    client.get(url)
    clock.advance(2)
    got = client.get(url)
    assert (got.status, got.body, got.get("x-which")) == (200, b"two", "third")
    assert [seen.get("if-none-match") for seen in origin.seen()] == [None, '"1"', None]


def test_a_strong_304_updates_nothing_that_is_weak(client: Client, origin: Origin, clock: Clock) -> None:
    """RFC 9111 section 4.3.4: the stored body answers, its fields stay."""
    url = origin.on(
        "/",
        Answer(fields={"Cache-Control": "max-age=1", "ETag": 'W/"a"'}, body=b"one"),
        Answer(304, {"Cache-Control": "max-age=60", "ETag": '"a"', "X-New": "yes"}),
    )
    client.get(url)
    clock.advance(2)
    got = client.get(url)
    assert (got.status, got.body, got.get("x-new"), origin.count()) == (200, b"one", None, 2)
    assert not client.get(url).hit


@pytest.mark.parametrize("status", STATUSES)
def test_a_failed_validation_goes_to_the_caller_and_the_entry_stays(
    client: Client, origin: Origin, clock: Clock, status: int
) -> None:
    url = origin.on("/", Answer(fields=BRIEF, body=b"one"), Answer(status, body=b"no"), Answer(304, {"ETag": '"1"'}))
    client.get(url)
    clock.advance(2)
    got = client.get(url)
    assert (got.status, got.body) == (status, b"no")
    got = client.get(url)
    assert (got.status, got.body) == (200, b"one")
    assert origin.seen()[2].get("if-none-match") == '"1"'


@pytest.mark.parametrize("status", STATUSES)
def test_a_refusal_that_says_how_long_it_holds_replaces_the_entry(
    client: Client, origin: Origin, clock: Clock, status: int
) -> None:
    url = origin.on("/", Answer(fields=BRIEF, body=b"one"), Answer(status, {"Cache-Control": "max-age=60"}, b"no"))
    client.get(url)
    clock.advance(2)
    client.get(url)
    got = client.get(url)
    assert (got.status, got.body, got.hit) == (status, b"no", True)


def test_who_sent_no_condition_receives_no_304(client: Client, origin: Origin, clock: Clock) -> None:
    url = origin.on("/", Answer(fields=BRIEF, body=b"one"), Answer(304, BRIEF))
    client.get(url)
    clock.advance(2)
    got = client.get(url)
    assert (got.status, got.body, origin.count()) == (200, b"one", 2)


@pytest.mark.parametrize("status", [304, 200])
@pytest.mark.parametrize("condition", ["If-None-Match", "If-Modified-Since"])
def test_a_callers_own_condition_is_answered_from_a_fresh_entry(
    client: Client, origin: Origin, clock: Clock, condition: str, status: int
) -> None:
    """RFC 9111 section 4.3.2."""
    modified = clock.date(-10)
    url = origin.on(
        "/", Answer(fields={"Cache-Control": "max-age=60", "ETag": '"1"', "Last-Modified": modified}, body=b"one")
    )
    client.get(url)
    values = {
        ("If-None-Match", 304): ['"1"', 'W/"1"', '"0", "1"', "*"],
        ("If-None-Match", 200): ['"0"', '"0", W/"2"'],
        ("If-Modified-Since", 304): [modified, clock.date(-9)],
        ("If-Modified-Since", 200): [clock.date(-11), "yesterday"],
    }
    for value in values[condition, status]:
        got = client.get(url, {condition: value})
        assert (got.status, got.hit, origin.count()) == (status, True, 1), value
        assert got.body == (b"one" if status == 200 else b"")
        assert got.get("etag") == '"1"'


def test_a_callers_own_condition_reaches_the_origin_when_nothing_is_stored(client: Client, origin: Origin) -> None:
    """RFC 9111 section 4.3.1."""
    url = origin.on("/", Answer(304, {"ETag": '"1"'}), Answer(body=b"one"))
    assert client.get(url, {"If-None-Match": '"1"'}).status == 304
    assert origin.seen()[0].get("if-none-match") == '"1"'
    assert client.get(url).body == b"one"


def test_stale_answers_at_once_while_one_validation_runs(
    world: World, client: Client, origin: Origin, clock: Clock
) -> None:
    """RFC 5861 section 3."""
    release = threading.Event()
    fields = {"Cache-Control": "max-age=1, stale-while-revalidate=30", "ETag": '"1"'}
    url = origin.on(
        "/",
        Answer(fields=fields, body=b"one"),
        Answer(fields={"Cache-Control": "max-age=60", "ETag": '"2"'}, body=b"two", before=release),
    )
    client.get(url)
    clock.advance(5)
    answers = world.together([lambda: client.get(url)] * 8)
    assert {got.body if not isinstance(got, Exception) else got for got in answers} == {b"one"}
    release.set()
    assert world.eventually(lambda: client.get(url).body == b"two")
    assert [seen.get("if-none-match") for seen in origin.seen()] == [None, '"1"']


def test_a_failed_validation_in_the_background_leaves_the_entry(
    world: World, client: Client, origin: Origin, clock: Clock
) -> None:

    fields = {"Cache-Control": "max-age=1, stale-while-revalidate=30", "ETag": '"1"'}
    url = origin.on("/", Answer(fields=fields, body=b"one"), down)
    client.get(url)
    for asked in (2, 3):
        clock.advance(5)

        def answered(asked: int = asked) -> bool:
            assert client.get(url).body == b"one"
            return origin.count() >= asked

        assert world.eventually(answered)


def test_closing_ends_a_validation_in_the_background(world: World, origin: Origin, clock: Clock) -> None:
    never = threading.Event()
    fields = {"Cache-Control": "max-age=1, stale-while-revalidate=30", "ETag": '"1"'}
    url = origin.on("/", Answer(fields=fields, body=b"one"), Answer(before=never))
    cache = world.cache()
    client = world.client(cache)
    client.get(url)
    clock.advance(5)
    assert world.eventually(lambda: client.get(url).body == b"one" and origin.count() == 2)
    began = time.monotonic()
    cache.close()
    assert time.monotonic() - began < 2


def down(seen: Seen) -> Answer:
    raise Stop


def failing(kind: str) -> Answer | Callable[[Seen], Answer]:
    """An origin that cannot give what it is asked for."""
    if kind == "hangs up":
        return down
    return Answer(before=threading.Event()) if kind == "does not answer" else Answer(int(kind), body=b"no")


FAILURES = ["hangs up", "does not answer", "500", "503"]


@pytest.mark.parametrize("validator", [{"ETag": '"1"'}, {}], ids=["validator", "no validator"])
@pytest.mark.parametrize("kind", FAILURES)
def test_stale_if_error(client: Client, origin: Origin, clock: Clock, kind: str, validator: dict[str, str]) -> None:
    """RFC 5861 section 4."""
    fields = {"Cache-Control": "max-age=1, stale-if-error=10", **validator}
    url = origin.on("/", Answer(fields=fields, body=b"one"), failing(kind))
    client.get(url)
    clock.advance(5)
    got = client.get(url, timeout=0.2)
    assert (got.status, got.body) == (200, b"one")
    clock.advance(15)
    assert failed(client, url)


def test_stale_if_error_when_nobody_listens(client: Client, origin: Origin, clock: Clock) -> None:
    url = origin.on("/", Answer(fields={"Cache-Control": "max-age=1, stale-if-error=10"}, body=b"one"))
    client.get(url)
    origin.close()
    clock.advance(5)
    assert client.get(url).body == b"one"
    clock.advance(15)
    with pytest.raises(client.failed):
        client.get(url)


@pytest.mark.parametrize("directive", ["must-revalidate", "proxy-revalidate", "s-maxage=1"])
@pytest.mark.parametrize("kind", FAILURES)
def test_stale_if_error_yields_to_must_revalidate_and_its_kin(
    client: Client, origin: Origin, clock: Clock, kind: str, directive: str
) -> None:
    """RFC 9111 section 4.2.4."""
    fields = {"Cache-Control": f"max-age=1, stale-if-error=10, {directive}", "ETag": '"1"'}
    url = origin.on("/", Answer(fields=fields, body=b"one"), failing(kind))
    client.get(url)
    clock.advance(5)
    assert failed(client, url)


def failed(client: Client, url: str) -> bool:
    """Whether the origin's failure is what the caller sees."""
    try:
        got = client.get(url, timeout=0.2)
    except client.timed_out + client.broken + client.failed:
        return True
    return got.status >= 500


@pytest.mark.parametrize("swr", ["", ", stale-while-revalidate=30"], ids=["validation", "background"])
def test_the_callers_own_fields_go_out_with_every_validation(
    world: World, client: Client, origin: Origin, clock: Clock, swr: str
) -> None:
    url = origin.on("/", Answer(fields={"Cache-Control": f"max-age=1{swr}", "ETag": '"1"'}), Answer(304))
    own = {"User-Agent": "reader/1", "Accept": "image/*", "X-Own": "mine"}
    client.get(url, own)
    clock.advance(2)
    client.get(url, own)
    assert world.eventually(lambda: origin.count() == 2)
    seen = origin.seen()[1]
    assert {name: seen.get(name) for name in own} == own
    assert seen.get("if-none-match") == '"1"'
