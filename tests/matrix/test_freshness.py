"""How long a response answers, and what a request may ask instead."""

from __future__ import annotations

from time import gmtime, strftime
from typing import TYPE_CHECKING

import pytest

from tests.origin import Answer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.clients import Client
    from tests.conftest import World
    from tests.origin import Clock, Origin, Seen

DAY = 86_400.0


def test_hits_never_prolong_and_new_bytes_come_with_the_first_validation(
    client: Client, origin: Origin, clock: Clock
) -> None:
    url = origin.on(
        "/",
        Answer(fields={"Cache-Control": "max-age=1", "ETag": '"1"'}, body=b"one"),
        Answer(fields={"Cache-Control": "max-age=1", "ETag": '"2"'}, body=b"two"),
    )
    assert client.get(url).body == b"one"
    for _ in range(3):
        clock.advance(0.3)
        got = client.get(url)
        assert (got.body, got.hit) == (b"one", True)
    clock.advance(0.3)
    got = client.get(url)
    assert (got.body, got.hit) == (b"two", False)
    assert [seen.get("if-none-match") for seen in origin.seen()] == [None, '"1"']


@pytest.mark.parametrize("date", [None, "", "yesterday", "Wed, 99 Foo"])
def test_receipt_stands_in_for_a_date_that_says_nothing(
    client: Client, origin: Origin, clock: Clock, date: str | None
) -> None:
    """RFC 9110 section 6.6.1."""
    fields = [("Cache-Control", "max-age=60"), *([] if date is None else [("Date", date)])]
    url = origin.on("/", Answer(fields=fields, date=False))
    client.get(url)
    clock.advance(59)
    assert client.get(url).hit
    clock.advance(2)
    assert not client.get(url).hit


def test_age_and_the_time_to_answer_make_a_response_stale_on_arrival(
    client: Client, origin: Origin, clock: Clock
) -> None:
    """RFC 9111 section 4.2.3."""

    def slow(seen: Seen) -> Answer:
        clock.advance(15)
        return Answer(fields={"Age": "590", "Cache-Control": "max-age=600", "ETag": '"1"'})

    url = origin.on("/", slow)
    client.get(url)
    client.get(url)
    assert [seen.get("if-none-match") for seen in origin.seen()] == [None, '"1"']


def test_an_age_that_is_no_number_is_ignored(client: Client, origin: Origin) -> None:
    url = origin.on("/", Answer(fields={"Age": "abc", "Cache-Control": "max-age=60"}))
    client.get(url)
    assert client.get(url).hit


def test_age_of_a_hit_counts_from_the_origins_answer(client: Client, origin: Origin, clock: Clock) -> None:
    """RFC 9111 sections 4 and 5.1."""
    url = origin.on("/", Answer(fields={"Age": "7", "Cache-Control": "max-age=60"}))
    client.get(url)
    clock.advance(20)
    assert client.get(url).get("age") == "27"


def test_a_304_resets_the_age(client: Client, origin: Origin, clock: Clock) -> None:
    url = origin.on(
        "/",
        Answer(fields={"Age": "50", "Cache-Control": "max-age=60", "ETag": '"1"'}, body=b"one"),
        Answer(304, {"Cache-Control": "max-age=60", "ETag": '"1"'}),
    )
    client.get(url)
    clock.advance(20)
    assert client.get(url).body == b"one"
    clock.advance(55)
    got = client.get(url)
    assert (got.hit, got.get("age"), origin.count()) == (True, "55", 2)


def imf_two_digit_year(clock: Clock) -> str:
    return strftime("%a, %d %b %y %H:%M:%S GMT", gmtime(clock.now + 3600))


def other_zone(clock: Clock) -> str:
    return clock.date(3600).replace("GMT", "+0000")


def named_zone(clock: Clock) -> str:
    return clock.date(3600).replace("GMT", "PST")


@pytest.mark.parametrize("expires", ["-1", "0", "", "Wed, 99 Foo", imf_two_digit_year, other_zone, named_zone], ids=str)
def test_an_invalid_expires_is_in_the_past(
    client: Client, origin: Origin, clock: Clock, expires: str | Callable[[Clock], str]
) -> None:
    """Expired, never an exception, and never heuristics instead (RFC 9111 section 5.3)."""
    value = expires if isinstance(expires, str) else expires(clock)
    url = origin.on("/", Answer(fields={"Expires": value, "Last-Modified": clock.date(-100 * DAY)}))
    client.get(url)
    assert not client.get(url).hit


def rfc850(clock: Clock) -> str:
    return strftime("%A, %d-%b-%y %H:%M:%S GMT", gmtime(clock.now + 60))


def asctime(clock: Clock) -> str:
    return strftime("%a %b %e %H:%M:%S %Y", gmtime(clock.now + 60))


def imf_fixdate(clock: Clock) -> str:
    return clock.date(60)


@pytest.mark.parametrize("form", [imf_fixdate, rfc850, asctime])
def test_all_three_forms_of_a_date_are_read(
    client: Client, origin: Origin, clock: Clock, form: Callable[[Clock], str]
) -> None:
    """RFC 9110 section 5.6.7."""
    url = origin.on("/", Answer(fields={"Expires": form(clock)}))
    client.get(url)
    clock.advance(59)
    assert client.get(url).hit
    clock.advance(2)
    assert not client.get(url).hit


@pytest.mark.parametrize(
    "value, fresh",
    [
        ("max-age=60", True),
        ('max-age="60"', True),
        ("max-age=10000000000000000000", True),
        ("max-age=600s", False),
        ("max-age=600, max-age=1", False),
        ("max-age=-1", False),
        ("max-age=1.5", False),
        ("max-age= 60", False),
        ("max-age=", False),
        ("max-age", False),
        ("public; max-age=30", False),
        ("max-age=60, s-maxage=0", False),
        ("max-age=0, s-maxage=60", True),
    ],
)
def test_max_age_in_all_its_spellings(client: Client, origin: Origin, clock: Clock, value: str, fresh: bool) -> None:
    """RFC 9111 sections 4.2.1 and 5.2: never an exception, invalid is stale, huge is clamped."""
    url = origin.on("/", Answer(fields={"Cache-Control": value, "ETag": '"1"'}, body=b"one"))
    assert client.get(url).body == b"one"
    clock.advance(2)
    got = client.get(url)
    assert (got.body, got.hit) == (b"one", fresh)


def test_the_ttl_caps_any_lifetime(client: Client, origin: Origin, clock: Clock) -> None:
    """Decision 5: nothing is served for longer than 24 hours after the origin sent or confirmed it."""
    url = origin.on("/", Answer(fields={"Cache-Control": "max-age=31536000, immutable"}))
    client.get(url)
    clock.advance(DAY - 1)
    assert client.get(url).hit
    clock.advance(2)
    assert not client.get(url).hit


def test_the_stricter_of_two_lines_holds(client: Client, origin: Origin) -> None:
    fields = [("Cache-Control", "max-age=60"), ("Cache-Control", "max-age=1, no-cache"), ("ETag", '"1"')]
    url = origin.on("/", Answer(fields=fields))
    client.get(url)
    assert not client.get(url).hit
    assert origin.seen()[1].get("if-none-match") == '"1"'


def test_heuristic_freshness_is_a_tenth_of_the_age_of_the_content(client: Client, origin: Origin, clock: Clock) -> None:
    """RFC 9111 section 4.2.2."""
    url = origin.on("/", Answer(fields={"Last-Modified": clock.date(-1000)}))
    client.get(url)
    clock.advance(99)
    assert client.get(url).hit
    clock.advance(2)
    assert not client.get(url).hit


def test_a_field_that_vary_names_may_be_missing_in_both_requests(client: Client, origin: Origin) -> None:
    """RFC 9111 section 4.1."""
    url = origin.on("/", Answer(fields={"Cache-Control": "max-age=60", "Vary": "X-Missing"}))
    client.get(url)
    assert client.get(url).hit
    assert not client.get(url, {"X-Missing": "no more"}).hit


@pytest.mark.parametrize("vary", ["*", "Accept, *"])
def test_vary_star_is_never_reused_without_the_origin(client: Client, origin: Origin, vary: str) -> None:
    url = origin.on("/", Answer(fields={"Cache-Control": "max-age=60", "ETag": '"1"', "Vary": vary}))
    client.get(url)
    assert not client.get(url).hit


def test_two_variants_live_side_by_side(client: Client, origin: Origin) -> None:

    def negotiated(seen: Seen) -> Answer:
        accept = seen.get("accept") or ""
        return Answer(fields={"Cache-Control": "max-age=60", "Vary": "Accept"}, body=accept.encode())

    url = origin.on("/", negotiated)
    for accept in ("image/webp", "image/png") * 3:
        assert client.get(url, {"Accept": accept}).body == accept.encode()
    assert origin.count() == 2


@pytest.mark.parametrize(
    "directive, age, hit",
    [
        ("no-cache", 0, False),
        ("max-age=0", 0, False),
        ("max-age=5", 4, True),
        ("max-age=5", 6, False),
        ("min-fresh=10", 49, True),
        ("min-fresh=10", 51, False),
        ("max-stale", 1000, True),
        ("max-stale=10", 69, True),
        ("max-stale=10", 71, False),
        ("only-if-cached", 59, True),
        ("no-store", 0, None),
    ],
)
def test_request_directives_are_honoured(
    client: Client, origin: Origin, clock: Clock, directive: str, age: float, hit: bool | None
) -> None:
    """RFC 9111 section 5.2.1. A request's no-store forbids to store, not to answer."""
    url = origin.on("/", Answer(fields={"Cache-Control": "max-age=60", "ETag": '"1"'}, body=b"one"))
    client.get(url)
    clock.advance(age)
    got = client.get(url, {"Cache-Control": directive})
    assert got.body == b"one"
    assert got.hit is hit or hit is None


def test_what_a_no_store_request_brings_is_not_kept(world: World, client: Client, origin: Origin) -> None:
    """RFC 9111 section 5.2.1.5."""
    url = origin.on("/", Answer(fields={"Cache-Control": "max-age=60"}, body=b"a secret of some length"))
    client.get(url, {"Cache-Control": "no-store"})
    assert not world.on_disk(b"a secret of some length")
    assert not client.get(url).hit


@pytest.mark.parametrize("stale", [False, True], ids=["nothing stored", "stale"])
def test_only_if_cached_never_asks(client: Client, origin: Origin, clock: Clock, stale: bool) -> None:
    """RFC 9111 section 5.2.1.7."""
    url = origin.on("/", Answer(fields={"Cache-Control": "max-age=1"}))
    if stale:
        client.get(url)
        clock.advance(2)
    asked = origin.count()
    got = client.get(url, {"Cache-Control": "only-if-cached"})
    assert (got.status, origin.count()) == (504, asked)
    assert got.cache_status
