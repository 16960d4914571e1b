"""RFC 9110 section 14, RFC 9111 section 3.3."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_http_cache.rfc9111.message import BodyRef, Fields, Request
from vllm_http_cache.rfc9111.ranges import (
    content_range,
    has_its_length,
    has_what_is_wanted,
    holds_whole,
    locate,
    wanted,
)

from .make import URI, date, fields, get, head, kept, part


@pytest.mark.parametrize(
    "value, expected",
    [
        ("bytes=0-499", (0, 499)),
        ("bytes=5-5", (5, 5)),
        ("bytes=9500-", (9500, None)),
        ("bytes=-500", (None, 500)),
        ("bytes=-0", (None, 0)),
        ("BYTES= \t1-2 ", (1, 2)),
        ("bytes=0-999999999999999999", (0, 999_999_999_999_999_999)),
        ("bytes=5-4", None),
        ("bytes=0-9999999999999999999", None),
        ("bytes=0-1,3-4", None),
        ("bytes=-", None),
        ("bytes=", None),
        ("bytes 0-1", None),
        ("bytes=0-1x", None),
        ("xbytes=0-1", None),
        ("bytes=-1-2", None),
        ("bytes=+1-2", None),
        ("items=0-1", None),
        ("bytes=\u0660-\u0661", None),
        ("", None),
    ],
)
def test_what_is_wanted(value: str, expected: tuple[int | None, int | None] | None) -> None:
    assert wanted(get(f"Range: {value}")) == expected
    assert wanted(head(f"Range: {value}")) is None  # defined for GET alone


def test_nothing_wanted() -> None:
    assert wanted(get()) is None
    assert wanted(Request("GET", URI, Fields([("Range", "bytes=1-2 \t")]))) == (1, 2)
    assert wanted(get("Range: bytes=0-1", "Range: bytes=0-1")) is None


@pytest.mark.parametrize(
    "value, expected",
    [
        ("bytes 0-499/1234", (0, 499, 1234)),
        (" BYTES 0-0/1 ", (0, 0, 1)),
        ("bytes 42-1233/*", (42, 1233, None)),
        ("bytes 5-4/10", None),
        ("bytes 0-10/10", None),
        ("bytes */1234", None),
        ("bytes 0-1/x", None),
        ("bytes 0-1", None),
        ("items 0-1/2", None),
        ("bytes 0-1/2x", None),
        ("", None),
    ],
)
def test_content_range(value: str, expected: tuple[int, int, int | None] | None) -> None:
    assert content_range(fields(f"Content-Range: {value}")) == expected


def test_no_content_range() -> None:
    assert content_range(fields()) is None


@pytest.mark.parametrize(
    "value, expected",
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=1-", (1, 10)),
        ("bytes=0-9", (0, 10)),
        ("bytes=9-9", (9, 10)),
        ("bytes=5-8", (5, 9)),
        ("bytes=5-9", (5, 10)),
        ("bytes=5-10", (5, 10)),
        ("bytes=5-999", (5, 10)),
        ("bytes=-1", (9, 10)),
        ("bytes=-10", (0, 10)),
        ("bytes=-11", (0, 10)),
        ("bytes=10-", "nowhere"),
        ("bytes=10-11", "nowhere"),
        ("bytes=-0", "nowhere"),
        ("bytes=0-1,3-4", "whole"),
        ("x=0-1", "whole"),
    ],
)
def test_in_a_whole(value: str, expected: object) -> None:
    request = get(f"Range: {value}")
    assert locate(request, kept(length=10)) == expected
    assert has_what_is_wanted(request, kept(length=10))
    for other in (kept(length=0), kept(length=10, status=404), replace(kept(), body=None)):
        assert locate(request, other) == "whole"


def test_no_range() -> None:
    assert locate(get(), kept()) == "whole"


def test_a_range_that_is_not_current_is_ignored() -> None:
    request = get("Range: bytes=0-1", 'If-Range: "b"')
    assert locate(request, kept('ETag: "a"')) == "whole"
    assert locate(request, kept('ETag: "b"')) == (0, 2)
    assert locate(request, part("0-4/10", 'ETag: "a"')) == "absent"
    assert locate(request, part("0-4/10", 'ETag: "b"')) == (0, 2)


@pytest.mark.parametrize(
    "held, value, expected",
    [
        ("4-8/20", "bytes=4-8", (0, 5)),
        ("4-8/20", "bytes=5-6", (1, 3)),
        ("4-8/20", "bytes=8-8", (4, 5)),
        ("4-8/20", "bytes=3-5", "absent"),
        ("4-8/20", "bytes=4-9", "absent"),
        ("4-8/20", "bytes=9-9", "absent"),
        ("4-8/20", "bytes=4-", "absent"),
        ("4-8/20", "bytes=-1", "absent"),
        ("4-8/*", "bytes=4-8", (0, 5)),
        ("4-8/*", "bytes=4-", "absent"),
        ("4-8/*", "bytes=4-99", "absent"),
        ("4-8/*", "bytes=-1", "absent"),
        ("4-8/9", "bytes=4-", (0, 5)),
        ("4-8/9", "bytes=5-8", (1, 5)),
        ("4-8/9", "bytes=5-99", (1, 5)),
        ("4-8/9", "bytes=9-", "absent"),
        ("4-8/9", "bytes=3-", "absent"),
        ("4-8/9", "bytes=-1", (4, 5)),
        ("4-8/9", "bytes=-5", (0, 5)),
        ("4-8/9", "bytes=-6", "absent"),
        ("4-8/9", "bytes=-0", "absent"),
        ("0-8/9", "bytes=-9", (0, 9)),
        ("0-8/9", "bytes=0-1,2-3", "absent"),
        ("0-8/9", "x", "absent"),
        ("5-4/9", "bytes=0-1", "absent"),
    ],
)
def test_in_a_part(held: str, value: str, expected: object) -> None:
    stored = part(held) if held != "5-4/9" else kept("Content-Range: bytes 5-4/9", status=206)
    request = get(f"Range: {value}")
    assert locate(request, stored) == expected
    assert has_what_is_wanted(request, stored) is (expected != "absent")


def test_a_part_never_answers_for_the_whole() -> None:
    assert locate(get(), part("0-8/9")) == "absent"
    assert not has_what_is_wanted(head(), part("0-8/9"))
    assert not holds_whole(part("0-8/9"))
    assert locate(get("Range: bytes=0-1"), replace(part("0-8/9"), body=None)) == "absent"


def test_a_head_is_answered_by_a_whole() -> None:
    assert has_what_is_wanted(head("Range: bytes=0-1"), kept())
    assert holds_whole(kept(f"Date: {date()}"))


@pytest.mark.parametrize(
    "value, expected",
    [("bytes=-5", (0, 5)), ("bytes=6-8", (2, 5)), ("bytes=6-", (2, 5)), ("bytes=-1", (4, 5)), ("bytes=9-9", "absent")],
)
def test_a_part_shorter_than_it_says_gives_what_there_is(value: str, expected: object) -> None:
    """Positions are counted from where the part says it starts, suffixes from its end."""
    assert locate(get(f"Range: {value}"), part("4-9/10", length=5)) == expected


@pytest.mark.parametrize("value", ["bytes=-5", "bytes=6-8", "bytes=6-", "bytes=-1", "bytes=4-4"])
def test_a_part_longer_than_it_says_gives_nothing(value: str) -> None:
    assert locate(get(f"Range: {value}"), part("4-9/10", length=7)) == "absent"


def test_what_has_its_length() -> None:
    assert has_its_length(part("4-9/10", length=6)) and not has_its_length(part("4-9/10", length=7))
    assert has_its_length(part("4-9/10", length=5)), "the beginning of it"
    body = BodyRef("x", 5)
    assert has_its_length(replace(kept("Content-Length: 5"), body=body))
    assert not has_its_length(replace(kept("Content-Length: 4"), body=body))
    assert has_its_length(replace(kept(), body=body)), "where nothing is said"
    assert has_its_length(replace(kept("Content-Length: 4"), body=None))
    assert has_its_length(replace(kept("Content-Range: bytes 0-1/2"), body=body)), "which means nothing in a 200"
    assert has_its_length(replace(kept("Content-Length: 4", status=204), body=BodyRef("x", 0)))


@given(st.data())
def test_spans_are_those_octets(data: st.DataObject) -> None:
    octets = bytes(range(data.draw(st.integers(1, 30))))
    first = data.draw(st.integers(0, len(octets) - 1))
    last = data.draw(st.integers(first, len(octets) - 1))
    low, high = data.draw(st.tuples(st.integers(0, 35), st.integers(0, 35)))
    value = data.draw(st.sampled_from([f"{low}-{high}", f"{low}-", f"-{high}"]))
    request = get(f"Range: bytes={value}")
    if value == f"-{high}":
        truth = octets[-high:] if high else b""
    elif value == f"{low}-":
        truth = octets[low:]
    else:
        truth = octets[low : high + 1]
    for stored, body in (
        (kept(length=len(octets)), octets),
        (part(f"{first}-{last}/{len(octets)}"), octets[first : last + 1]),
    ):
        found = locate(request, stored)
        if isinstance(found, tuple):
            assert body[found[0] : found[1]] == truth
        elif found == "nowhere":
            assert truth == b"" and holds_whole(stored)
        elif found == "whole":
            assert low > high and value == f"{low}-{high}"
        elif truth:  # "absent" only if some of it is
            assert not (truth in body and octets.index(truth) >= first and octets.index(truth) + len(truth) <= last + 1)
