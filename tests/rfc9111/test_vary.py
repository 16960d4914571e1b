"""RFC 9111 section 4.1 and RFC 9110 section 12.5."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_http_cache.rfc9111.message import Fields, Request
from vllm_http_cache.rfc9111.vary import accepts_coding, matches, normalized, selecting, vary_names

from .make import URI, fields, get, kept


@pytest.mark.parametrize(
    "lines, expected",
    [
        ((), ()),
        (("Vary: ",), ()),
        (("Vary: Foo",), ("foo",)),
        (("Vary: foo, Bar,foo", "Vary: baz"), ("bar", "baz", "foo")),
        (("Vary: *",), ("*",)),
        (("Vary: *, *",), ("*",)),
        (("Vary: , *",), ("*",)),
        (("Vary: ", "Vary: *"), ("*",)),
        (("Vary: Foo, *",), ("*",)),
        (("Vary: *, Foo",), ("*",)),
        (("Vary: Accept Encoding",), ("*",)),  # no field name: it could be any
    ],
)
def test_names(lines: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert vary_names(fields(*lines)) == expected


@pytest.mark.parametrize("vary", ["*", "*, *", ", *", "Foo, *", "a b"])
def test_a_star_matches_nothing(vary: str) -> None:
    assert not matches(get("Foo: 1"), kept(f"Vary: {vary}", request=get("Foo: 1")))


SAME = [
    ("Foo: 1", "Foo: 1"),
    ("Foo: 1, 2", "Foo: 1|Foo: 2"),
    ("Foo: 1,2", "Foo:  1 ,\t2 "),
    ('Foo: "a, b"', 'Foo: "a, b"'),
    ("Accept-Language: en, de", "Accept-Language: de, en"),
    ("Accept-Language: en, de", "Accept-Language: eN, De"),
    ("Accept-Language: en, de", "Accept-Language:  en ,   de"),
    ("Accept-Language: en;q=0.5", "Accept-Language: en ; Q=0.50"),
    ("Accept-Language: en;q=1", "Accept-Language: en"),
    ("Accept-Encoding: gzip, br;q=0", "Accept-Encoding: br;q=0.000, GZIP;q=1.0"),
    ("Accept: text/html;Level=1;q=0.5, */*", "Accept: */*;q=1, TEXT/HTML;q=.5;level=1".replace("=.5", "=0.5")),
    ("Accept: a/b;x=1;y=2", "Accept: a/b;y=2;x=1"),
    ("Accept: a/b;x=1", "Accept: a/b ; ;x=1;"),  # RFC 9110 section 5.6.6
    ("Accept-Charset: a, b", "Accept-Charset: B, a"),
    ("Foo: ", "Foo: "),
    ("Authorization: a", "Authorization:  a "),
]
DIFFERENT = [
    ("Foo: 1", "Foo: 2"),
    ("Foo: 1, 2", "Foo: 2, 1"),
    ("Foo: 1,,2", "Foo: 1,2"),  # in a field that nobody here knows
    ("Foo: ,1", "Foo: 1"),
    ("Foo: a", "Foo: A"),
    ("Foo: 1", "Bar: 1"),
    ("Foo: ", "Bar: "),
    ('Foo: "a, b"', 'Foo: "a,b"'),
    ("Accept-Language: en", "Accept-Language: en, de"),
    ("Accept-Language: en;q=0.5", "Accept-Language: en;q=0.51"),
    ("Accept-Language: en;q=0", "Accept-Language: en"),
    ("Accept-Language: en;q=x", "Accept-Language: en"),
    ("Accept-Language: en;q=2", "Accept-Language: en"),
    ("Accept-Language: en;q=1.0001", "Accept-Language: en"),
    ("Accept-Language: en;q=0.5000", "Accept-Language: en;q=0.5"),
    ("Accept-Language: en;q=2.0", "Accept-Language: en;q=2"),
    ("Accept: a/b;x=y", "Accept: a/b;x=Y"),
    ("Accept: a/b;x=Y=z", "Accept: a/b;x=y=z"),
    ('Accept: a/b;x="y;Z"', 'Accept: a/b;x="y;z"'),
    ('Accept: a/b;x="y;Z', 'Accept: a/b;x="y;z'),
    ('Accept: a/b;x="y;Z\\', 'Accept: a/b;x="y;z\\'),
    ('Accept: a/b;x="y;q=0.5;z"', 'Accept: a/b;x="y;z";q=0.5'),
    ('Accept: a/b;x="\\";y=1";z=2', 'Accept: a/b;x="\\";z=2;y=1"'),
    ("Accept: ;a", "Accept: a"),
    ("Foo: a", "Foo: a\xa0"),
    ("Authorization: a", "Authorization: a\xa0"),
    ("Authorization: a", "Authorization: aX"),
    ("Accept: a/b;x=y", "Accept: a/b;x=y\xa0"),
    ("Accept: X/b", "Accept: /b"),
    ("Accept: a/b;x", "Accept: a/b"),
    ("Accept-Encoding: gzip", "Accept-Encoding: "),
    ("Authorization: a", "Authorization: b"),
    ("Authorization: a,b", "Authorization: a, b"),
    ("Cookie: a=1,2", "Cookie: a=1, 2"),
    ("User-Agent: x (a,b)", "User-Agent: x (a, b)"),
    ("Referer: http://a/?a,b", "Referer: http://a/?a, b"),
    ("Proxy-Authorization: a,b", "Proxy-Authorization: a, b"),
]


@pytest.mark.parametrize("one, other, same", [(*p, True) for p in SAME] + [(*p, False) for p in DIFFERENT])
def test_values_that_mean_the_same_match(one: str, other: str, same: bool) -> None:
    first, second = get(*one.split("|")), get(*other.split("|"))
    vary = f"Vary: Foo, Bar, {one.partition(':')[0]}"
    assert matches(second, kept(vary, request=first)) is same
    assert matches(first, kept(vary, request=second)) is same
    assert matches(first, kept(vary, request=first))


def test_absent_matches_absent_only() -> None:
    stored = kept("Vary: Foo, Bar", request=get("Foo: 1"))
    assert matches(get("Foo: 1"), stored)
    assert not matches(get("Foo: 1", "Bar: "), stored)
    assert not matches(get(), stored)
    assert not matches(get("Foo: 1"), kept("Vary: Foo"))


def test_only_what_vary_names_is_kept() -> None:
    request = get("Foo: 1", "User-Agent: me", "Accept: B, a")
    kept_values = selecting(request, fields("Vary: accept, User-Agent, bar"))
    assert kept_values == (("accept", "a;q=1,b;q=1"), ("user-agent", "me"))
    assert selecting(request, fields()) == ()
    odd = Request("GET", URI, Fields([("Origin", "a, b"), ("Accept", "a/b;X=1"), ("Foo", "\ud800")]))
    assert selecting(odd, fields("Vary: origin, accept")) == (("accept", "a/b;x=1;q=1"), ("origin", "a,b"))
    assert len(selecting(odd, fields("Vary: foo"))) == 1


@pytest.mark.parametrize(
    "name", ["Accept-CH", "DNT", "Origin", "Save-Data", "User-Agent", "X-Requested-With", "Accept"]
)
def test_what_is_no_secret_is_kept_as_it_is(name: str) -> None:
    ((_, value),) = selecting(get(f"{name}: abc"), fields(f"Vary: {name}"))
    assert value == ("abc;q=1" if name == "Accept" else "abc")


@pytest.mark.parametrize("name", ["Authorization", "Cookie", "Proxy-Authorization", "X-Api-Key", "Foo"])
def test_credentials_are_kept_as_digests(name: str) -> None:
    ((_, value),) = selecting(get(f"{name}: secret"), fields(f"Vary: {name}"))
    assert value.startswith("sha256:")
    assert len(value) == len("sha256:") + 32
    assert "secret" not in value


def test_digests_of_one_value_in_two_fields_differ() -> None:
    request = get("Authorization: secret", "Cookie: secret")
    assert normalized(request, "authorization") != normalized(request, "cookie")


@pytest.mark.parametrize(
    "language, preferences, expected",
    [
        ("de", "fr;q=0.5, de;q=1.0", True),
        ("DE", "De, fr;q=0.9", True),
        (" de ", "de", True),
        ("de\xa0", "de", False),
        ("X", "", False),
        ("de", "fr, de", False),  # two are liked best
        ("de", "fr, de;q=0.5", False),
        ("de", "de;q=0", False),
        ("de", "de-AT", False),
        ("de, fr", "de", False),
        ("de", "*", False),
        ("", "", False),
    ],
)
def test_the_one_language_liked_best(language: str, preferences: str, expected: bool) -> None:
    stored = kept("Vary: Accept-Language", f"Content-Language: {language}", request=get("Accept-Language: en, de"))
    assert matches(get(f"Accept-Language: {preferences}"), stored) is expected


def test_the_language_liked_best_is_not_enough_where_more_varies() -> None:
    lines = ("Vary: Accept-Language, Foo", "Content-Language: de")
    assert not matches(get("Accept-Language: de"), kept(*lines, request=get("Accept-Language: en", "Foo: 1")))
    assert matches(get("Accept-Language: de"), kept(*lines, request=get("Accept-Language: en")))
    assert not matches(get(), kept(*lines, request=get("Accept-Language: en")))
    assert not matches(get("Foo: de"), kept("Vary: Foo", "Content-Language: de", request=get("Foo: x")))


@pytest.mark.parametrize(
    "coded, accepted, expected",
    [
        (None, None, True),
        (None, "", True),
        ("gzip", None, True),
        ("gzip", "gzip", True),
        ("x-gzip", "gzip", True),
        ("GZIP", "X-Gzip", True),
        ("gzip", "br, *", True),
        ("gzip", "br, *;q=0", False),
        ("gzip", "gzip;q=0, *", False),
        ("gzip", "gzip;q=0.001", True),
        ("gzip", "", False),
        ("gzip", "br", False),
        ("x-gzip", "br", False),
        ("gzip, br", "gzip", False),
        ("gzip, br", "br, gzip", True),
        ("zstd", "gzip, deflate", False),
        ("deflate", "gzip", False),
        ("br", "gzip", False),
        ("compress", "gzip", False),
        ("dcb", "gzip", False),
        ("dcz", "gzip", False),
        ("identity", "gzip", True),
        ("aws-chunked", "gzip", True),  # nobody negotiates what is not registered
    ],
)
def test_accepted_codings(coded: str | None, accepted: str | None, expected: bool) -> None:
    stored = kept(*([f"Content-Encoding: {coded}"] if coded is not None else []))
    request = get(*([f"Accept-Encoding: {accepted}"] if accepted is not None else []))
    assert accepts_coding(request, stored) is expected


NAMES = st.sampled_from(["Accept", "Accept-Language", "Accept-Encoding", "Cookie", "Foo", "User-Agent", "*", ","])
LINES = st.lists(st.tuples(NAMES, st.text()), max_size=5)


@given(LINES, LINES, st.lists(NAMES))
def test_no_value_raises_and_a_request_matches_itself(
    one: list[tuple[str, str]], other: list[tuple[str, str]], vary: list[str]
) -> None:
    request, second = Request("GET", URI, Fields(one)), Request("GET", URI, Fields(other))
    stored = kept(f"Vary: {', '.join(vary)}", "Content-Language: x", request=request)
    assert matches(request, stored) is ("*" not in vary)
    matches(second, stored)
    accepts_coding(second, stored)
