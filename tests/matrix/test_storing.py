"""What is kept, for whom, and which requests it answers, and what a cache lets through."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from tests.origin import Answer

if TYPE_CHECKING:
    from tests.clients import Client
    from tests.conftest import World
    from tests.origin import Clock, Origin, Part, Seen

SECRET = b"a secret of some length"
DAY = 86_400.0
FRESH = {"Cache-Control": "max-age=60", "ETag": '"1"'}


@pytest.mark.parametrize(
    "control", ["private, max-age=60", "no-store, max-age=60", "no-store", 'PRIVATE="x", no-STORE']
)
def test_a_shared_cache_keeps_nothing_private(world: World, client: Client, origin: Origin, control: str) -> None:
    """RFC 9111 section 3."""
    url = origin.on("/", Answer(fields={"Cache-Control": control, "ETag": '"1"'}, body=SECRET))
    client.get(url)
    assert not world.on_disk(SECRET)
    client.get(url)
    assert [seen.get("if-none-match") for seen in origin.seen()] == [None, None]


def test_the_cache_of_one_user_keeps_what_is_private(world: World, origin: Origin) -> None:
    client = world.client(shared=False)
    url = origin.on("/", Answer(fields={"Cache-Control": "private, max-age=60"}))
    client.get(url, {"Authorization": "Basic dTpw"})
    assert client.get(url).hit


@pytest.mark.parametrize(
    "control, kept",
    [("max-age=60", False), ("public, max-age=60", True), ("s-maxage=60", True), ("must-revalidate, max-age=60", True)],
)
def test_an_answer_to_credentials_is_kept_only_by_the_origins_word(
    world: World, client: Client, origin: Origin, control: str, kept: bool
) -> None:
    """RFC 9111 section 3.5. The credentials themselves are never on disk."""
    url = origin.on("/", Answer(fields={"Cache-Control": control}, body=SECRET))
    client.get(url, {"Authorization": "Bearer top-secret-token"})
    assert world.on_disk(SECRET) is kept
    assert not world.on_disk(b"top-secret-token")
    assert client.get(url).hit is kept


def test_no_store_is_on_disk_at_no_moment(world: World, client: Client, origin: Origin) -> None:
    """Temporary files included."""
    more = threading.Event()
    body: list[Part] = [SECRET * 10_000, more, b"end"]
    url = origin.on("/", Answer(fields={"Cache-Control": "no-store"}, body=body))
    with client.stream(url) as stream:
        assert len(stream.take(100_000)) <= len(SECRET) * 10_000
        assert not world.on_disk(SECRET)
        more.set()
        assert stream.rest().endswith(b"end")
    assert not world.on_disk(SECRET)


@pytest.mark.parametrize("status", [404, 410, 301, 308])
def test_a_status_that_is_cacheable_by_default(client: Client, origin: Origin, clock: Clock, status: int) -> None:
    """RFC 9110 section 15.1: heuristically fresh, and under 24 hours."""
    fields = {"Last-Modified": clock.date(-100 * DAY), "Location": "/to"}
    url = origin.on("/", Answer(status, fields, b"no"))
    client.get(url, redirects=False)
    clock.advance(DAY - 1)
    got = client.get(url, redirects=False)
    assert (got.status, got.body, got.hit) == (status, b"no", True)
    clock.advance(2)
    assert not client.get(url, redirects=False).hit


@pytest.mark.parametrize("status", [302, 307, 403, 429, 500, 503])
def test_a_status_that_needs_explicit_freshness(client: Client, origin: Origin, clock: Clock, status: int) -> None:
    heuristic = {"Last-Modified": clock.date(-100 * DAY), "Location": "/to"}
    url = origin.on("/", Answer(status, heuristic), Answer(status, {**heuristic, **FRESH}))
    client.get(url, redirects=False)
    assert not client.get(url, redirects=False).hit
    got = client.get(url, redirects=False)
    assert (got.status, got.hit, origin.count()) == (status, True, 2)


def test_head_brings_no_body_for_get(client: Client, origin: Origin) -> None:
    url = origin.on("/", Answer(fields=FRESH, body=b"whole"))
    got = client.get(url, method="HEAD")
    assert (got.status, got.body, got.get("content-length")) == (200, b"", "5")
    assert client.get(url).body == b"whole"
    assert [seen.method for seen in origin.seen()] == ["HEAD", "GET"]


def test_what_get_stored_answers_head(client: Client, origin: Origin) -> None:
    """RFC 9110 section 9.3.2."""
    url = origin.on("/", Answer(fields={**FRESH, "X-Kind": "picture"}, body=b"whole"))
    client.get(url)
    got = client.get(url, method="HEAD")
    assert (got.status, got.body, got.hit, got.get("x-kind")) == (200, b"", True, "picture")
    assert got.get("content-length") in ("5", None)
    assert client.get(url).body == b"whole"
    assert origin.count() == 1


def ranged(seen: Seen) -> Answer:
    """A picture that may be asked for in parts."""
    if (asked := seen.get("range")) is None:
        return Answer(fields=FRESH, body=b"0123456789")
    first, last = (int(number or 9) for number in asked.removeprefix("bytes=").split("-"))
    part = b"0123456789"[first : last + 1]
    return Answer(206, {**FRESH, "Content-Range": f"bytes {first}-{first + len(part) - 1}/10"}, part)


def test_a_part_never_answers_for_the_whole(client: Client, origin: Origin) -> None:
    """RFC 9111 section 3.3."""
    url = origin.on("/", ranged)
    got = client.get(url, {"Range": "bytes=0-4"})
    assert (got.status, got.body) == (206, b"01234")
    got = client.get(url)
    assert (got.status, got.body, got.get("content-range")) == (200, b"0123456789", None)


def test_a_range_is_cut_from_a_whole_entry(client: Client, origin: Origin) -> None:
    """RFC 9110 section 14."""
    url = origin.on("/", ranged)
    client.get(url)
    for asked, part, where in (
        ("bytes=2-4", b"234", "bytes 2-4/10"),
        ("bytes=7-", b"789", "bytes 7-9/10"),
        ("bytes=-3", b"789", "bytes 7-9/10"),
    ):
        got = client.get(url, {"Range": asked})
        assert (got.status, got.body, got.get("content-range")) == (206, part, where)
        assert got.get("content-length") in ("3", None)
    assert client.get(url).body == b"0123456789"
    assert origin.count() == 1


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_an_unsafe_request_reaches_the_origin_whole_and_invalidates(
    client: Client, origin: Origin, method: str
) -> None:
    """RFC 9111 section 4.4."""
    url = origin.on("/", Answer(fields=FRESH, body=b"one"))
    client.get(url)
    assert client.get(url).hit
    got = client.get(url, {"Content-Type": "text/plain"}, method=method, body=b"x" * 100_000)
    assert (got.status, got.body) == (200, b"one")
    assert (origin.seen()[1].method, origin.seen()[1].body) == (method, b"x" * 100_000)
    assert not client.get(url).hit


def test_a_failed_unsafe_request_invalidates_nothing(client: Client, origin: Origin) -> None:
    """RFC 9111 section 4.4."""
    url = origin.on("/", Answer(fields=FRESH, body=b"one"), Answer(500))
    client.get(url)
    client.get(url, method="POST", body=b"x")
    assert client.get(url).hit


def test_a_get_with_a_body_is_not_answered_by_what_is_stored(client: Client, origin: Origin) -> None:
    """RFC 9110 section 9.3.1: a key says nothing of a request's content."""
    url = origin.on("/", lambda seen: Answer(fields=FRESH, body=seen.body or b"nothing"))
    for body in (None, b"a", b"b", b"a"):
        assert client.get(url, body=body).body == (body or b"nothing")


def test_off_is_as_if_there_were_no_cache(world: World, origin: Origin) -> None:
    """Decision 4."""
    client = world.client(mode="off")
    url = origin.on("/", Answer(fields=FRESH, body=SECRET))
    for _ in range(2):
        got = client.get(url)
        assert (got.body, got.cache_status) == (SECRET, "")
    assert origin.count() == 2
    assert not world.on_disk(SECRET)


def test_every_answer_says_how_it_came_about(client: Client, origin: Origin, clock: Clock) -> None:
    """RFC 9211."""
    url = origin.on("/", Answer(fields={"Cache-Control": "max-age=60", "ETag": '"1"', "Vary": "Accept"}), Answer(304))
    said = [client.get(url).cache_status, client.get(url).cache_status]
    clock.advance(61)
    said += [client.get(url).cache_status, client.get(url, {"Accept": "image/png"}).cache_status]
    said.append(client.get(url, method="POST", body=b"x").cache_status)
    assert "fwd=uri-miss" in said[0]
    assert "stored" in said[0]
    assert "hit" in said[1]
    assert "fwd=stale" in said[2]
    assert "fwd-status=304" in said[2]
    assert "fwd=vary-miss" in said[3]
    assert "fwd=method" in said[4]


def test_closing_a_client_closes_its_connections_and_not_the_cache(world: World, origin: Origin) -> None:
    cache = world.cache()
    url = origin.on("/", Answer(fields=FRESH, body=b"one"))
    first = world.client_class(cache)
    first.get(url)
    first.close()
    assert world.client(cache).get(url).hit


def test_a_closed_cache_forwards_and_opens_nothing_again(world: World, origin: Origin) -> None:
    cache = world.cache()
    client = world.client(cache)
    url = origin.on("/", Answer(fields=FRESH, body=SECRET))
    assert client.get(url).body == SECRET
    cache.close()
    before = len(os.listdir("/proc/self/fd"))
    answers = [client.get(url) for _ in range(2)]
    assert [answer.body for answer in answers] == [SECRET] * 2
    assert ["stored" in answer.cache_status for answer in answers] == [False] * 2
    assert origin.count() == 3
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("status", [200, 204])
def test_an_answer_without_octets_is_kept_though_nobody_reads_it(client: Client, origin: Origin, status: int) -> None:
    url = origin.on("/", Answer(status, FRESH))
    for _ in range(2):
        client.stream(url).close()
    assert client.get(url).status == status
    assert origin.count() == 1
