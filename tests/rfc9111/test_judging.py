"""RFC 9111 sections 4.3.3 to 4.3.5."""

from __future__ import annotations

import pytest

from vllm_http_cache.rfc9111.judging import Freshen, Keep, Pass, Refetch, judge
from vllm_http_cache.rfc9111.message import Request, StoredResponse
from vllm_http_cache.rfc9111.options import CacheOptions

from .judged import FRESH, ONE, TWO, WEAK, anew, freshened, not_modified, verdict
from .make import PRIVATE, SHARED, T, answer, date, get, head, kept, part
from .test_selecting import RESIGNED, SIGNED

LM = f"Last-Modified: {date(-9)}"


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


def test_what_varies_on_everything_is_not_shared() -> None:
    """Nor is it once the origin has confirmed it: to others it has to confirm it again (section 4.1)."""
    response = answer(FRESH, f"Date: {date(100)}", 'ETag: "1"', "Vary: accept, *")
    kept_now = verdict(get(), response)
    assert isinstance(kept_now, Keep) and not kept_now.shareable
    confirmed = verdict(get(), not_modified(ONE, FRESH), kept("Vary: *", ONE))
    assert isinstance(confirmed, Freshen) and confirmed.selected and not confirmed.shareable


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


def test_a_full_answer_is_kept_and_makes_the_candidates_obsolete_even_if_there_is_no_room_for_it() -> None:
    response, one = answer(FRESH, TWO, f"Date: {date(100)}"), kept(ONE)
    expected = Keep(anew(get(), response), shareable=True, obsolete=((one, None),))
    assert verdict(get(), response, one) == expected


def test_a_full_answer_that_may_not_be_kept_makes_the_candidates_obsolete() -> None:
    one, two = kept(ONE), kept(TWO)
    assert verdict(get(), answer("Cache-Control: no-store"), one, two) == Pass(((one, None), (two, None)))
    assert verdict(get(), answer(status=302), one) == Pass(((one, None),))
    assert verdict(get(), answer(status=399), one) == Pass(((one, None),))
    assert verdict(get(), answer(status=204), one) == Keep(
        anew(get(), answer(status=204)), shareable=False, obsolete=((one, None),)
    )


@pytest.mark.parametrize("status", [100, 103, 199])
def test_an_interim_answer_makes_nothing_obsolete(status: int) -> None:
    assert verdict(get(), answer(FRESH, status=status), kept(ONE)) == Pass()


@pytest.mark.parametrize("status", [400, 403, 404, 410, 500, 503, 599])
def test_an_error_leaves_the_candidates_unless_it_says_for_how_long_it_holds(status: int) -> None:
    assert verdict(get(), answer(status=status), kept(ONE)) == Pass()
    assert verdict(get(), answer("Cache-Control: public", status=status), kept(ONE)) == Pass()
    assert verdict(get(), answer("Cache-Control: max-age=5, no-store", status=status), kept(ONE)) == Pass()
    assert isinstance(verdict(get(), answer(FRESH, status=status), kept(ONE)), Keep)


def test_an_error_takes_the_place_of_an_older_error() -> None:
    response = answer(LM, f"Date: {date(100)}", status=404)  # by heuristics it holds for a while
    for status in (400, 404, 410):
        assert verdict(get(), response, kept(LM, status=status)) == Keep(anew(get(), response), shareable=True)
    for other in (kept(ONE), kept(ONE, status=399)):
        assert verdict(get(), response, kept(LM, status=404), other) == Pass()


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


@pytest.mark.parametrize(
    "lines", [("If-None-Match: {}",), ("If-None-Match: {}", "Foo: 1"), ("Foo: 1", "If-None-Match: {}")]
)
def test_where_in_the_request_the_callers_tags_stand_makes_no_difference(lines: tuple[str, ...]) -> None:
    def own(tags: str) -> Request:
        return get(*(line.format(tags) for line in lines))

    stored, response = kept(ONE), not_modified(FRESH)
    for tags in ('"1"', 'W/"1"'):
        found = verdict(own(tags), response, stored)
        assert isinstance(found, Freshen) and found.changes == ((stored, freshened(stored, response)),)
    for tags in ('"2", "1"', '"2","1"', '"1" ,"2", "1"'):
        assert verdict(own(tags), response, stored) == Freshen((), None, shareable=False)


def test_a_304_without_a_tag_is_about_what_was_asked_about() -> None:
    dated, response = kept(LM, ONE), not_modified(FRESH)
    assert verdict(get(), response, dated, kept(LM)) == Freshen(
        ((dated, freshened(dated, response)),), freshened(dated, response), shareable=True
    )
    own = head(f"If-Modified-Since: {date(-9)}")
    assert verdict(own, response, kept(LM)).changes  # type: ignore[union-attr]
    later = head(f"If-Modified-Since: {date(-5)}")
    assert verdict(later, response, kept(LM)) == Freshen((), None, shareable=False)


@pytest.mark.parametrize(
    "request_, stored",
    [
        (head(f"If-Modified-Since: {date(-9)}", uri=RESIGNED), kept(ONE, LM, uri=SIGNED)),
        (head(f"If-Modified-Since: {date(-9)}"), kept(ONE, LM, "Vary: *")),
        (get(f"If-Modified-Since: {date(-9)}", "Range: bytes=0-1"), part("0-4/10", LM)),
    ],
)
def test_a_date_of_the_callers_confirms_no_more_than_one_of_ours(request_: Request, stored: StoredResponse) -> None:
    """It vouches for nothing under another signature, and tells neither variants nor ranges apart."""
    for response in (not_modified(FRESH), not_modified(FRESH, LM)):
        assert verdict(request_, response, stored) == Freshen((), None, shareable=False)


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


@pytest.mark.parametrize("status", [404, 301])
def test_a_304_says_nothing_of_an_error_or_a_redirect(status: int) -> None:
    """RFC 9110 section 13.2.1: it says that a success has not changed."""
    for line in (ONE, LM):
        stored = kept(line, status=status)
        assert verdict(get(), not_modified(line), stored) == Freshen((), None, shareable=False)
        assert verdict(get(line.replace("ETag", "If-None-Match")), not_modified(line), stored).selected is None  # type: ignore[union-attr]
    found = verdict(get(), not_modified(), kept(ONE, status=status), kept(ONE))
    assert isinstance(found, Freshen) and [old.status for old, _ in found.changes] == [200]
