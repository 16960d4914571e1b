"""RFC 9111 sections 5.2 and 5.4, RFC 5861, RFC 8246, RFC 9213: what is wrong restricts, never permits."""

from __future__ import annotations

from dataclasses import fields as dataclass_fields
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_http_cache.rfc9111.directives import (
    RequestDirectives,
    ResponseDirectives,
    request_directives,
    response_directives,
)
from vllm_http_cache.rfc9111.fields import INFINITE
from vllm_http_cache.rfc9111.message import Fields
from vllm_http_cache.rfc9111.options import CacheOptions

from .make import SHARED, fields


def responded(*values: str) -> ResponseDirectives:
    return response_directives(fields(*(f"Cache-Control: {value}" for value in values)), SHARED)


def requested(*values: str) -> RequestDirectives:
    return request_directives(fields(*(f"Cache-Control: {value}" for value in values)))


def test_nothing_said() -> None:
    assert response_directives(Fields(), SHARED) == ResponseDirectives() == responded("")
    assert request_directives(Fields()) == RequestDirectives() == requested("")


@pytest.mark.parametrize(
    "value, expected",
    [
        ("max-age=60", ResponseDirectives(max_age=60)),
        ("s-maxage=60", ResponseDirectives(s_maxage=60, shares_authorized=True)),
        ("no-store", ResponseDirectives(no_store=True)),
        ("no-cache", ResponseDirectives(no_cache=True)),
        ("private", ResponseDirectives(private=True)),
        ("public", ResponseDirectives(public=True, shares_authorized=True)),
        ("must-revalidate", ResponseDirectives(must_revalidate=True, shares_authorized=True)),
        ("proxy-revalidate", ResponseDirectives(proxy_revalidate=True)),
        ("must-understand", ResponseDirectives(must_understand=True)),
        ("immutable", ResponseDirectives(immutable=True)),
        ("immutable=1", ResponseDirectives(immutable=True)),  # RFC 8246 section 2
        ("stale-while-revalidate=30", ResponseDirectives(stale_while_revalidate=30)),
        ("stale-if-error=30", ResponseDirectives(stale_if_error=30)),
        ('no-cache="A, b"', ResponseDirectives(no_cache_fields=frozenset("ab"))),
        ("no-cache=a", ResponseDirectives(no_cache_fields=frozenset("a"))),
        ('private="A"', ResponseDirectives(private_fields=frozenset("a"))),
        ('no-cache="a", no-cache="b"', ResponseDirectives(no_cache_fields=frozenset("ab"))),
        ("foobar, max-age=5, x=y", ResponseDirectives(max_age=5)),
        ('MaX-aGe=5, EXT="max-age=3600"', ResponseDirectives(max_age=5)),
        ('max-age="60"', ResponseDirectives(max_age=60)),
        ("max-age=060,max-age=60", ResponseDirectives(max_age=60)),
        ("max-age=9999999999999999999", ResponseDirectives(max_age=INFINITE)),
    ],
)
def test_response_directives(value: str, expected: ResponseDirectives) -> None:
    assert responded(value) == expected


@pytest.mark.parametrize(
    "value",
    ["max-age=600s", "max-age=60, max-age=600", "max-age=-1", "max-age=1.5", "max-age= 60", "max-age =60", "max-age="]
    + ["max-age", 'max-age=""', "max-age='60'", "max-age=a60", "public; max-age=30", "max-age=60 600", "max-age=60;"]
    + ["max-age=60, max-age", 'x="max-age=5', "max-age=6\x00", 'max-age="60'],
)
def test_an_invalid_max_age_is_none_at_all(value: str) -> None:
    assert responded(value) == ResponseDirectives(max_age=0)


def test_an_invalid_s_maxage_is_none_at_all() -> None:
    assert responded("s-maxage=x").s_maxage == 0
    assert responded("s-maxage=5;").s_maxage == 0


@pytest.mark.parametrize("name", ["stale-while-revalidate", "stale-if-error"])
@pytest.mark.parametrize("argument", ["", "=", "=x", "=-1", '=""', "=5;"])
def test_an_invalid_permission_is_none(name: str, argument: str) -> None:
    assert responded(name + argument) == ResponseDirectives()
    assert responded(f"{name}=5, {name}=6") == ResponseDirectives()


@pytest.mark.parametrize("value", ["public=1", 'public=""', "public;", "public x", "must-understand=1", "immutable;"])
def test_what_is_malformed_permits_nothing(value: str) -> None:
    assert responded(value) == ResponseDirectives()


@pytest.mark.parametrize(
    "name, attribute",
    [
        ("no-store", "no_store"),
        ("no-cache", "no_cache"),
        ("private", "private"),
        ("must-revalidate", "must_revalidate"),
        ("proxy-revalidate", "proxy_revalidate"),
    ],
)
@pytest.mark.parametrize("form", ["{}", "{};", "x; {}", "{} y", "{}=", "x {}", "A;{};B", '{}=""', "{}, {}"])
def test_what_is_malformed_forbids_all_the_same(name: str, attribute: str, form: str) -> None:
    expected = replace(ResponseDirectives(), **{attribute: True})  # type: ignore[arg-type]
    assert replace(responded(form.format(name.upper(), name)), shares_authorized=False) == expected


@pytest.mark.parametrize(
    "value",
    ["s-maxage=x", "s-maxage=", "s-maxage", "s-maxage=5;", "s-maxage=5, s-maxage=6", "must-revalidate=1"]
    + ["must-revalidate;", "must-revalidate, must-revalidate=1", "x must-revalidate"],
)
def test_what_is_malformed_does_not_share_what_was_got_with_authorization(value: str) -> None:
    """Section 3.5: must-revalidate and s-maxage forbid, and they permit."""
    assert not responded(value).shares_authorized
    assert responded(f"{value}, public").shares_authorized


@pytest.mark.parametrize("member", ["x-no-store;", "no-store-x;", "xmax-age y", "max-agex y"])
def test_longer_names_are_other_names(member: str) -> None:
    assert responded(member) == ResponseDirectives()


@pytest.mark.parametrize(
    "value",
    ['no-cache=""', 'no-cache=","', 'no-cache="a b"', 'no-cache="a", no-cache', 'no-cache="Vary"', 'no-cache="x, date"']
    + ["no-cache=etag", 'no-cache="a', "no-cache=a b"],
)
def test_a_list_that_is_none_or_names_what_rules_need_is_unqualified(value: str) -> None:
    assert responded(value).no_cache
    assert responded(value.replace("no-cache", "private")).private


def test_lines_are_joined_and_the_stricter_holds() -> None:
    assert responded("max-age=60", "max-age=1, no-cache") == ResponseDirectives(max_age=0, no_cache=True)
    assert responded('x="', "no-store").no_store


@pytest.mark.parametrize(
    "value, expected",
    [
        ("max-age=0", RequestDirectives(max_age=0)),
        ("max-age=x", RequestDirectives(max_age=0)),
        ("max-age;", RequestDirectives(max_age=0)),
        ("min-fresh=7", RequestDirectives(min_fresh=7)),
        ("min-fresh=x", RequestDirectives(min_fresh=INFINITE)),
        ("min-fresh;", RequestDirectives(min_fresh=INFINITE)),
        ("max-stale=7", RequestDirectives(max_stale=7)),
        ("max-stale", RequestDirectives(max_stale=INFINITE)),
        ("max-stale=x", RequestDirectives()),
        ("max-stale=", RequestDirectives()),
        ("max-stale, max-stale=5", RequestDirectives()),
        ("no-cache", RequestDirectives(no_cache=True)),
        ("no-cache;", RequestDirectives(no_cache=True)),
        ("no-store", RequestDirectives(no_store=True)),
        ("only-if-cached", RequestDirectives(only_if_cached=True)),
        ("stale-if-error=9", RequestDirectives(stale_if_error=9)),
        ("stale-if-error=x", RequestDirectives()),
    ],
)
def test_request_directives(value: str, expected: RequestDirectives) -> None:
    assert requested(value) == expected


def test_pragma_counts_where_there_is_no_cache_control() -> None:
    assert request_directives(fields("Pragma: x, No-Cache")) == RequestDirectives(no_cache=True)
    assert request_directives(fields("Pragma: no-cache", "Cache-Control: x")) == RequestDirectives()
    assert request_directives(fields("Pragma: x")) == RequestDirectives()


def test_pragma_says_nothing_in_a_response() -> None:
    assert response_directives(fields("Pragma: no-cache"), SHARED) == ResponseDirectives()


TARGETED = CacheOptions(targeted=("Mine-Cache-Control", "CDN-Cache-Control"))


def targeted(*lines: str) -> ResponseDirectives:
    return response_directives(fields(*lines), TARGETED)


def test_the_first_targeted_field_on_the_list_is_obeyed_alone() -> None:
    lines = ("Cache-Control: no-store", "CDN-Cache-Control: max-age=5", "Mine-Cache-Control: max-age=7")
    assert targeted(*lines) == ResponseDirectives(max_age=7, source="mine-cache-control")
    assert targeted(*lines[:2]) == ResponseDirectives(max_age=5, source="cdn-cache-control")
    assert targeted(*lines[:1]) == ResponseDirectives(no_store=True)
    assert response_directives(fields(*lines), SHARED) == ResponseDirectives(no_store=True)


@pytest.mark.parametrize(
    "value",
    ["", " ", "max-age=5,", ",max-age=5", "max-age=5 x", "max-age =5", "max-age= 5", "MaX-age=5", "max-age=5, &&&"]
    + [
        'a="x',
        "a=é",
        "max-age=5;;",
        "max-age=1.2345",
        "a=(1",
        "max-age=1234567890123456",
        "max-age=5\n",
        "max-age=5\n,a",
        "max-age=5,\na",
        "max-age=5X",
        "max-age=5, Xa",
        "a=:x",
        "a=?2",
        'a="\\x"',
        "a=\u0663",
        "5",
        "\xa0a",
    ],
)
def test_a_targeted_field_with_an_error_is_ignored(value: str) -> None:
    assert targeted(f"CDN-Cache-Control: {value}", "Cache-Control: max-age=1") == ResponseDirectives(max_age=1)


@pytest.mark.parametrize(
    "value, expected",
    [
        ('max-age=5;a=1;b;c="x", no-store', {"max_age": 5, "no_store": True}),
        (
            'max-age=5; a=1;  b, x=( 1  "2";c ), y=(), s-maxage=7',
            {"max_age": 5, "s_maxage": 7, "shares_authorized": True},
        ),
        ("max-age=5 ,\t must-revalidate", {"max_age": 5, "must_revalidate": True, "shares_authorized": True}),
        ("max-age=5, max-age=6", {"max_age": 6}),
        ('max-age="5"', {"max_age": 0}),
        ("max-age=5.0", {"max_age": 0}),
        ("max-age=-5", {"max_age": 0}),
        ("max-age=a", {"max_age": 0}),
        ("max-age", {"max_age": 0}),
        ("max-age=(5 6);x", {"max_age": 0}),
        ("max-age=:YQ==:", {"max_age": 0}),
        ("no-store=?1, public=?1", {"no_store": True, "public": True, "shares_authorized": True}),
        ("a=1,max-age=5", {"max_age": 5}),
        ("no-store, no-store=?0, max-age=1", {"max_age": 1}),
        ("x=?0, max-age=1", {"max_age": 1}),
        (r'no-cache="a, b", x="\"\\"', {"no_cache_fields": frozenset("ab")}),
        ("no-cache=a", {"no_cache": True}),
        ('private="a"', {"private_fields": frozenset("a")}),
        ("private", {"private": True}),
        ("*x.y_z-1=a:b/c, s-maxage=3", {"s_maxage": 3, "shares_authorized": True}),
    ],
)
def test_targeted_fields_are_structured(value: str, expected: dict[str, object]) -> None:
    found = targeted(f"CDN-Cache-Control: {value}", "Cache-Control: max-age=999")
    changed = {f.name: getattr(found, f.name) for f in dataclass_fields(found) if f.name != "source"}
    default = ResponseDirectives()
    assert {k: v for k, v in changed.items() if v != getattr(default, k)} == expected
    assert found.source == "cdn-cache-control"


def test_only_false_members_make_no_policy() -> None:
    assert targeted("CDN-Cache-Control: no-store=?0", "Cache-Control: max-age=1") == ResponseDirectives(max_age=1)


WORDS = st.sampled_from(
    ["max-age", "s-maxage", "no-store", "no-cache", "private", "public", "min-fresh", "max-stale", "=", ",", '"', "\\"]
    + ["; ", " ", "60", "-1", "x", "\x00", "\xff", "only-if-cached", "stale-if-error", "(", ")", "?1", ":", "."]
)
JUNK = st.one_of(st.text(), st.lists(WORDS).map("".join))


@given(JUNK)
def test_no_value_raises(value: str) -> None:
    lines = Fields((name, value) for name in ("Cache-Control", "CDN-Cache-Control", "Pragma"))
    response_directives(lines, SHARED)
    response_directives(lines, TARGETED)
    request_directives(lines)


@given(JUNK, st.sampled_from(["no-store", "no-cache", "private", "must-revalidate", "max-age=0"]))
def test_nothing_beside_it_takes_a_restriction_away(junk: str, restriction: str) -> None:
    for value in (f"{restriction}, {junk}", f"{junk}, {restriction}"):
        found = responded(value)
        restricted = {"no-store": found.no_store, "no-cache": found.no_cache, "private": found.private} | {
            "must-revalidate": found.must_revalidate,
            "max-age=0": found.max_age == 0,
        }
        assert restricted[restriction]
