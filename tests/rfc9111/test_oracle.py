"""Random lives of one resource, and every answer held against RFC 9111 as plainly as it can be written down.

The origin changes, ages its answers, varies, fails; callers ask in all ways; the clock runs. The judge below knows
nothing of the rules' code: it keeps what the origin has said, and asks of each answer whether the RFC lets a cache
that heard this give it. It is lenient where the RFC is: there must be *one* reading of the past that allows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_http_cache.rfc9111.dates import parse_http_date
from vllm_http_cache.rfc9111.message import Fields, Request
from vllm_http_cache.rfc9111.options import CacheOptions

from .lives import LIVES, TTL, Answered, Ask, Cache, Change, Origin, Policy, Said, Wait, positions, request_of

# The RFC, written down plainly


def directives(value: str | None) -> dict[str, int | None]:
    pairs = (item.strip().partition("=") for item in (value or "").split(","))
    return {name: int(number) if number else None for name, _, number in pairs}


def lifetime(said: Said, shared: bool, known: Fields) -> float:
    """4.2.1 and 4.2.2."""
    given = directives(said.response.fields.get("cache-control"))
    if "no-cache" in given:
        return 0
    if shared and "s-maxage" in given:
        return given["s-maxage"] or 0
    if "max-age" in given:
        return given["max-age"] or 0
    modified = parse_http_date(known.get("last-modified"), said.received)
    return 0 if modified is None else max(0.0, date_of(said) - modified) / 10


def age(said: Said, now: float) -> float:
    """4.2.3."""
    apparent_age = max(0, said.received - date_of(said))
    corrected_age_value = int(said.response.fields.get("age") or 0) + said.received - said.sent
    return max(apparent_age, corrected_age_value) + now - said.received


def may_reuse(said: Said, known: Fields, asked: dict[str, int | None], now: float, shared: bool, failed: bool) -> bool:
    """4, 4.2.4, 5.2.1, RFC 5861: may what *said* vouched for answer now, without another word from the origin?"""
    given = directives(said.response.fields.get("cache-control"))
    if "no-store" in given or (shared and "private" in given) or now >= said.received + TTL:
        return False
    current, most = age(said, now), lifetime(said, shared, known)
    if "no-cache" in asked and not failed:
        return False
    if most > current:
        limits = ("max-age" not in asked or (0 < (asked["max-age"] or 0) >= current)) and (
            "min-fresh" not in asked or most - current >= (asked["min-fresh"] or 0)
        )
        return failed or limits
    forbidden = {"no-cache", "must-revalidate"} | ({"proxy-revalidate", "s-maxage"} if shared else set())
    if forbidden & set(given):
        return False
    staleness = current - most
    if failed:
        return any(staleness <= (span.get("stale-if-error") or -1) for span in (given, asked))
    if "max-stale" in asked:
        limit = asked["max-stale"]
        return (limit is None or staleness <= limit) and ("max-age" not in asked or current <= (asked["max-age"] or 0))
    window = given.get("stale-while-revalidate")
    return window is not None and staleness <= window and not {"max-age", "min-fresh"} & set(asked)


def grounds(request: Request, version: str, past: list[Said]) -> Iterator[tuple[Said, Fields]]:
    """What the origin said of a version, each time with the fields known of it then, if the request may have it."""
    known = Fields()
    for said in past:
        if said.version != version or said.response.status not in (200, 206, 304):
            continue
        known = known.replaced(*said.response.fields.lines)
        varies = "vary" in said.response.fields
        if not varies or said.request.fields.get("foo") == request.fields.get("foo"):
            yield said, known


def check(request: Request, answered: Answered, past: list[Said], origin: Origin, shared: bool) -> None:
    """*answered* is one that the RFC allows. *past*: all that the origin had said before the request."""
    response, heard = answered.response, answered.heard
    asked = directives(request.fields.get("cache-control"))
    if response.status == 504:
        assert "only-if-cached" in asked and not heard
        return
    assert "only-if-cached" not in asked or not heard
    own = request.fields.get("if-none-match")
    if response.status == 304:
        assert own is not None  # never to a caller who sent no condition
    if heard and response == heard[-1].response:
        return  # the origin's own words
    version = response.fields.get("x-version")
    assert version is not None
    body = origin.bodies[version]
    if response.status == 304:
        assert own is not None and (response.fields.get("etag") or "").removeprefix("W/") in own
        assert answered.body == b""
    elif request.method == "HEAD" or response.status == 416:
        assert answered.body == b""
    elif response.status == 206:
        first, last = positions(request.fields.get("range") or "", len(body))
        assert answered.body == body[first:last]
        assert response.fields.get("content-range") == f"bytes {first}-{last - 1}/{len(body)}"
    else:
        assert response.status == 200 and answered.body == body
    if heard and heard[-1].response.status in (206, 304):
        assert heard[-1].version == version
        # A 304 that may update nothing (4.3.4) leaves the age as it was.
        allowed = [*heard[-1:], *(said for said, _ in grounds(request, version, past))]
    else:
        limits = asked, answered.now, shared, answered.failed
        allowed = [said for said, known in grounds(request, version, past) if may_reuse(said, known, *limits)]
        assert allowed, "nothing the origin ever said allows this answer"
    if response.status != 416:
        given = int(response.fields.get("age") or -1)
        assert any(given == int(age(said, answered.now)) for said in allowed)
    superseded(request, version, allowed, past, shared)


def date_of(said: Said) -> float:
    date = parse_http_date(said.response.fields.get("date"), said.received)
    assert date is not None
    return date


def superseded(request: Request, version: str, allowed: list[Said], past: list[Said], shared: bool) -> None:
    """4: the most recent of what matches is used, by Date; so what allows the answer was not replaced by a later 200 of
    another version. Only one that varies alike is sure to have replaced it, and to have been there ever since."""
    for said in past:
        given = directives(said.response.fields.get("cache-control"))
        unstored = "no-store" in {*given, *directives(said.request.fields.get("cache-control"))}
        if unstored or (shared and "private" in given) or said.request.method != "GET" or said.version == version:
            continue
        varies = "vary" in said.response.fields
        same = not varies or said.request.fields.get("foo") == request.fields.get("foo")
        if said.response.status == 200 and same and all(varies is ("vary" in one.response.fields) for one in allowed):
            assert any(date_of(one) >= date_of(said) or one.received >= said.received for one in allowed)


@settings(derandomize=True, max_examples=600, deadline=None)
@given(LIVES, st.booleans())
def test_no_answer_is_one_that_the_rfc_forbids(
    life: tuple[Policy, list[Ask | Policy | Wait | Change | str]], shared: bool
) -> None:
    policy, events = life
    origin = Origin(policy=policy)
    cache = Cache(origin, CacheOptions(shared=shared, ttl=TTL))
    for event in events:
        if isinstance(event, Policy):
            if event.varies != origin.policy.varies:
                origin.change()
            origin.policy = event
        elif isinstance(event, str):
            origin.policy = replace(origin.policy, trouble=event)
        elif isinstance(event, Wait):
            origin.now += event.seconds
        elif isinstance(event, Change):
            origin.change()
        else:
            request = request_of(event, origin)
            past = list(origin.said)
            answered = cache.ask(request)
            assert len(origin.said) - len(past) <= 2
            if answered is None:
                assert origin.policy.trouble == "down"
            else:
                check(request, answered, past, origin, shared)
