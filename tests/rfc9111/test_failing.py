"""RFC 5861 section 4: what is stale, where the origin fails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vllm_http_cache.rfc9111.judging import Pass, UseStale, judge_failure
from vllm_http_cache.rfc9111.message import Request, StoredResponse
from vllm_http_cache.rfc9111.options import CacheOptions

from .judged import FRESH, ONE, verdict
from .make import SHARED, T, answer, date, get, head, kept, part
from .test_selecting import RESIGNED, SIGNED

SIE = kept("Cache-Control: max-age=60, stale-if-error=10", ONE)
ERRORS = [500, 502, 503, 504]


def test_stale_if_error() -> None:
    assert judge_failure(get(), (SIE,), T + 61, SHARED) == SIE
    assert judge_failure(get(), (SIE,), T + 70, SHARED) == SIE
    assert judge_failure(get(), (SIE,), T + 70.1, SHARED) is None
    assert judge_failure(get(), (), T, SHARED) is None
    assert judge_failure(get(), (kept(FRESH),), T + 61, SHARED) is None
    assert judge_failure(head(), (SIE,), T + 61, SHARED) == SIE


def test_the_longest_of_the_spans_counts() -> None:
    """The response's, the caller's, the operator's."""
    plain, request = kept(FRESH), get("Cache-Control: stale-if-error=20")
    operator = CacheOptions(stale_if_error=30)
    assert judge_failure(request, (plain,), T + 80, SHARED) == plain
    assert judge_failure(request, (plain,), T + 80.1, SHARED) is None
    assert judge_failure(request, (plain,), T + 90, operator) == plain
    assert judge_failure(get(), (plain,), T + 90, operator) == plain
    assert judge_failure(get(), (plain,), T + 90.1, operator) is None
    assert judge_failure(get(), (SIE,), T + 70.1, CacheOptions(stale_if_error=0)) is None
    assert judge_failure(get(), (SIE,), T + 70, CacheOptions(stale_if_error=0)) == SIE


@pytest.mark.parametrize("value", ["must-revalidate", "proxy-revalidate", "s-maxage=60", "no-cache"])
def test_what_forbids_stale_forbids_it_after_errors_too(value: str) -> None:
    stored = kept(f"Cache-Control: max-age=60, stale-if-error=600, {value}")
    request = get("Cache-Control: stale-if-error=600")
    options = CacheOptions(stale_if_error=600)
    assert judge_failure(request, (stored,), T + 61, options) is None
    in_private = judge_failure(request, (stored,), T + 61, replace(options, shared=False))
    assert (in_private is not None) is (value in ("proxy-revalidate", "s-maxage=60"))


def test_who_asked_for_validation_gets_the_error() -> None:
    assert judge_failure(get("Cache-Control: no-cache"), (SIE,), T + 61, SHARED) is None
    assert judge_failure(get("Cache-Control: no-cache, stale-if-error=5"), (SIE,), T + 61, SHARED) == SIE
    assert judge_failure(get("Cache-Control: max-age=5"), (SIE,), T + 61, SHARED) == SIE


def test_the_ttl_holds_after_errors_too() -> None:
    assert judge_failure(get(), (SIE,), T + 65, CacheOptions(ttl=65)) is None
    assert judge_failure(get(), (SIE,), T + 64.9, CacheOptions(ttl=65)) == SIE


@pytest.mark.parametrize(
    "request_, stored",
    [
        (get(uri=RESIGNED), replace(SIE, uri=SIGNED)),
        (get("Foo: 1"), replace(SIE, fields=SIE.fields.replaced(("Vary", "Foo")))),
        (get(), replace(SIE, fields=SIE.fields.replaced(("Vary", "*")))),
        (get(), part("0-4/10", "Cache-Control: max-age=60, stale-if-error=10")),
        (head(), part("0-4/10", "Cache-Control: max-age=60, stale-if-error=10")),
    ],
)
def test_what_could_not_answer_fresh_does_not_stale(request_: Request, stored: StoredResponse) -> None:
    assert judge_failure(request_, (stored,), T + 61, SHARED) is None
    assert judge_failure(request_, (stored, SIE), T + 61, SHARED) == (None if request_.uri == RESIGNED else SIE)


def test_what_the_best_forbids_is_not_to_be_had_from_an_older_one() -> None:
    newest = kept(FRESH, f"Date: {date(1)}", "Vary: Foo")
    assert judge_failure(get(), (newest, SIE), T + 61, SHARED) is None
    assert judge_failure(get(), (SIE, newest), T + 61, SHARED) == SIE


def test_a_part_may_answer_for_what_it_holds() -> None:
    stored = part("0-4/10", "Cache-Control: max-age=60, stale-if-error=10")
    assert judge_failure(get("Range: bytes=0-1"), (stored,), T + 61, SHARED) == stored


@pytest.mark.parametrize("status", [*ERRORS, 501, 505, 429, 404])
def test_error_answers(status: int) -> None:
    stored = kept("Cache-Control: max-age=60, stale-if-error=100", ONE)
    for candidate in (stored, replace(stored, fields=stored.fields.without(("etag",)))):
        expected = UseStale(candidate) if status in ERRORS else Pass()
        assert verdict(get(), answer(status=status), candidate) == expected
        assert (verdict(get(), answer(FRESH, status=status), candidate) == expected) is (status in ERRORS)
    assert verdict(get(), answer(status=status), kept(ONE)) == Pass()
    if status in ERRORS:
        assert verdict(head(), answer(status=status), stored) == UseStale(stored)
