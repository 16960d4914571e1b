"""RFC 9110 sections 8.8 and 13.1, RFC 9111 section 4.3.2."""

from __future__ import annotations

import pytest

from vllm_http_cache.rfc9111.message import StoredResponse
from vllm_http_cache.rfc9111.validators import (
    entity_tag,
    entity_tags,
    is_strong,
    not_modified,
    range_is_current,
    same_strong_tag,
    same_tag,
)

from .make import T, date, fields, get, kept


@pytest.mark.parametrize("tag", ['""', '"a"', '"\\"', '"!#~\xff\x80,;\'"'])
def test_strong_tags(tag: str) -> None:
    assert is_strong(tag)
    assert same_strong_tag(fields(f"ETag: {tag}"), fields(f"ETag:  {tag}"))


@pytest.mark.parametrize(
    "tag", [None, "", "a", 'W/"a"', '"a', 'a"', '"', '"a b"', '"a"b"', 'w/"a"', '"\x7f"', '"a", "b"']
)
def test_what_is_not_a_strong_tag(tag: str | None) -> None:
    assert not is_strong(tag)
    assert not same_strong_tag(fields(f"ETag: {tag}"), fields(f"ETag: {tag}"))


def test_comparison() -> None:
    assert same_tag('W/"a"', '"a"') and same_tag('W/"a"', 'W/"a"') and same_tag("a", "a")
    assert not same_tag('"a"', '"b"') and not same_tag('"a"', "a") and not same_tag('w/"a"', '"a"')
    assert not same_tag(None, None) and not same_tag('"a"', None) and not same_tag(None, '"a"')
    assert not same_strong_tag(fields('ETag: "a"'), fields('ETag: "b"'))
    assert not same_strong_tag(fields('ETag: "a"'), fields('ETag: W/"a"'))
    assert not same_strong_tag(fields('ETag: "a"'), fields())
    assert not same_strong_tag(fields(), fields('ETag: "a"'))


def test_entity_tag() -> None:
    assert entity_tag(fields('ETag:  W/"a" ')) == 'W/"a"'
    assert entity_tag(fields("ETag:  ")) is None
    assert entity_tag(fields()) is None


@pytest.mark.parametrize(
    "lines, expected",
    [
        (('If-None-Match: "a"',), ('"a"',)),
        (('If-None-Match: "a", W/"b,c" ,"d"', "If-None-Match: *"), ('"a"', 'W/"b,c"', '"d"', "*")),
        (('If-None-Match: "a\\", "b"',), ('"a\\"', '"b"')),  # a backslash escapes nothing
        (('If-None-Match: a , b, W\\"c"',), ("a", "b", 'W\\"c"')),
        (("If-None-Match: , ,",), ()),
        (('If-None-Match: "a',), ('"a',)),
        ((), ()),
    ],
)
def test_entity_tags(lines: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert entity_tags(fields(*lines), "if-none-match") == expected


@pytest.mark.parametrize(
    "stored_tag, asked, expected",
    [
        ('"a"', '"a"', True),
        ('"a"', 'W/"a"', True),
        ('W/"a"', '"a"', True),
        ('"a"', '"b", "a"', True),
        ('"a"', '"a", "b"', True),
        ('"a"', '"b","a","c"', True),
        ('"a"', '"b"', False),
        ('"a"', "*", True),
        ('"a"', "*, *", False),  # no list of entity tags
        ('"a"', '"b", *', False),
        ('"a"', "", False),
        ('"a"', "a", False),
        ("a", "a", True),
        ('w/"a"', 'w/"a"', True),
        ('W\\"a"', 'W\\"a"', True),
        ('W"a"', 'W"a"', True),
        ('"é"', '"é"', True),
        ('"a,b"', '"a,b"', True),
        ('"b"', '"a,b"', False),
    ],
)
def test_if_none_match(stored_tag: str, asked: str, expected: bool) -> None:
    assert not_modified(get(f"If-None-Match: {asked}"), kept(f"ETag: {stored_tag}")) is expected


def test_if_none_match_without_a_stored_tag() -> None:
    assert not not_modified(get('If-None-Match: "a"'), kept())
    assert not_modified(get("If-None-Match: *"), kept())


def test_no_precondition() -> None:
    assert not not_modified(get(), kept('ETag: "a"', f"Last-Modified: {date(-5)}"))


@pytest.mark.parametrize(
    "since, expected",
    [
        (date(-100), True),
        (date(-99), True),
        (date(-101), False),
        (date(100), True),
        ("Sunday, 06-Nov-94 08:47:57 GMT", True),  # RFC 850: T - 100 s
        ("Sun Nov  6 08:47:57 1994", True),
        ("Sun Nov  6 08:47:56 1994", False),
        ("yesterday", False),
        ("", False),
        (f"{date(-100)}, {date(-100)}", False),
    ],
)
def test_if_modified_since(since: str, expected: bool) -> None:
    stored = kept(f"Last-Modified: {date(-100)}")
    assert not_modified(get(f"If-Modified-Since: {since}"), stored) is expected
    # If-None-Match takes precedence (RFC 9110 section 13.1.3).
    both = get(f"If-Modified-Since: {since}", 'If-None-Match: "a"')
    assert not not_modified(both, stored)
    assert not_modified(both, kept('ETag: "a"', f"Last-Modified: {date(-100)}"))


def test_if_modified_since_without_last_modified_looks_at_date_then_receipt() -> None:
    stored = kept(f"Date: {date(-50)}")
    assert not_modified(get(f"If-Modified-Since: {date(-50)}"), stored)
    assert not not_modified(get(f"If-Modified-Since: {date(-51)}"), stored)
    stored = kept("Date: x", "Last-Modified: y")
    assert not_modified(get(f"If-Modified-Since: {date()}"), stored)
    assert not not_modified(get(f"If-Modified-Since: {date(-1)}"), stored)


LM = f"Last-Modified: {date(-1)}"


@pytest.mark.parametrize(
    "condition, stored, expected",
    [
        ('"a"', kept('ETag: "a"'), True),
        (' "a" ', kept('ETag: "a"'), True),
        ('"a"', kept('ETag: "b"'), False),
        ('W/"a"', kept('ETag: W/"a"'), False),
        ('"a"', kept('ETag: W/"a"'), False),
        ('"a"', kept(), False),
        (date(-1), kept(LM), True),
        (date(), kept(LM), False),
        (date(-2), kept(LM), False),
        (date(), kept(f"Last-Modified: {date()}"), False),  # weak: no second older than the response
        (date(-1), kept(LM, f"Date: {date(-1)}"), False),
        (date(-1), kept(LM, "Date: x"), False),
        ("x", kept("Last-Modified: x"), False),
        ("x", kept(), False),
        ("", kept("Last-Modified: "), False),
        ("a", kept("ETag: a"), False),
    ],
)
def test_if_range(condition: str, stored: StoredResponse, expected: bool) -> None:
    assert range_is_current(get(f"If-Range: {condition}"), stored) is expected


def test_without_if_range() -> None:
    assert range_is_current(get(), kept())
    assert kept().response_time == T
