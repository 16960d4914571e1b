"""RFC 9110 section 5.6: lists, tokens, quoted strings; RFC 9111 sections 1.2.2 and 3.1."""

from __future__ import annotations

import pytest

from vllm_http_cache.rfc9111.fields import INFINITE, delta_seconds, end_to_end, members, token_or_string, tokens

from .make import SHARED, fields


@pytest.mark.parametrize(
    "value, expected",
    [
        ("", ()),
        (" , ,\t,", ()),
        ("a", ("a",)),
        ("a,b", ("a", "b")),
        (" a ,\tb\t, ,c", ("a", "b", "c")),
        ('a="b,c", d', ('a="b,c"', "d")),
        (r'a="b\",c", d', (r'a="b\",c"', "d")),
        (r'a="b\\", d', (r'a="b\\"', "d")),
        ('a="b, c', ('a="b, c',)),
        ('"a" "b,c" d,e', ('"a" "b,c" d', "e")),
        ('a="b\\', ('a="b\\',)),
        ('"', ('"',)),
        ("a\nb,c", ("a\nb", "c")),
        ('"a\nb,c",d', ('"a\nb,c"', "d")),
        ('"\\\n,",d', ('"\\\n,"', "d")),
    ],
)
def test_members_of_a_list(value: str, expected: tuple[str, ...]) -> None:
    assert members(value) == expected


def test_tokens_are_lower_case_members_of_all_lines() -> None:
    assert tokens(("A, b", "C,, ")) == {"a", "b", "c"}


@pytest.mark.parametrize(
    "text, expected",
    [
        ("token!#$%&'*+.^_`|~-9", "token!#$%&'*+.^_`|~-9"),
        ('""', ""),
        ('"a b"', "a b"),
        (r'"a\"b\\c\d"', 'a"b\\cd'),
        ('"a\\\nb"', "a\nb"),
        ("", None),
        ("a b", None),
        ('"a', None),
        ('a"', None),
        ('"a"b', None),
        ('"a\\"', None),
        ("é", None),
    ],
)
def test_a_token_or_a_quoted_string(text: str, expected: str | None) -> None:
    assert token_or_string(text) == expected


@pytest.mark.parametrize(
    "text, expected",
    [
        ("0", 0),
        ("000", 0),
        ("00060", 60),
        ("2147483647", 2**31 - 1),
        ("2147483648", 2**31),
        ("2147483649", 2**31),
        ("9999999999", 2**31),
        ("10000000000", 2**31),
        ("0" * 20 + "1", 1),
        ("9" * 10_000, 2**31),  # int() alone refuses so many digits
        (None, None),
        ("", None),
        (" 1", None),
        ("-1", None),
        ("+1", None),
        ("1.0", None),
        ("1_0", None),
        ("²", None),
        ("٣", None),
        ("60s", None),
    ],
)
def test_delta_seconds(text: str | None, expected: int | None) -> None:
    assert delta_seconds(text) == expected
    assert INFINITE == 2**31


ONE_HOP = ["Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authentication-Info", "Proxy-Authorization"] + [
    "Proxy-Connection",
    "TE",
    "Trailer",
    "Transfer-Encoding",
    "Upgrade",
]


@pytest.mark.parametrize("name", ONE_HOP)
def test_fields_of_one_hop_are_not_stored(name: str) -> None:
    assert end_to_end(fields(f"{name}: x", "Other: y"), SHARED) == fields("Other: y")


def test_fields_listed_in_connection_are_not_stored() -> None:
    given = fields("Connection: A, b", "a: 1", "C: 3", "B: 2", "connection: d", "D: 4")
    assert end_to_end(given, SHARED) == fields("C: 3")


@pytest.mark.parametrize(
    "name",
    ["Age", "Cache-Control", "Content-Encoding", "Content-Range", "Content-Type", "Date", "ETag", "Expires"]
    + ["Last-Modified", "Location", "Vary"],
)
def test_no_connection_option_hides_what_the_rules_read(name: str) -> None:
    line = f"{name}: x"
    assert end_to_end(fields(f"Connection: {name}", line), SHARED) == fields(line)
