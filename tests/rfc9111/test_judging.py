"""RFC 9111 sections 3.4, 4.2.4, 4.3.3 to 4.3.5, RFC 5861 section 4."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from vllm_http_cache.rfc9111.judging import (
    MAX_VARIANTS,
    Freshen,
    Keep,
    Pass,
    Refetch,
    UseStale,
    Verdict,
    judge,
    judge_failure,
    merged,
)
from vllm_http_cache.rfc9111.message import Request, Response, StoredResponse
from vllm_http_cache.rfc9111.options import CacheOptions
from vllm_http_cache.rfc9111.storing import stored_response
from vllm_http_cache.rfc9111.updating import completed, updated
from vllm_http_cache.rfc9111.validating import conditional

from .make import PRIVATE, SHARED, T, answer, date, get, head, kept, part
from .test_selecting import RESIGNED, SIGNED

FRESH = "Cache-Control: max-age=60"
ONE, WEAK, TWO = 'ETag: "1"', 'ETag: W/"1"', 'ETag: "2"'
LM = f"Last-Modified: {date(-9)}"
LATER = T + 100


def verdict(
    request: Request, response: Response, *candidates: StoredResponse, options: CacheOptions = SHARED
) -> Verdict:
    sent = conditional(request, candidates)
    return judge(request, sent, response, LATER, LATER, candidates, options)


def anew(request: Request, response: Response) -> StoredResponse:
    return stored_response(request, response, LATER, LATER, SHARED)


def freshened(stored: StoredResponse, response: Response, request: Request | None = None) -> StoredResponse:
    return updated(stored, request or get(), response, LATER, LATER, SHARED)


def not_modified(*lines: str) -> Response:
    return answer(f"Date: {date(100)}", *lines, status=304)


# Nothing stored


def test_what_may_be_stored_is_kept() -> None:
    response = answer(FRESH, f"Date: {date(100)}")
    assert verdict(get(), response) == Keep(anew(get(), response), shareable=True)


@pytest.mark.parametrize(
    "lines",
    [
        ("Cache-Control: no-cache, max-age=5",),
        ("Cache-Control: max-age=0",),
        ("Cache-Control: max-age=600", "Age: 600"),
        (),
    ],
)
def test_what_is_stale_on_arrival_is_not_shared(lines: tuple[str, ...]) -> None:
    response = answer(f"Date: {date(100)}", *lines)
    assert verdict(get(), response) == Keep(anew(get(), response), shareable=False)


def test_slow_answers_are_older() -> None:
    """Age: 590, max-age=600, 15 s to answer: stale on arrival."""
    response = answer("Cache-Control: max-age=600", "Age: 590", "Date: x")
    for delay, shareable in ((9.9, True), (10, False), (15, False)):
        found = judge(get(), get(), response, T, T + delay, (), SHARED)
        assert isinstance(found, Keep) and found.shareable is shareable


def test_a_part_is_kept_and_not_shared() -> None:
    request = get("Range: bytes=0-4")
    response = answer(FRESH, f"Date: {date(100)}", "Content-Range: bytes 0-4/10", status=206)
    assert verdict(request, response) == Keep(anew(request, response), shareable=False)


@pytest.mark.parametrize("line", ["Cache-Control: no-store", "Cache-Control: private"])
def test_what_may_not_be_stored_passes(line: str) -> None:
    assert verdict(get(), answer(line)) == Pass()


@pytest.mark.parametrize(
    "request_, options",
    [
        (get("Cache-Control: no-store"), SHARED),
        (get("Authorization: x"), SHARED),
        (get(), CacheOptions(mode="no-store")),
        (head(), SHARED),
    ],
)
def test_what_may_not_be_stored_for_this_request_passes(request_: Request, options: CacheOptions) -> None:
    assert verdict(request_, answer(FRESH), options=options) == Pass()


def test_errors_are_stored_by_the_rules_where_nothing_is() -> None:
    assert isinstance(verdict(get(), answer(status=404)), Keep)
    assert isinstance(verdict(get(), answer(FRESH, status=503)), Keep)
    assert verdict(get(), answer(status=503)) == Pass()
    assert verdict(get(), answer(status=403)) == Pass()


# A full answer to a validation (section 4.3.3)


def test_a_full_answer_is_kept() -> None:
    response = answer(FRESH, TWO, f"Date: {date(100)}")
    assert verdict(get(), response, kept(ONE)) == Keep(anew(get(), response), shareable=True)


def test_a_full_answer_that_may_not_be_kept_makes_the_candidates_obsolete() -> None:
    one, two = kept(ONE), kept(TWO)
    assert verdict(get(), answer("Cache-Control: no-store"), one, two) == Pass(((one, None), (two, None)))
    assert verdict(get(), answer(status=302), one) == Pass(((one, None),))
    assert verdict(get(), answer(status=399), one) == Pass(((one, None),))


@pytest.mark.parametrize("status", [400, 403, 404, 410, 500, 503, 599])
def test_an_error_leaves_the_candidates_unless_it_says_for_how_long_it_holds(status: int) -> None:
    assert verdict(get(), answer(status=status), kept(ONE)) == Pass()
    assert verdict(get(), answer("Cache-Control: public", status=status), kept(ONE)) == Pass()
    assert verdict(get(), answer("Cache-Control: max-age=5, no-store", status=status), kept(ONE)) == Pass()
    assert isinstance(verdict(get(), answer(FRESH, status=status), kept(ONE)), Keep)


@pytest.mark.parametrize("status", [400, 403, 404, 500])
def test_an_error_under_a_signature_is_never_stored(status: int) -> None:
    response = answer(FRESH, status=status)
    for candidates in ((), (kept(ONE, uri=SIGNED),), (kept(ONE, uri=RESIGNED),)):
        assert verdict(get(uri=RESIGNED), response, *candidates) == Pass()
    assert isinstance(verdict(get(uri=RESIGNED), response, options=CacheOptions(signed_urls=False)), Keep)
    assert isinstance(verdict(get(uri=RESIGNED), answer(FRESH, status=301)), Keep)


def test_an_unexpected_part_makes_nothing_obsolete() -> None:
    response = answer("Cache-Control: no-store", "Content-Range: bytes 0-4/10", status=206)
    assert verdict(get("Range: bytes=0-4"), response, kept(ONE)) == Pass()


# Failures (RFC 5861 section 4)

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


# 304 (section 4.3.4)


def test_a_strong_tag_updates_all_that_have_it() -> None:
    one, same, other = kept(ONE, "A: 1"), kept(ONE, "B: 1", name="b"), kept(TWO)
    response = not_modified(ONE, "Cache-Control: max-age=60", "A: 2")
    found = verdict(get(), response, one, other, same)
    changes = tuple((old, freshened(old, response)) for old in (one, same))
    assert found == Freshen(changes, changes[0][1], shareable=True)


def test_the_selected_one_need_not_be_the_best() -> None:
    found = verdict(get(), not_modified(TWO), kept(ONE), kept(TWO))
    assert isinstance(found, Freshen)
    assert [old for old, _ in found.changes] == [kept(TWO)]


def test_a_304_that_leaves_it_stale_is_not_shared() -> None:
    found = verdict(get(), not_modified(ONE, "Cache-Control: no-cache"), kept(ONE, FRESH))
    assert isinstance(found, Freshen) and not found.shareable


def test_a_strong_tag_nobody_has_updates_nothing() -> None:
    assert verdict(get(), not_modified(TWO), kept(ONE)) == Refetch()
    assert verdict(get(), not_modified(TWO, LM), kept(ONE, LM)) == Refetch()


def test_a_strong_tag_where_a_weak_one_is_stored_answers_and_updates_nothing() -> None:
    stored = kept(WEAK)
    assert verdict(get(), not_modified(ONE, FRESH), stored) == Freshen((), stored, shareable=False)


@pytest.mark.parametrize("stored", [kept(ONE), kept(WEAK)])
def test_a_weak_tag_updates_the_best_that_has_it(stored: StoredResponse) -> None:
    response = not_modified(WEAK, FRESH)
    new = freshened(stored, response)
    assert verdict(get(), response, stored, kept(WEAK, name="x")) == Freshen(((stored, new),), new, shareable=True)
    assert verdict(get(), response, kept(TWO)) == Refetch()


def test_without_a_tag_the_condition_tells_whom_it_means() -> None:
    for stored in (kept(ONE), kept(WEAK), kept(LM), kept(ONE, LM)):
        for response in (not_modified(), not_modified(LM) if "last-modified" in stored.fields else not_modified()):
            new = freshened(stored, response)
            shareable = "last-modified" in stored.fields  # by heuristics
            assert verdict(get(), response, stored) == Freshen(((stored, new),), new, shareable)


def test_without_a_tag_it_could_mean_several() -> None:
    assert verdict(get(), not_modified(), kept(ONE), kept(TWO)) == Refetch()
    assert verdict(get(), not_modified(LM), kept(ONE), kept(TWO, LM)) != Refetch()
    assert verdict(get(), not_modified(LM), kept(ONE, LM), kept(TWO, LM)) == Refetch()
    found = verdict(get(), not_modified(), kept(ONE), kept())  # the second was not asked about
    assert isinstance(found, Freshen) and found.selected is not None


def test_another_date_is_another_response() -> None:
    assert verdict(get(), not_modified(f"Last-Modified: {date(-8)}"), kept(ONE, LM)) == Refetch()
    assert verdict(get(), not_modified(f"Last-Modified: {date(-8)}"), kept(LM)) == Refetch()


def test_a_304_nobody_asked_for_passes() -> None:
    assert verdict(get(), not_modified(ONE)) == Freshen((), None, shareable=False)
    assert verdict(get(), not_modified(), kept()) == Freshen((), None, shareable=False)


# ... when the caller has conditions of its own (section 4.3.2)


def test_a_304_about_the_callers_tag_goes_to_the_caller() -> None:
    own = get('If-None-Match: "2"')
    for response in (not_modified(TWO), not_modified('ETag: W/"2"')):
        assert verdict(own, response) == Freshen((), None, shareable=False)
        assert verdict(own, response, kept(ONE)) == Freshen((), None, shareable=False)
    assert verdict(own, not_modified('ETag: "3"'), kept(ONE)) == Refetch()


def test_a_304_about_both_updates_ours() -> None:
    stored, response = kept(ONE), not_modified(ONE)
    own = get('If-None-Match: "2", "1"')
    new = freshened(stored, response)
    assert verdict(own, response, stored) == Freshen(((stored, new),), new, shareable=False)


def test_a_304_without_a_tag_when_caller_and_cache_have_different_ones() -> None:
    assert verdict(get('If-None-Match: "2"'), not_modified(), kept(ONE)) == Refetch()
    # Nothing of ours was added: what the caller asked is what was answered.
    assert verdict(get('If-None-Match: "2", "1"'), not_modified(), kept(ONE)) == Freshen((), None, shareable=False)
    found = verdict(get('If-None-Match: W/"1"'), not_modified(), kept(ONE))
    assert isinstance(found, Freshen) and found.selected is not None


def test_a_304_for_the_callers_date_alone_goes_to_the_caller() -> None:
    own = get(f"If-Modified-Since: {date(-9)}")
    assert verdict(own, not_modified(TWO), kept()) == Freshen((), None, shareable=False)
    assert verdict(own, not_modified(), kept()) == Freshen((), None, shareable=False)
    assert verdict(own, not_modified(TWO), kept(ONE)) == Refetch()  # it was replaced by ours


def test_a_304_for_the_callers_star_goes_to_the_caller() -> None:
    assert verdict(get("If-None-Match: *"), not_modified(TWO), kept(ONE)) == Freshen((), None, shareable=False)
    assert verdict(get("If-None-Match: *"), not_modified(), kept(ONE)) == Freshen((), None, shareable=False)


def test_a_304_to_a_head_updates_too() -> None:
    stored, response = kept(ONE), not_modified(ONE)
    found = verdict(head('If-None-Match: "1"'), response, stored)
    new = freshened(stored, response)
    assert found == Freshen(((stored, new),), new, shareable=False)


# ... and what the new fields may forbid


@pytest.mark.parametrize("value", ["no-store", "private", "max-age=60, no-store"])
def test_a_304_may_forbid_to_keep_what_it_updates(value: str) -> None:
    stored, response = kept(ONE, FRESH), not_modified(ONE, f"Cache-Control: {value}")
    found = verdict(get(), response, stored)
    assert found == Freshen(((stored, None),), freshened(stored, response), shareable=False)
    if value == "private":
        in_private = verdict(get(), response, stored, options=PRIVATE)
        assert isinstance(in_private, Freshen) and in_private.changes[0][1] is not None


def test_another_signature_confirmed() -> None:
    stored, response = kept(ONE, FRESH, uri=SIGNED), not_modified(ONE)
    request = get(uri=RESIGNED)
    found = verdict(request, response, stored)
    new = freshened(stored, response, request)
    assert found == Freshen(((stored, new),), new, shareable=True)
    assert new.uri == RESIGNED


def test_a_range_confirmed() -> None:
    request, response = get("Range: bytes=0-1"), not_modified(ONE)
    for stored in (kept(ONE), part("0-4/10", ONE)):
        found = verdict(request, response, stored)
        assert found == Freshen(((stored, freshened(stored, response)),), freshened(stored, response), shareable=False)
    assert verdict(get("Range: bytes=8-9"), response, part("0-4/10", ONE)) == Freshen((), None, shareable=False)


# HEAD (section 4.3.5)


@pytest.mark.parametrize(
    "stored, lines, same",
    [
        (kept(ONE, LM), (ONE, LM), True),
        (kept(ONE, LM), (ONE,), True),
        (kept(ONE, LM), (LM,), True),
        (kept(ONE), (TWO,), False),
        (kept(ONE), (WEAK,), False),
        (kept(LM), (f"Last-Modified: {date(-8)}",), False),
        (kept(), (ONE,), False),
        (kept(ONE), (ONE, "Content-Length: 1000"), True),
        (kept(ONE), (ONE, "Content-Length: 1000\xa0"), False),
        (kept(ONE), (ONE, "Content-Length: 999"), False),
        (kept(ONE), (ONE, "Content-Length: x"), False),
    ],
)
def test_a_head_updates_what_it_describes_and_drops_what_it_does_not(
    stored: StoredResponse, lines: tuple[str, ...], same: bool
) -> None:
    response = answer(f"Date: {date(100)}", FRESH, "A: 2", *lines)
    expected = freshened(stored, response) if same else None
    assert verdict(head(), response, stored) == Pass(((stored, expected),))


def test_a_head_without_validators_updates_but_confirms_nothing() -> None:
    stored, response = (
        kept(ONE, "Cache-Control: max-age=2"),
        answer(f"Date: {date(100)}", "Cache-Control: max-age=1000"),
    )
    ((old, new),) = verdict(head(), response, stored).changes  # type: ignore[union-attr]
    assert old == stored and new is not None
    assert (new.response_time, new.confirmed) == (LATER, T)


def test_a_head_looks_at_all_candidates() -> None:
    one, two = kept(ONE), kept(TWO)
    found = verdict(head(), answer(ONE, f"Date: {date(100)}"), one, two)
    assert isinstance(found, Pass) and [new is not None for _, new in found.changes] == [True, False]


@pytest.mark.parametrize("status", [201, 204, 301, 404, 410])
def test_only_a_200_to_a_head_says_something(status: int) -> None:
    assert verdict(head(), answer(FRESH, TWO, status=status), kept(ONE)) == Pass()


def test_a_head_may_forbid_to_keep() -> None:
    stored = kept(ONE)
    assert verdict(head(), answer(ONE, "Cache-Control: no-store"), stored) == Pass(((stored, None),))


def test_a_head_under_another_signature_touches_only_what_it_vouches_for() -> None:
    stored, request = kept(ONE, uri=SIGNED), head(uri=RESIGNED)
    assert verdict(request, answer(TWO), stored) == Pass()
    assert verdict(request, answer(), stored) == Pass()
    response = answer(ONE, f"Date: {date(100)}")
    assert verdict(request, response, stored) == Pass(((stored, freshened(stored, response, request)),))


def test_a_body_that_is_not_there_has_no_length_to_compare() -> None:
    stored = replace(kept(ONE), body=None)
    response = answer(ONE, "Content-Length: 5", f"Date: {date(100)}")
    assert verdict(head(), response, stored) == Pass(((stored, freshened(stored, response)),))


# Completing a part (section 3.4)

PREFIX = part("0-4/10", ONE, FRESH, "A: 1")


def rest(content_range: str, *lines: str, status: int = 206) -> Response:
    return answer(f"Date: {date(100)}", f"Content-Range: bytes {content_range}", *lines, status=status)


def test_the_rest_completes_the_first_part() -> None:
    for prefix in (PREFIX, part("0-4/*", ONE, FRESH, "A: 1")):
        response = rest("5-9/10", ONE, FRESH)
        whole = completed(prefix, anew(get(), response), 10, SHARED)
        assert verdict(get(), response, prefix) == Keep(whole, shareable=True, part=prefix)


@pytest.mark.parametrize(
    "response",
    [
        rest("5-9/10", TWO),
        rest("5-9/10", WEAK),
        rest("5-9/10"),
        rest("4-9/10", ONE),
        rest("6-9/10", ONE),
        rest("5-8/10", ONE),
        rest("5-9/*", ONE),
        rest("5-10/11", ONE),
        rest("5-9/10", ONE, "Content-Encoding: gzip"),
        rest("5-9/10", ONE, "Cache-Control: no-store"),
        answer("Content-Type: multipart/byteranges", ONE, status=206),
        answer("Content-Range: bytes */4", status=416),
        rest("5-9/10", ONE, status=416),
    ],
)
def test_what_does_not_complete_it_is_of_no_use(response: Response) -> None:
    assert verdict(get(), response, PREFIX) == Refetch()


def test_what_is_combined_is_coded_alike() -> None:
    coded = part("0-4/10", ONE, "Content-Encoding: gzip")
    assert verdict(get(), rest("5-9/10", ONE), coded) == Refetch()
    assert verdict(get(), rest("5-9/10", ONE, "Content-Encoding: br"), coded) == Refetch()
    found = verdict(get(), rest("5-9/10", ONE, "Content-Encoding: gzip"), coded)
    assert isinstance(found, Keep) and found.part == coded


def test_without_a_strong_validator_nothing_is_combined() -> None:
    assert verdict(get(), rest("5-9/10", WEAK), part("0-4/10", WEAK)) == Refetch()
    assert verdict(get(), rest("5-9/10"), part("0-4/10")) == Refetch()


def test_the_whole_instead_of_the_rest() -> None:
    response = answer(FRESH, TWO, f"Date: {date(100)}")
    assert verdict(get(), response, PREFIX) == Keep(anew(get(), response), shareable=True)


def test_a_completed_response_may_be_stale() -> None:
    found = verdict(get(), rest("5-9/10", ONE, "Cache-Control: max-age=0"), PREFIX)
    assert isinstance(found, Keep) and found.part == PREFIX and not found.shareable


def test_a_416_to_the_callers_own_range_is_the_callers() -> None:
    assert verdict(get("Range: bytes=99-"), answer(status=416), kept(ONE)) == Pass()


# What is stored together


def test_the_same_variant_is_replaced() -> None:
    old, new = kept(ONE), kept(TWO)
    assert merged((old,), new, inf) == (new,)
    assert merged((), new, inf) == (new,)
    signed = kept(TWO, uri=RESIGNED)
    assert merged((kept(ONE, uri=SIGNED),), signed, inf) == (signed,)


def test_other_variants_stay() -> None:
    one, two = (kept("Vary: Accept", request=get(f"Accept: {a}")) for a in "ab")
    assert merged((one,), two, inf) == (two, one)
    other = kept("Vary: Accept, Foo", request=get("Accept: a"))
    assert merged((one,), other, inf) == (other, one)
    assert merged((kept(),), kept("Vary: Foo"), inf) == (kept("Vary: Foo"), kept())


def test_parts_of_one_representation_stay_together() -> None:
    one, two = part("0-4/10", ONE), part("7-9/10", ONE)
    assert merged((one,), two, inf) == (two, one)
    again = part("0-4/10", ONE, "A: 2")
    assert merged((one, two), again, inf) == (again, two)
    whole = kept(ONE)
    assert merged((whole,), one, inf) == (one, whole)
    odd = kept(ONE, "Content-Range: bytes 0-4/10")  # which means nothing in a 200
    assert merged((odd,), one, inf) == (one, odd)
    assert merged((one, two), whole, inf) == (whole,)


def test_parts_of_another_representation_go() -> None:
    for old in (part("0-4/10", ONE), kept(ONE), part("0-4/10"), kept()):
        new = part("7-9/10", TWO)
        assert merged((old,), new, inf) == (new,)
    assert merged((part("0-4/10"),), part("7-9/10"), inf) == (part("7-9/10"),)


def test_the_number_of_variants_is_bounded() -> None:
    variants = tuple(
        replace(kept("Vary: Foo", request=get(f"Foo: {n}")), confirmed=T + (n * 7) % 40) for n in range(40)
    )
    new = kept("Vary: Foo")
    found = merged(variants, new, inf)
    assert len(found) == MAX_VARIANTS == 32
    assert found[0] == new
    assert [stored.confirmed - T for stored in found[1:]] == list(range(39, 8, -1))


def test_what_came_later_is_not_given_up_for_a_body_that_took_longer() -> None:
    new, later = kept(ONE), kept(TWO, at=T + 5)
    assert merged((later,), new, inf) == (later,)
    assert merged((later,), new, T + 5) == (later,)
    assert merged((later,), new, T + 4.9) == (new,)  # it was stored by a clock that was ahead
    assert merged((kept(TWO),), new, T) == (new,)
    variant = kept("Vary: Foo", at=T + 5)
    assert merged((variant,), new, inf) == (new, variant)


def test_what_came_later_stays_but_only_where_it_answers_the_same() -> None:
    later = replace(kept(), response_time=T + 5, confirmed=T + 5)
    variant = replace(kept("Vary: Foo"), response_time=T + 5, confirmed=T + 5)
    assert merged((later,), kept(), inf) == (later,)
    assert merged((variant,), kept(), inf) == (kept(), variant)
