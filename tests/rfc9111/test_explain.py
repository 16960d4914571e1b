"""What the rules say when they are asked."""

from __future__ import annotations

from math import inf

import pytest

from vllm_http_cache.rfc9111.explain import explain
from vllm_http_cache.rfc9111.message import Request, StoredResponse
from vllm_http_cache.rfc9111.options import CacheOptions

from .make import SHARED, T, date, get, kept
from .test_selecting import RESIGNED, SIGNED

FRESH = "Cache-Control: max-age=60"


def test_fresh() -> None:
    found = explain(get("Foo: 1"), kept(FRESH, 'ETag: "1"', "Age: 5", f"Last-Modified: {date(-9)}"), T + 10, SHARED)
    assert found.fresh
    assert (found.age, found.lifetime, found.stale_at) == (15, 60, T + 55)
    assert found.rule == "max-age (RFC 9111 section 5.2.2.1)"
    assert found.outcome == "answered from the cache"
    assert found.validation == (("If-None-Match", '"1"'), ("If-Modified-Since", date(-9)))
    assert found.notes == ()


def test_fresh_to_the_last_moment() -> None:
    assert explain(get(), kept(FRESH), T + 59.5, SHARED).outcome == "answered from the cache"


def test_stale() -> None:
    found = explain(get(), kept(FRESH), T + 60, SHARED)
    assert not found.fresh
    assert found.outcome == "forwarded: stale (RFC 9211 section 2.2)"
    assert found.validation == ()


@pytest.mark.parametrize(
    "request_, stored, now, options, outcome",
    [
        (
            get("Cache-Control: only-if-cached"),
            kept(FRESH),
            T + 60,
            SHARED,
            "refused with 504: only-if-cached (RFC 9111 section 5.2.1.7)",
        ),
        (get("Cache-Control: max-stale"), kept(FRESH), T + 61, SHARED, "answered from the cache, stale"),
        (
            get(),
            kept("Cache-Control: max-age=1, stale-while-revalidate=9"),
            T + 3,
            SHARED,
            "answered from the cache, stale, and validated in the background (RFC 5861 section 3)",
        ),
        (get(), kept("Vary: *"), T, SHARED, "forwarded: vary-miss"),
        (get(), kept(FRESH), T, CacheOptions(mode="no-store"), "forwarded: bypass"),
        (get("Host: other.test"), kept(FRESH), T, SHARED, "forwarded: bypass (RFC 9211 section 2.2)"),
        (get(), kept(FRESH), T, CacheOptions(mode="off"), "forwarded: the mode is off"),
    ],
)
def test_outcomes(request_: Request, stored: StoredResponse, now: float, options: CacheOptions, outcome: str) -> None:
    assert explain(request_, stored, now, options).outcome.startswith(outcome)


@pytest.mark.parametrize(
    "request_, stored, options, words",
    [
        (get(), kept("X: max-age=5", FRESH), CacheOptions(targeted=("X",)), "x is obeyed"),
        (get(), kept(FRESH), CacheOptions(ttl=59), f"the ttl of 59 s ends the lifetime early, {date(59)}"),
        (get(), kept(FRESH, at=T - 60), CacheOptions(ttl=60), "past the ttl"),
        (
            get(),
            kept("Cache-Control: must-revalidate"),
            SHARED,
            "never served stale: the response forbids it (RFC 9111 section 4.2.4)",
        ),
        (
            get(),
            kept("Cache-Control: max-age=60, stale-if-error=5"),
            SHARED,
            f"stale-if-error allows it stale until {date(65)} (RFC 5861)",
        ),
        (
            get(),
            kept("Cache-Control: max-age=60, stale-if-error=5"),
            CacheOptions(stale_if_error=7),
            f"stale-if-error allows it stale until {date(67)} (RFC 5861)",
        ),
        (
            get(),
            kept(FRESH),
            CacheOptions(stale_if_error=inf),
            "stale-if-error allows it stale until Fri, 31 Dec 9999",
        ),
        (
            get(),
            kept("Cache-Control: max-age=60, stale-while-revalidate=5"),
            SHARED,
            f"stale-while-revalidate allows it stale until {date(65)} (RFC 5861)",
        ),
        (get(uri=RESIGNED), kept(uri=SIGNED), SHARED, "stored under another signature"),
        (get("Foo: 1"), kept("Vary: Foo, Bar"), SHARED, "Vary: bar, foo: another request's"),
    ],
)
def test_notes(request_: Request, stored: StoredResponse, options: CacheOptions, words: str) -> None:
    (note,) = explain(request_, stored, T, options).notes
    assert note.startswith(words)


def test_permissions_that_are_forbidden_are_not_mentioned() -> None:
    stored = kept("Cache-Control: max-age=60, stale-if-error=5, must-revalidate")
    assert len(explain(get(), stored, T, SHARED).notes) == 1


def test_fresh_is_within_the_ttl_and_not_from_the_future() -> None:
    assert not explain(get(), kept(FRESH), T + 10, CacheOptions(ttl=10)).fresh
    assert not explain(get(), kept(FRESH), T - 10, SHARED).fresh


def test_what_the_caller_sends_itself_is_not_added() -> None:
    found = explain(get('If-None-Match: "1"', "Foo: x"), kept(FRESH, 'ETag: "1"'), T, SHARED)
    assert found.validation == ()
