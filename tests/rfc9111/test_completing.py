"""RFC 9111 section 3.4: a part, and the rest of it."""

from __future__ import annotations

import pytest

from vllm_http_cache.rfc9111.judging import Keep, Pass, Refetch
from vllm_http_cache.rfc9111.message import Response
from vllm_http_cache.rfc9111.updating import completed

from .judged import FRESH, ONE, TWO, WEAK, anew, verdict
from .make import SHARED, answer, date, get, kept, part

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
    assert verdict(get(), response, PREFIX) == Keep(anew(get(), response), shareable=True, obsolete=((PREFIX, None),))


def test_a_completed_response_may_be_stale() -> None:
    found = verdict(get(), rest("5-9/10", ONE, "Cache-Control: max-age=0"), PREFIX)
    assert isinstance(found, Keep) and found.part == PREFIX and not found.shareable


def test_a_416_to_the_callers_own_range_is_the_callers() -> None:
    assert verdict(get("Range: bytes=99-"), answer(status=416), kept(ONE)) == Pass()
