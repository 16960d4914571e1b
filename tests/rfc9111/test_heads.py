"""What the answer to a HEAD changes (RFC 9111 section 4.3.5)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vllm_http_cache.rfc9111.judging import Pass
from vllm_http_cache.rfc9111.message import StoredResponse

from .judged import FRESH, LATER, ONE, TWO, WEAK, freshened, verdict
from .make import T, answer, date, head, kept
from .test_selecting import RESIGNED, SIGNED

LM = f"Last-Modified: {date(-9)}"


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


@pytest.mark.parametrize("status", [203, 301, 404])
def test_a_head_that_succeeds_ends_what_is_of_another_status(status: int) -> None:
    for lines in ((), (ONE,)):
        stored = kept(*lines, status=status)
        assert verdict(head(), answer(FRESH, *lines), stored) == Pass(((stored, None),))


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
