"""Hops alone: whose credentials go where, what leads on, and what is dialled."""

from __future__ import annotations

import pytest

from vllm_http_cache.rfc9111.message import Fields, Response
from vllm_http_cache.vllm import hops
from vllm_http_cache.vllm.hops import Hop, dialled, first_hop, is_redirect

BASIC = "Basic dXNlcjpwYXNz"


@pytest.fixture(autouse=True)
def _no_netrc(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETRC", f"{tmp_path}/none")
    hops._netrc.cache_clear()


def to(location: str, status: int = 302) -> Response:
    return Response(status, Fields([("Location", location)]))


def authorization(hop: Hop) -> tuple[str | None, str | None]:
    """As the cache sees it, and as it is handed to the client, which finds those of a URL itself."""
    return hop.request.fields.get("authorization"), hop.outgoing(hop.request).get("Authorization")


@pytest.mark.parametrize(
    "url, location, kept",
    [
        ("http://a.test/", "/b", True),
        ("http://a.test/", "http://a.test:80/b", True),
        ("http://a.test:8000/", "http://a.test:8000/b", True),
        ("http://a.test/", "https://a.test/b", True),
        ("http://a.test/", "http://b.test/", False),
        ("http://a.test/", "https://b.test/", False),
        ("http://a.test/", "http://a.test:8000/", False),
        ("http://a.test:8000/", "https://a.test/", False),
        ("http://a.test/", "https://a.test:8000/", False),
        ("https://a.test/", "http://a.test/", False),
    ],
)
def test_credentials_follow_to_the_same_party_only(url: str, location: str, kept: bool) -> None:
    given = first_hop(url, {"Authorization": "Bearer x", "Cookie": "a=b"})
    assert authorization(given) == ("Bearer x", "Bearer x")
    then = given.following(to(location))
    assert authorization(then) == (("Bearer x", "Bearer x") if kept else (None, None))
    assert then.request.fields.get("cookie") == ("a=b" if kept else None)
    found = first_hop(url.replace("://", "://user:pass@"), {})
    assert authorization(found) == (BASIC, None)
    assert authorization(found.following(to(location))) == ((BASIC, BASIC) if kept else (None, None))


def test_a_hops_own_credentials_replace_those_of_the_last() -> None:
    then = first_hop("http://a:b@a.test/", {}).following(to("http://user:pass@a.test/"))
    assert authorization(then) == (BASIC, None)
    assert then.url == "http://user:pass@a.test/"
    assert authorization(then.following(to("/c"))) == (BASIC, BASIC)


def test_credentials_in_a_url_count_for_more_than_a_field() -> None:
    given = first_hop("http://user:pass@a.test/", {"Authorization": "Bearer x"})
    assert authorization(given) == (BASIC, BASIC)
    assert authorization(given.following(to("/b"))) == (BASIC, BASIC)


def test_credentials_in_a_url_are_no_part_of_what_is_recorded() -> None:
    assert first_hop("http://user:pass@a.test/", {}).request.uri == "http://a.test/"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects(status: int) -> None:
    assert is_redirect(to("/", status))
    assert not is_redirect(Response(status, Fields()))
    assert not is_redirect(to("", status))


@pytest.mark.parametrize("status", [200, 201, 300, 304, 404])
def test_a_location_alone_is_no_redirect(status: int) -> None:
    assert not is_redirect(to("/", status))


@pytest.mark.parametrize(
    "url, goes",
    [
        ("http://a.test/a%2fb?c=%7E#d", "http://a.test/a%2fb?c=%7E"),
        ("http://a.test/a b", "http://a.test/a%20b"),
        ("http://a.test/\xe4", "http://a.test/%C3%A4"),
        ('http://a.test/"', "http://a.test/%22"),
    ],
)
def test_what_has_no_place_in_a_url_is_escaped_and_nothing_else(url: str, goes: str) -> None:
    assert dialled(url) == goes


def test_the_names_of_hosts_that_cannot_be_are_not_remembered() -> None:
    first_hop("http://a.test/", {})
    before = hops._netrc.cache_info().currsize
    assert before
    first_hop(f"http://{'a.' * 200}test/", {})
    assert hops._netrc.cache_info().currsize == before
