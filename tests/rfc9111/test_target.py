"""RFC 9111 section 2: what is stored under which key."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from vllm_http_cache.rfc9111.options import CacheOptions
from vllm_http_cache.rfc9111.target import (
    InvalidTarget,
    Target,
    cache_key,
    flight_key,
    is_signed,
    lookup_key,
    parse_target,
    recorded_uri,
    redacted,
    resolved,
    same_uri,
)

from .make import PRIVATE, SHARED, get, kept

PLAIN = CacheOptions(signed_urls=False)


def test_parts() -> None:
    assert parse_target("HTTPS://u:p@Ex.Test:8443/A%2fb?Q=1&q=%41#frag") == Target(
        "https", "u:p", "ex.test", 8443, "/A%2fb", "Q=1&q=%41"
    )
    assert parse_target("http://[::FF]") == Target("http", None, "[::ff]", 80, "/", None)
    assert parse_target("https://a:/?") == Target("https", None, "a", 443, "/", "")
    assert parse_target("ftp://a") == Target("ftp", None, "a", None, "/", None)
    assert parse_target("http://a:65535").port == 65535
    assert parse_target("http://a:0").port == 0, "which is not the default port"
    assert parse_target("http://a:00080").port == 80
    assert parse_target("http://@a").userinfo == ""
    assert parse_target("svn+x-1.0://a").scheme == "svn+x-1.0"
    assert parse_target("http://a_b~!$&'()*+,;=-.c/").host == "a_b~!$&'()*+,;=-.c"
    assert parse_target("http://a/\\?b".replace("\\", "")).origin == ("http", "a", 80)


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "/path",
        "//host/path",
        "host",
        "http:/a",
        "http://",
        "http:///x",
        "http://?x",
        "1http://a",
        "http://127.0.0.1:6666\\@good.test/",
        "http://a\\b",
        "http://a/\\b",
        "http://a@b@c/",
        "http://a%2eb/",
        "http://é.test/",
        "http://a b/",
        "http://a/b c",
        "http://a/?b\tc",
        "http://a/#\n",
        "http://a/\x00",
        "http://a/\x7f",
        " http://a/",
        "http://a:65536/",
        "http://a:99999/",
        "http://a:100000/",
        "http://a:000080/",
        "http://a:-1/",
        "http://a:x/",
        "http://a:1:2/",
        "http://a:²/",
        "http://[::1/",
        "http://[::1]x/",
        "http://[x]/",
        "http://::1/",
        "http://a<b/",
    ],
)
def test_ambiguous_uris_are_refused(uri: str) -> None:
    with pytest.raises(InvalidTarget, match="URI"):
        cache_key(uri, SHARED)


def test_what_one_user_stores_is_out_of_the_reach_of_others() -> None:
    assert cache_key("http://a/", PRIVATE) != cache_key("http://a/", SHARED)
    assert cache_key("http://a/", PRIVATE) == cache_key("http://A/", PRIVATE)


def test_the_message_shows_no_secret() -> None:
    with pytest.raises(InvalidTarget) as caught:
        parse_target("http://user:secret@a b/?key=secret")
    assert "secret" not in str(caught.value)


def test_an_invalid_target_is_a_value_error() -> None:
    assert issubclass(InvalidTarget, ValueError)


def test_a_backslash_in_a_query_is_an_octet() -> None:
    assert parse_target("http://a/?b\\c").query == "b\\c"


@pytest.mark.parametrize(
    "uri",
    ["http://a/", "HTTP://A/", "http://a:80/", "http://a:/", "http://a", "http://a/#x", "http://a#", "http://a:080/"],
)
def test_one_entry(uri: str) -> None:
    assert cache_key(uri, SHARED) == cache_key("http://a/", SHARED)
    assert same_uri(uri, "http://a/")
    assert re.fullmatch("[0-9a-f]{64}", cache_key(uri, SHARED))


DIFFERENT = [
    "http://a/",
    "https://a/",
    "http://b/",
    "http://a:81/",
    "http://a/?",
    "http://a/x",
    "http://a/X",
    "http://a/%78",
    "http://a//",
    "http://a/?x&y",
    "http://a/?y&x",
    "http://a/?x&y=",
    "http://a/?x+y",
    "http://a/?x%20y",
    "http://a/?x%2By",
    "http://a/?x%2by",
    "https://a:80/",
    "http://a./",
    "http://u@a/",
    "http://v@a/",
    "http://@a/",
]


def test_different_entries() -> None:
    assert len({cache_key(uri, SHARED) for uri in DIFFERENT}) == len(DIFFERENT)


URIS = st.from_regex(
    r"https?://([ab]?@)?[abAB]{1,2}(:(80|443|8)?)?(/[aA%.]{0,2})?(\?[aA&=]{0,3})?(#a?)?", fullmatch=True
)


@given(URIS, URIS)
def test_a_key_is_injective(one: str, other: str) -> None:
    same = parse_target(one) == parse_target(other)
    assert (cache_key(one, PLAIN) == cache_key(other, PLAIN)) is same


@given(URIS)
def test_what_is_recorded_names_the_same_target(uri: str) -> None:
    recorded = recorded_uri(uri)
    assert same_uri(recorded, uri) and same_uri(uri, recorded)
    assert parse_target(recorded).userinfo is None
    assert "#" not in recorded


def test_recorded_uri_keeps_the_spelling_of_the_rest() -> None:
    assert recorded_uri("HTTP://u:p@A.test:80/%7e?Q=%2F?#x") == "HTTP://A.test:80/%7e?Q=%2F?"
    assert recorded_uri("http://a") == "http://a"
    assert recorded_uri("http://u:p@a/#\n") == "http://a/"
    assert recorded_uri("what is this") == "what is this"


@given(URIS)
def test_what_is_stored_is_found_under_the_uri_that_was_asked_for_and_the_one_on_record(uri: str) -> None:
    assert lookup_key(uri, PLAIN) == lookup_key(recorded_uri(uri), PLAIN) == cache_key(recorded_uri(uri), PLAIN)


def test_same_uri_of_what_is_none() -> None:
    assert same_uri("x", "x")
    assert not same_uri("x", "http://a/")
    assert not same_uri("http://a/x", "http://a/y")


AWS = "X-Amz-Algorithm=A&X-Amz-Credential=C&X-Amz-Date=D&X-Amz-Expires=9&X-Amz-SignedHeaders=host&X-Amz-Signature=S"
SIGNATURES = [
    AWS,
    AWS + "=",
    AWS + "&X-Amz-Security-Token=T",
    AWS.replace("Amz", "Goog"),
    "sv=1&se=2&sp=r&sig=S",
    "sv=1&st=0&se=2&sr=b&sp=r&spr=https&sip=1&sig=S&skoid=1&sktid=2&skt=3&ske=4&sks=b&skv=5",
    "sv=1&se=2&sp=r&sig=S&ss=b&srt=o&si=x&sdd=1&ses=y&saoid=1&suoid=2&scid=3",
    "Expires=1&Signature=S&Key-Pair-Id=K",
    "Policy=P&Signature=S&Key-Pair-Id=K&Hash-Algorithm=SHA256",
    "Expires=1&Signature=S&Key-Pair-Id=K&Hash-Algorithm=SHA256",
]


@pytest.mark.parametrize("signature", SIGNATURES)
def test_another_signature_is_the_same_entry(signature: str) -> None:
    base = "http://a/%2Fx?v=%2B&"
    other = base + re.sub(r"=[^&]*", "=other", signature)
    assert cache_key(base + signature, SHARED) == cache_key(other, SHARED)
    assert cache_key(base + signature, PLAIN) != cache_key(other, PLAIN)
    assert not same_uri(base + signature, other)
    assert is_signed(other)
    for another in (f"http://a/%2Fx?v=2&{signature}", f"http://a/%2fx?v=%2B&{signature}", f"{base}{signature}&w"):
        assert cache_key(another, SHARED) != cache_key(base + signature, SHARED)


@pytest.mark.parametrize("signature", SIGNATURES)
def test_a_set_that_is_not_whole_is_no_signature(signature: str) -> None:
    required = [
        p for p in signature.split("&") if p.partition("=")[0] not in ("X-Amz-Security-Token", "Hash-Algorithm")
    ]
    if "sig=S" in required:
        required = [p for p in required if p[:3] in ("sv=", "se=", "sp=", "sig")]
    for missing in required:
        rest = "&".join(p for p in signature.split("&") if p != missing)
        assert not is_signed(f"http://a/?{rest}")
        other = re.sub(r"=[^&]*", "=other", rest)
        assert cache_key(f"http://a/?{rest}", SHARED) != cache_key(f"http://a/?{other}", SHARED)


@pytest.mark.parametrize("query", ["sig=S", "Expires=1", "Signature=S", f"{AWS}&X-Amz-Date=2", AWS.lower(), "", "a"])
def test_no_signature(query: str) -> None:
    assert not is_signed(f"http://a/?{query}")
    assert not is_signed("http://a/")


def test_signatures_of_different_makers_and_none_are_different_entries() -> None:
    uris = ["http://a/", "http://a/?", *(f"http://a/?{s}" for s in (SIGNATURES[0], SIGNATURES[3], *SIGNATURES[4:6]))]
    assert len({cache_key(uri, SHARED) for uri in uris}) == len(uris) - 1  # the two of Azure are one
    assert len({cache_key(f"http://a/?{s}", SHARED) for s in SIGNATURES if "Key-Pair-Id" in s}) == 1  # CloudFront's too


@pytest.mark.parametrize(
    "uri, expected",
    [
        ("http://a/p?x=1&y=&z#f", "http://a/p?x=***&y=***&***"),
        ("http://u:p@a/@?x", "http://***@a/@?***"),
        ("http://u@p@a", "http://***@a"),
        ("http://a/p?", "http://a/p?"),
        ("http://a/p#f?g", "http://a/p"),
        ("http://a/p", "http://a/p"),
        ("?a=b=c?d", "?a=***"),
        ("", ""),
    ],
)
def test_redacted(uri: str, expected: str) -> None:
    assert redacted(uri) == expected


@given(st.text())
def test_redacted_takes_anything(uri: str) -> None:
    redacted(uri)


@given(st.text())
def test_a_uri_has_a_key_or_is_refused(uri: str) -> None:
    try:
        key = cache_key(uri, SHARED)
    except InvalidTarget:
        return
    assert len(key) == 64


@pytest.mark.parametrize(
    "reference, expected",
    [
        ("b", "http://a/x/b"),
        (" /b?c\t", "http://a/b?c"),
        ("/b\xa0", "http://a/b\xa0"),
        ("/bX", "http://a/bX"),
        ("https://c/", "https://c/"),
        ("//c", "http://c"),
        ("", "http://a/x/y?z"),
        (None, None),
        ("http://[", None),
        ("http://c:x/", None),
        ("/a b", None),
        ("mailto:x", None),
    ],
)
def test_resolved(reference: str | None, expected: str | None) -> None:
    assert resolved("http://a/x/y?z", reference) == expected


KEY = cache_key("http://a/", SHARED)


def test_requests_wait_for_each_other_if_the_known_vary_fields_agree() -> None:
    varied = (kept("Vary: Accept", request=get("Accept: a")), kept("Vary: X, accept"))
    one, same, other = get("Accept: a, b", "Y: 1"), get("accept: B,a"), get("Accept: a")
    assert flight_key(KEY, one, varied) == flight_key(KEY, same, varied)
    assert flight_key(KEY, one, varied) != flight_key(KEY, other, varied)
    assert flight_key(KEY, one, varied) != flight_key(KEY, get("Accept: a, b", "X: 1"), varied)
    assert flight_key(KEY, one, varied) != flight_key(KEY[::-1], one, varied)
    assert flight_key(KEY, one, ()) == flight_key(KEY, other, ()) == KEY
    assert re.fullmatch("[0-9a-f]{64}", flight_key(KEY, one, varied))


def test_requests_under_different_signatures_do_not_wait_for_each_other() -> None:
    """What one is told the origin has not confirmed to the other."""
    one, other = (get(uri=f"http://a/?{AWS}{signature}") for signature in "12")
    assert cache_key(one.uri, SHARED) == cache_key(other.uri, SHARED)
    for responses in ((), (kept("Vary: Accept"),)):
        assert flight_key(KEY, one, responses) == flight_key(KEY, get("X: 1", uri=one.uri), responses)
        assert flight_key(KEY, one, responses) != flight_key(KEY, other, responses)


@given(st.text(st.characters(codec="latin-1")), st.text(st.characters(codec="latin-1")))
def test_flights_are_told_apart_by_what_the_request_says(one: str, other: str) -> None:
    assume(one.strip() != other.strip())
    varied = (kept("Vary: User-Agent"),)
    same = flight_key(KEY, get(f"User-Agent: {one}"), varied) == flight_key(KEY, get(f"User-Agent: {other}"), varied)
    assert not same or one.strip(" \t") == other.strip(" \t")
