"""Where a request goes, hop by hop, and which entry is its."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.origin import Answer, Origin

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.clients import Client
    from tests.conftest import World
    from tests.origin import Clock

FRESH = {"Cache-Control": "max-age=3600", "ETag": '"1"'}
AMZ = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Date=20270115T080000Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host"


class Refused(Exception):
    """What a policy of these tests raises."""


def only(*allowed: str) -> tuple[Callable[[str], None], list[str]]:
    """A policy that lets pass the URLs that begin with one of *allowed*, and the list of all it was shown."""
    shown: list[str] = []

    def policy(url: str) -> None:
        shown.append(url)
        if not url.startswith(allowed):
            raise Refused(url)

    return policy, shown


def test_each_hop_is_cached_by_its_own_rules(client: Client, origin: Origin) -> None:
    """The start asks each time, the end hits."""
    start = origin.on("/", Answer(307, {"Cache-Control": "no-store", "Location": "/final"}))
    origin.on("/final", Answer(fields=FRESH, body=b"final"))
    for hit in (False, True, True):
        got = client.get(start)
        assert (got.status, got.body, got.hit, got.hops) == (200, b"final", hit, (307,))
    assert (origin.count("/"), origin.count("/final")) == (3, 1)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_cached_redirect_leads_on(client: Client, origin: Origin, status: int) -> None:
    """A redirect from the cache leads where it did, and its end may change."""
    start = origin.on("/", Answer(status, {**FRESH, "Location": "/final"}))
    origin.on("/final", Answer(fields={"Cache-Control": "no-store"}, body=b"one"), Answer(body=b"two"))
    assert [client.get(start).body for _ in range(3)] == [b"one", b"two", b"two"]
    assert (origin.count("/"), origin.count("/final")) == (1, 3)


def test_an_empty_redirect_never_poisons_its_url(client: Client, origin: Origin) -> None:
    """With redirects off the 302 itself is the answer, and the next request is a new one."""
    start = origin.on("/", Answer(302, {"Location": "/final"}))
    origin.on("/final", Answer(fields=FRESH, body=b"final"))
    got = client.get(start, redirects=False)
    assert (got.status, got.body) == (302, b"")
    assert client.get(start).body == b"final"
    assert client.get(start, redirects=False).status == 302


def test_a_policy_refuses_a_hop_before_it_is_dialled(world: World, origin: Origin, clock: Clock) -> None:
    """Nothing stored, not retried."""
    with Origin(clock) as other:
        forbidden = other.on("/x", Answer(fields=FRESH))
        start = origin.on("/", Answer(302, {"Location": forbidden, "Cache-Control": "no-store"}))
        policy, shown = only(origin.url("/"))
        with pytest.raises(Refused):
            world.client(url_policy=policy).get(start)
        assert shown == [start, forbidden]
        assert other.count() == 0
        assert world.client().get(forbidden).status == 200
        assert other.count() == 1


def test_a_stricter_policy_holds_for_what_is_cached(world: World, origin: Origin, clock: Clock) -> None:
    """Both the cached redirect and its cached end."""
    with Origin(clock) as other:
        forbidden = other.on("/x", Answer(fields=FRESH))
        start = origin.on("/", Answer(301, {**FRESH, "Location": forbidden}))
        assert world.client().get(start).status == 200
        policy, shown = only(origin.url("/"))
        strict = world.client(url_policy=policy)
        for url in (start, forbidden):
            with pytest.raises(Refused):
                strict.get(url)
        assert shown == [start, forbidden, forbidden]
        assert (origin.count(), other.count()) == (1, 1)


@pytest.mark.parametrize(
    "shape", ["http://{inner}\\@{outer}/", "http://{outer}\\@{inner}/", "http://{inner}%2f@{outer}/"]
)
def test_policy_and_dial_read_one_url(world: World, origin: Origin, clock: Clock, shape: str) -> None:
    """Whatever the spelling, a host that the policy was not shown is not dialled."""
    with Origin(clock) as other:
        for server in (origin, other):
            server.on("/", Answer(fields=FRESH))
        inner, outer = (urlsplit(server.url("/")).netloc for server in (origin, other))
        refusals: tuple[type[Exception], ...] = (Refused, *world.client_class.invalid, ValueError)
        policy, shown = only()
        with pytest.raises(refusals):
            world.client(url_policy=policy).get(shape.format(inner=inner, outer=outer))
        policy, shown = only(origin.url("/"))
        try:
            world.client(url_policy=policy).get(shape.format(inner=inner, outer=outer))
        except refusals:
            assert (origin.count(), other.count()) == (0, 0)
        assert other.count() == 0
        assert all(urlsplit(url).netloc in (inner, outer) for url in shown)


def test_a_host_with_an_escape_is_refused(world: World, origin: Origin) -> None:
    """Two parsers may read it differently."""
    policy, _ = only("http://")
    url = origin.on("/", Answer(fields=FRESH)).replace("127.0.0.1", "%31%32%37.0.0.1")
    client = world.client(url_policy=policy)
    refusals: tuple[type[Exception], ...] = (*client.invalid, *client.failed, ValueError)
    try:
        client.get(url)
    except refusals:
        assert origin.count() == 0
    else:  # the client itself had decoded it before it reached the transport
        assert world.bare_client().get(url).status == 200


PATHS = ["/a%2Fb/%28c%29+d%2Be?q=%2B+%20(x)&r=%5B%5D&s=a%2Fb", "/a//b/?", "/%E2%82%AC?%e2%82%ac", "/a;b=1?x=;y"]


@pytest.mark.parametrize("target", PATHS)
def test_targets_reach_the_origin_as_they_would_without_a_cache(
    world: World, client: Client, origin: Origin, clock: Clock, target: str
) -> None:
    """Byte for byte, on first fetch, redirect and validation alike."""
    path = target.partition("?")[0]
    fields = {"Cache-Control": "max-age=1", "ETag": '"1"'}
    origin.on(path, Answer(fields=fields, body=b"one"))
    start = origin.on("/start", Answer(302, {"Location": target}))
    for caller in (world.bare_client(), client, client):
        caller.get(start)
        caller.get(origin.url(target))
        clock.advance(2)
    seen = [request.target for request in origin.seen() if request.target != "/start"]
    assert len(seen) >= 4
    assert set(seen[2:]) == set(seen[:2])
    assert PATHS[0] != target or set(seen) == {target}


SIGNED = {
    "S3": (f"?{AMZ}&X-Amz-Credential=me&X-Amz-Signature=aaa", f"?{AMZ}&X-Amz-Credential=me&X-Amz-Signature=b%2Fb"),
    "CloudFront": ("?Expires=1&Signature=aaa&Key-Pair-Id=k", "?Expires=2&Signature=bbb&Key-Pair-Id=k"),
}


@pytest.mark.parametrize("kind", SIGNED)
def test_a_new_signature_is_validated_with_the_new_url(client: Client, origin: Origin, clock: Clock, kind: str) -> None:
    """Its 304 saves the body; the identical URL stays an ordinary hit."""
    first, second = SIGNED[kind]
    origin.on("/x", Answer(fields=FRESH, body=b"picture"), Answer(304, FRESH))
    assert client.get(origin.url("/x" + first)).body == b"picture"
    assert client.get(origin.url("/x" + first)).hit
    got = client.get(origin.url("/x" + second))
    assert (got.status, got.body, got.hit) == (200, b"picture", False)
    assert [seen.target for seen in origin.seen()] == ["/x" + first, "/x" + second]
    assert origin.seen()[1].get("if-none-match") == '"1"'


@pytest.mark.parametrize("kind", SIGNED)
def test_a_refused_signature_goes_to_its_caller_and_harms_nobody(client: Client, origin: Origin, kind: str) -> None:
    first, second = SIGNED[kind]
    forbidden = Answer(403, {"Cache-Control": "max-age=60"}, b"expired")
    origin.on("/x", Answer(fields=FRESH, body=b"picture"), forbidden, Answer(304, FRESH))
    client.get(origin.url("/x" + first))
    got = client.get(origin.url("/x" + second))
    assert (got.status, got.body) == (403, b"expired")
    got = client.get(origin.url("/x" + first))
    assert (got.status, got.body, got.hit) == (200, b"picture", True)


def test_without_a_validator_a_new_signature_is_fetched(client: Client, origin: Origin) -> None:
    """Never served without the origin's word."""
    first, second = SIGNED["S3"]
    origin.on("/x", Answer(fields={"Cache-Control": "max-age=60"}, body=b"one"), Answer(body=b"two"))
    client.get(origin.url("/x" + first))
    assert client.get(origin.url("/x" + second)).body == b"two"


@pytest.mark.parametrize(
    "first, second",
    [("?sig=1", "?sig=2"), ("?Expires=1", "?Expires=2"), ("?a=1&b=2", "?b=2&a=1"), ("?", "?q"), ("?a%2fb", "?a/b")],
)
def test_other_queries_are_other_entries(client: Client, origin: Origin, first: str, second: str) -> None:
    origin.on("/x", lambda seen: Answer(fields=FRESH, body=seen.target.encode()))
    bodies = [client.get(origin.url("/x" + query)).body for query in (first, second, first, second)]
    assert bodies[:2] == bodies[2:]
    assert bodies[0] != bodies[1]
    assert origin.count() == 2
    assert origin.seen()[1].get("if-none-match") is None


def test_paths_alike_but_for_case_are_other_entries(client: Client, origin: Origin) -> None:
    urls = [origin.on(path, Answer(fields=FRESH, body=path.encode())) for path in ("/x", "/X")]
    assert [client.get(url).body for url in urls * 2] == [b"/x", b"/X"] * 2
    assert origin.count() == 2


def test_the_hosts_case_and_a_fragment_make_no_difference(client: Client, origin: Origin) -> None:
    url = origin.on("/x", Answer(fields=FRESH)).replace("127.0.0.1", "localhost")
    client.get(url)
    for alike in (url + "#part", url.replace("localhost", "LocalHost"), url.replace("http:", "HTTP:")):
        assert client.get(alike).hit
    assert origin.count() == 1


def test_a_host_field_of_the_callers_own_is_another_resource(client: Client, origin: Origin) -> None:
    """RFC 9110 section 7.1: the Host field, not the address dialled, is part of the target URI."""
    url = origin.on("/x", lambda seen: Answer(fields=FRESH, body=(seen.get("host") or "").encode()))
    for host in ("a.test", "b.test", "a.test"):
        assert client.get(url, {"Host": host}).body == host.encode()
    assert client.get(url).body == urlsplit(url).netloc.encode()
    assert client.get(url).hit


def test_user_and_password_of_a_url_are_never_on_disk(world: World, client: Client, origin: Origin) -> None:
    """Decision 14."""
    url = origin.on("/x", Answer(fields={"Cache-Control": "public, max-age=60"}, body=b"one"))
    client.get(url.replace("//", "//user:top-secret@"))
    assert not world.on_disk(b"top-secret")
    assert world.on_disk(b"one")


def test_an_ipv6_origin(world: World, client: Client, clock: Clock) -> None:
    """Brackets and all."""
    try:
        other = Origin(clock, "::1")
    except OSError:
        pytest.skip("no IPv6 here")
    with other:
        url = other.on("/x", Answer(fields=FRESH, body=b"one"))
        policy, shown = only(url)
        strict = world.client(client.cache, url_policy=policy)
        assert [strict.get(url).hit for _ in range(2)] == [False, True]
        assert shown == [url, url]
