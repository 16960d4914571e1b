"""RFC 9111 sections 4.2 and 5.1 to 5.3, RFC 9213 section 2.2."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf

import pytest

from vllm_http_cache.rfc9111.freshness import (
    CLOCK_SKEW,
    current_age,
    date_value,
    fresh_until,
    has_explicit_lifetime,
    initial_age,
    lifetime,
    may_be_stale,
    stale_since,
    within_ttl,
)
from vllm_http_cache.rfc9111.message import StoredResponse
from vllm_http_cache.rfc9111.options import CacheOptions

from .make import PRIVATE, SHARED, T, date, fields, kept

LM = f"Last-Modified: {date(-1000)}"


def seconds(*lines: str, status: int = 200, options: CacheOptions = SHARED) -> float:
    return lifetime(kept(*lines, status=status), options).seconds


@pytest.mark.parametrize(
    "lines, expected",
    [
        (("Age: 30",), 30),
        (("Age: 0",), 0),
        (("Age:  7200 , 0",), 7200),
        (("Age: 0, 7200",), 0),
        (("Age: 7200", "Age: 0"), 7200),
        (("Age: 0", "Age: 7200"), 0),
        (("Age: 0, 0",), 0),
        (("Age: 2147483647",), 2**31 - 1),
        (("Age: 2147483649",), 2**31),
        (("Age: 99999999999999999999",), 2**31),
        (("Age: abc",), 0),
        (("Age: -7200",), 0),
        (("Age: 7200.0",), 0),
        (("Age: 7200;foo=bar",), 0),
        (("Age: x, 7200",), 0),
        (("Age: , 7200",), 0),
        (("Age: ",), 0),
        ((), 0),
    ],
)
def test_age_value(lines: tuple[str, ...], expected: int) -> None:
    assert initial_age(kept(*lines)) == expected


@pytest.mark.parametrize(
    "lines, delay, expected",
    [
        ((f"Date: {date(-100)}",), 0, 100),  # apparent_age
        ((f"Date: {date(100)}",), 0, 0),
        ((f"Date: {date(-100)}", "Age: 30"), 0, 100),
        ((f"Date: {date(-100)}", "Age: 300"), 0, 300),
        ((f"Date: {date(-100)}", "Age: 90"), 20, 110),  # relative to when the request was sent
        ((f"Date: {date(-100)}",), 20, 100),
        (("Date: garbage",), 20, 20),
        (("Date: garbage", "Age: 5"), -3, 5),  # a clock set back while waiting
        ((f"Date: {date(-100)}, {date(-100)}",), 0, 0),
    ],
)
def test_corrected_initial_age(lines: tuple[str, ...], delay: float, expected: float) -> None:
    stored = kept(*lines, delay=delay)
    assert initial_age(stored) == expected
    assert current_age(stored, T) == expected
    assert current_age(stored, T + 12.5) == expected + 12.5
    assert current_age(stored, T - 1000) == expected


def test_date_value_falls_back_on_the_time_of_receipt() -> None:
    assert date_value(kept(f"Date: {date(-7)}")) == T - 7
    assert date_value(kept("Date: x", at=T + 9)) == T + 9


@pytest.mark.parametrize(
    "lines, shared, private",
    [
        (("Cache-Control: max-age=60",), 60, 60),
        (("Cache-Control: max-age=60, s-maxage=10",), 10, 60),
        (("Cache-Control: max-age=10, s-maxage=60",), 60, 10),
        (("Cache-Control: s-maxage=60", LM), 60, 100),
        (("Cache-Control: s-maxage=0", f"Expires: {date(60)}"), 0, 60),
        (("Cache-Control: max-age=0", f"Expires: {date(60)}"), 0, 0),
        (("Cache-Control: max-age=x", f"Expires: {date(60)}", LM), 0, 0),
        (("Cache-Control: s-maxage=x, max-age=60",), 0, 60),
        (("Cache-Control: max-age=60, no-cache",), 0, 0),
        (('Cache-Control: max-age=60, no-cache="x"',), 60, 60),
        ((f"Expires: {date(60)}",), 60, 60),
        ((f"Expires: {date(60)}", f"Date: {date(-5)}"), 65, 65),
        ((f"Expires: {date(300)}", f"Date: {date(400)}"), -100, -100),
        ((f"Expires: {date(60)}", "Date: foo"), 60, 60),
        ((f"Expires: {date(60)}", "Cache-Control: max-age=5"), 5, 5),
        (("Expires: 0", LM), 0, 0),
        (("Expires: -1", LM), 0, 0),
        (("Expires: ", LM), 0, 0),
        (("Expires: Wed, 99 Foo", LM), 0, 0),
        ((f"Expires: {date(60)}", f"Expires: {date(60)}", LM), 0, 0),
        (("Cache-Control: public",), 0, 0),
        ((), 0, 0),
        ((LM,), 100, 100),
        ((LM, f"Date: {date(1000)}"), 200, 200),
        ((LM, "Date: x"), 100, 100),
        ((f"Last-Modified: {date(1)}",), 0, 0),
        (("Last-Modified: x",), 0, 0),
    ],
)
def test_freshness_lifetime(lines: tuple[str, ...], shared: float, private: float) -> None:
    assert seconds(*lines) == shared
    assert seconds(*lines, options=PRIVATE) == private


HEURISTIC = [200, 203, 204, 206, 300, 301, 308, 404, 405, 410, 414, 501]


@pytest.mark.parametrize(
    "status", sorted({*HEURISTIC, 201, 202, 302, 303, 307, 400, 403, 429, 500, 502, 503, 504, 599})
)
def test_heuristics_are_for_the_statuses_that_the_rfc_lists(status: int) -> None:
    assert seconds(LM, status=status) == (100 if status in HEURISTIC else 0)
    assert seconds(LM, "Cache-Control: public", status=status) == 100
    assert seconds(LM, "Cache-Control: max-age=7", status=status) == 7


def test_the_share_of_a_heuristic_is_an_option() -> None:
    assert seconds(LM, options=CacheOptions(heuristic_fraction=0.05)) == 50
    assert seconds(LM, options=CacheOptions(heuristic_fraction=0)) == 0


def test_a_targeted_field_takes_the_place_of_expires_too() -> None:
    options = CacheOptions(targeted=("X",))
    lines = ("Cache-Control: max-age=9", f"Expires: {date(60)}", LM)
    assert seconds("X: max-age=5", *lines, options=options) == 5
    assert seconds("X: public", *lines, options=options) == 100  # by heuristics
    assert seconds("X: ", f"Expires: {date(60)}", options=options) == 60
    assert not has_explicit_lifetime(fields("X: public", *lines), options)
    assert has_explicit_lifetime(fields("X: max-age=1"), options)


@pytest.mark.parametrize(
    "line, shared, private",
    [
        ("Cache-Control: max-age=0", True, True),
        ("Cache-Control: max-age=x", True, True),
        ("Cache-Control: s-maxage=1", True, False),
        ("Expires: x", True, True),
        ("Cache-Control: public", False, False),
        (LM, False, False),
    ],
)
def test_explicit_lifetime(line: str, shared: bool, private: bool) -> None:
    assert has_explicit_lifetime(fields(line), SHARED) is shared
    assert has_explicit_lifetime(fields(line), PRIVATE) is private


@pytest.mark.parametrize(
    "lines, words",
    [
        (("Cache-Control: no-cache",), "no-cache.*5.2.2.4"),
        (("Cache-Control: s-maxage=1",), "s-maxage.*5.2.2.10"),
        (("Cache-Control: max-age=1",), "max-age.*5.2.2.1"),
        (("Expires: 0",), "Expires is not a date.*5.3"),
        ((f"Expires: {date()}",), r"Expires \(.*5.3"),
        ((LM,), "heuristic: .*4.2.2"),
        ((), "no lifetime stated.*4.2.2"),
    ],
)
def test_each_rule_names_itself_and_its_section(lines: tuple[str, ...], words: str) -> None:
    assert re.search(words, lifetime(kept(*lines), SHARED).rule)


def test_the_moment_a_response_becomes_stale() -> None:
    stored = kept("Cache-Control: max-age=600", "Age: 590", delay=4)
    assert stale_since(stored, SHARED) == T + 6
    assert fresh_until(stored, SHARED) == T + 6
    assert fresh_until(kept("Cache-Control: max-age=600", "Age: 590", delay=15), SHARED) == T - 5
    assert fresh_until(kept("Cache-Control: max-age=2147483648", "Age: 99999999999"), SHARED) == T


def test_the_ttl_caps_every_lifetime_from_the_last_confirmation() -> None:
    stored = kept("Cache-Control: max-age=600")
    confirmed = replace(stored, confirmed=T - 100)
    assert fresh_until(stored, CacheOptions(ttl=60)) == T + 60
    assert fresh_until(confirmed, CacheOptions(ttl=60)) == T - 40
    assert fresh_until(stored, CacheOptions(ttl=601)) == T + 600
    assert fresh_until(stored, CacheOptions(ttl=inf)) == T + 600
    assert stale_since(stored, CacheOptions(ttl=60)) == T + 600


def test_within_ttl() -> None:
    stored = replace(kept(), confirmed=T - 10)
    assert within_ttl(stored, T + 49.9, CacheOptions(ttl=60))
    assert not within_ttl(stored, T + 50, CacheOptions(ttl=60))
    assert within_ttl(stored, T + 1e9, SHARED)


@pytest.mark.parametrize("which", ["response_time", "confirmed"])
def test_a_response_from_the_future_is_not_believed(which: str) -> None:
    changed: dict[str, float] = {which: T + 100}
    stored: StoredResponse = replace(kept(), **changed)  # type: ignore[arg-type]
    assert not within_ttl(stored, T + 100 - CLOCK_SKEW - 0.1, SHARED)
    assert within_ttl(stored, T + 100 - CLOCK_SKEW, SHARED)
    assert 0 < CLOCK_SKEW <= 60


@pytest.mark.parametrize(
    "value, shared, private",
    [
        ("max-age=1", True, True),
        ("stale-if-error=5", True, True),
        ("must-revalidate", False, False),
        ("no-cache", False, False),
        ('no-cache="x"', True, True),
        ("proxy-revalidate", False, True),
        ("s-maxage=1", False, True),
        ("s-maxage=0", False, True),
    ],
)
def test_what_forbids_to_serve_stale(value: str, shared: bool, private: bool) -> None:
    stored = kept(f"Cache-Control: {value}")
    assert may_be_stale(stored, SHARED) is shared
    assert may_be_stale(stored, PRIVATE) is private


@pytest.mark.parametrize(
    "lines, rule",
    [
        (("Cache-Control: no-cache",), "no-cache: never used without validation (RFC 9111 section 5.2.2.4)"),
        (("Cache-Control: s-maxage=5",), "s-maxage (RFC 9111 section 5.2.2.10)"),
        (("Cache-Control: max-age=5",), "max-age (RFC 9111 section 5.2.2.1)"),
        ((f"Expires: {date(5)}",), "Expires (RFC 9111 section 5.3)"),
        (("Expires: 0",), "Expires is not a date, so already expired (RFC 9111 section 5.3)"),
        ((LM,), "heuristic: a share of the time since Last-Modified (RFC 9111 section 4.2.2)"),
        ((), "no lifetime stated, and no ground for a heuristic one (RFC 9111 section 4.2.2)"),
    ],
)
def test_the_rule_names_field_and_section(lines: tuple[str, ...], rule: str) -> None:
    assert lifetime(kept(*lines), SHARED).rule == rule


def test_two_digits_of_a_year_are_read_as_of_the_receipt() -> None:
    """RFC 9110 section 5.6.7: not more than 50 years ahead. The response came in 1994."""
    assert date_value(kept("Date: Sunday, 06-Nov-94 08:49:30 GMT")) == T - 7
    assert seconds("Expires: Sunday, 06-Nov-94 08:49:47 GMT") == 10
    assert seconds("Last-Modified: Sunday, 06-Nov-94 08:48:37 GMT") == 6
