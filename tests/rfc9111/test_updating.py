"""RFC 9111 section 3.2."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vllm_http_cache.rfc9111.freshness import current_age
from vllm_http_cache.rfc9111.message import Fields, Response, StoredResponse
from vllm_http_cache.rfc9111.updating import UNNOTED, completed, is_news, updated

from .make import SHARED, T, answer, date, fields, get, kept, part


def update(stored: StoredResponse, *lines: str, confirms: bool = True) -> StoredResponse:
    return updated(stored, get(), answer(*lines, status=304), T + 98, T + 100, SHARED, confirms=confirms)


@pytest.mark.parametrize(
    "name", ["Test-Header", "Content-Foo", "Content-Location", "Content-Security-Policy", "Set-Cookie", "Expires"]
)
def test_fields_are_replaced(name: str) -> None:
    stored = kept(f"{name}: a", "Other: 1", f"{name.lower()}: b")
    assert update(stored, f"{name}: c", f"{name}: d").fields.get_all(name.lower()) == ("c", "d")
    assert update(stored, "x: y").fields.get_all(name.lower()) == ("a", "b")
    assert update(stored, f"{name}: c").fields.get("other") == "1"


@pytest.mark.parametrize(
    "name", ["Content-Encoding", "Content-MD5", "Content-Digest", "Digest", "ETag", "Content-Length", "Content-Range"]
)
def test_what_says_how_to_read_the_octets_stays_with_them(name: str) -> None:
    assert update(kept(f"{name}: a"), f"{name}: b").fields.get(name.lower()) == "a"
    assert name.lower() not in update(kept(), f"{name}: b").fields


@pytest.mark.parametrize(
    "old, new, expected",
    [
        ("image/png", "text/html", "image/png"),
        ("text/plain", "text/plain;charset=utf-8", "text/plain;charset=utf-8"),
        ("Text/Plain ; x", "text/plain", "text/plain"),
        ("text/plain", "x-text/plain", "text/plain"),
        ("text/plain\t; a", "text/plain ;b", "text/plain ;b"),
        ("text/plain\xa0", "text/plain", "text/plain\xa0"),
        ("text/plain", "text/plain\xa0", "text/plain"),
    ],
)
def test_a_media_type_stays_its_parameters_may_change(old: str, new: str, expected: str) -> None:
    assert update(kept(f"Content-Type: {old}"), f"Content-Type: {new}").fields.get("content-type") == expected


def test_a_media_type_may_be_added_and_is_not_lost() -> None:
    assert update(kept(), "Content-Type: a/b").fields.get("content-type") == "a/b"
    assert update(kept("Content-Type: a/b"), "X: y").fields.get("content-type") == "a/b"


def test_fields_not_for_storing_are_not_taken_over() -> None:
    stored = kept("A: 1", "B: 2")
    new = update(stored, "Connection: A", "A: 3", 'Cache-Control: private="B"', "B: 4", "Keep-Alive: x")
    assert "b" not in new.fields and "keep-alive" not in new.fields and "connection" not in new.fields
    assert new.fields.get("a") == "1", "what Connection names is of this one message"


def test_the_framing_of_a_304_is_not_that_of_the_stored_content() -> None:
    assert update(kept("Content-Length: 5"), "Transfer-Encoding: chunked").fields.get("content-length") == "5"


def test_a_304_resets_the_age() -> None:
    stored = kept("Age: 590", f"Date: {date(-5)}")
    assert current_age(update(stored, f"Date: {date(100)}"), T + 100) == 2  # the time it took to answer
    assert current_age(update(stored, f"Date: {date(100)}", "Age: 7"), T + 100) == 9
    assert update(stored, f"Date: {date(50)}").fields.get_all("date") == (date(50),)
    silent = updated(stored, get(), Response(304, Fields()), T + 98, T + 100, SHARED)
    assert [line for line in silent.fields if line[0].lower() == "date"] == [("Date", date(100))]
    assert current_age(silent, T + 100) == 2


def test_times() -> None:
    stored = kept()
    new = update(stored)
    assert (new.request_time, new.response_time, new.confirmed) == (T + 98, T + 100, T + 100)
    assert update(stored, confirms=False).confirmed == T
    assert update(stored, confirms=False).response_time == T + 100


def test_the_uri_is_that_of_the_last_request() -> None:
    new = updated(kept(uri="https://a/?1"), get(uri="https://u:p@a/?2"), answer(), T, T, SHARED)
    assert new.uri == "https://a/?2"


def test_the_rest_of_a_response_stays() -> None:
    stored = part("2-5/10", "X: 1")
    new = update(stored)
    assert replace(new, fields=stored.fields, request_time=T, response_time=T, confirmed=T) == stored


def test_selecting_values_stay_unless_vary_changes() -> None:
    stored = kept("Vary: Accept-Language", "Content-Language: de", request=get("Accept-Language: en, de"))
    request = get("Accept-Language: de", "Foo: 1")
    same = updated(stored, request, answer(status=304), T, T, SHARED)
    assert same.selecting == stored.selecting
    wider = updated(stored, request, answer("Vary: Accept-Language, Foo", status=304), T, T, SHARED)
    assert [name for name, _ in wider.selecting] == ["accept-language", "foo"]
    assert dict(wider.selecting)["accept-language"] == "de;q=1"


NEVER_FRESH = ("Cache-Control: no-cache", 'ETag: "1"')


@pytest.mark.parametrize(
    "before, lines, expected",
    [
        (NEVER_FRESH, (f"Date: {date(100)}",), False),
        (NEVER_FRESH, (f"Date: {date(100)}", "Age: 7"), False),
        (NEVER_FRESH, ('ETag: "1"', "Cache-Control: no-cache", f"Date: {date(100)}"), False),
        ((*NEVER_FRESH, "Expires: 0"), (f"Expires: {date(-5)}",), False),
        (NEVER_FRESH, ("Foo: 1",), True),
        (NEVER_FRESH, ("Cache-Control: max-age=5",), True),
        (NEVER_FRESH, ("Cache-Control: max-age=0, stale-while-revalidate=5",), True),
        (("Cache-Control: max-age=0, stale-while-revalidate=5",), ("Cache-Control: max-age=0",), True),
        ((f"Expires: {date(3600)}",), ("Expires: 0",), True),  # what is stored must not stay fresh
        ((f"Expires: {date(3600)}",), (f"Expires: {date(3601)}",), True),
        ((*NEVER_FRESH, "Vary: Accept"), ("Vary: Accept",), False),
        ((*NEVER_FRESH, "Age: 5", "Expires: 0"), (f"Date: {date(100)}", "Age: 7", f"Expires: {date(-5)}"), False),
        (("Cache-Control: max-age=1",), (f"Date: {date(100)}",), True),
        (("Cache-Control: max-age=0, stale-while-revalidate=5",), (f"Date: {date(100)}",), True),
    ],
)
def test_what_is_worth_noting(before: tuple[str, ...], lines: tuple[str, ...], expected: bool) -> None:
    stored = kept(*before)
    soon = replace(update(stored, *lines), confirmed=stored.confirmed + UNNOTED - 1)
    assert is_news(stored, soon, SHARED) is expected


def test_a_confirmation_is_noted_now_and_then() -> None:
    stored = kept(*NEVER_FRESH)
    new = update(stored, f"Date: {date(100)}")
    assert is_news(stored, replace(new, confirmed=stored.confirmed + UNNOTED), SHARED)
    brief = replace(SHARED, ttl=120.0)
    assert is_news(stored, replace(new, confirmed=stored.confirmed + 2), brief)
    assert not is_news(stored, replace(new, confirmed=stored.confirmed + 1.99), brief)
    assert is_news(stored, replace(new, confirmed=stored.confirmed, uri=f"{stored.uri}?another-signature"), SHARED)


@pytest.mark.parametrize(
    "value, operators, unnoted",
    [
        ("max-age=0, stale-if-error=30", None, 0.5),
        ("max-age=0", 30.0, 0.5),
        ("max-age=0, stale-if-error=30", 300.0, 5),  # the longer one counts
        ("max-age=0, stale-if-error=7200", None, UNNOTED),
        ("max-age=0, stale-if-error=0", None, 0),
        ("no-cache, stale-if-error=30", None, UNNOTED),  # never used stale
    ],
)
def test_a_confirmation_counts_where_the_origin_may_fail_after_it(
    value: str, operators: float | None, unnoted: float
) -> None:
    """RFC 5861 section 4: the span begins where the response became stale, which is when it was last confirmed."""
    options = replace(SHARED, stale_if_error=operators)
    stored = kept(f"Cache-Control: {value}", 'ETag: "1"')
    new = update(stored, f"Date: {date(100)}")
    assert is_news(stored, replace(new, confirmed=stored.confirmed + unnoted), options)
    assert not unnoted or not is_news(stored, replace(new, confirmed=stored.confirmed + unnoted - 0.1), options)


def test_a_completed_response() -> None:
    """Section 3.4 and RFC 9110 section 15.3.7.3."""
    first = part("0-4/10", "A: 1", "B: 1", 'ETag: "1"', "Content-Length: 5", "Age: 50", "Content-Type: image/png")
    rest = part("5-9/10", "A: 2", 'ETag: "1"', "Content-Length: 5", f"Date: {date(9)}", "Content-Type: text/html")
    rest = replace(rest, response_time=T + 9, confirmed=T + 9, body=None)
    whole = completed(first, rest, 10, SHARED)
    assert whole.fields == fields(
        "B: 1", 'ETag: "1"', "Content-Type: image/png", "A: 2", f"Date: {date(9)}", "Content-Length: 10"
    )
    assert (whole.status, whole.reason, whole.first, whole.body) == (200, "OK", 0, None)
    assert (whole.response_time, whole.confirmed) == (T + 9, T + 9)
    for name in ("Content-Digest", "Content-MD5"):
        lines = (f"{name}: of the part",)
        assert completed(part("0-4/10", *lines), part("5-9/10", *lines), 10, SHARED).fields.get(name.lower()) is None
    undated = completed(first, replace(rest, fields=fields("A: 2")), 10, SHARED)
    assert undated.fields.get("date") == date(9)
    listed = completed(
        part("0-4/10", "A: 1"), part("5-9/10", "Connection: a", 'Cache-Control: no-cache="a"'), 10, SHARED
    )
    assert "a" not in listed.fields
