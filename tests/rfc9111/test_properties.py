"""Whatever the octets: nothing raises, nothing is fresh that nobody called fresh, age only grows."""

from __future__ import annotations

import re
from dataclasses import replace
from email.utils import parsedate_tz
from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_http_cache.rfc9111.explain import explain
from vllm_http_cache.rfc9111.freshness import current_age, fresh_until
from vllm_http_cache.rfc9111.invalidating import invalidated
from vllm_http_cache.rfc9111.judging import Keep, Refetch, judge, judge_failure, merged
from vllm_http_cache.rfc9111.message import BodyRef, Fields, Request, Response, StoredResponse
from vllm_http_cache.rfc9111.options import MODES, CacheOptions
from vllm_http_cache.rfc9111.responding import respond
from vllm_http_cache.rfc9111.selecting import Ask, Reuse, select
from vllm_http_cache.rfc9111.storing import storable, stored_response
from vllm_http_cache.rfc9111.target import flight_key
from vllm_http_cache.rfc9111.validating import conditional, unconditional

from .make import URI, T, date

OCTETS = st.text(st.characters(codec="latin-1"), max_size=30)
PLAUSIBLE = st.sampled_from(
    [
        "max-age=60",
        "max-age=",
        "s-maxage=60",
        "no-store",
        'no-cache="a, etag"',
        "private",
        "max-age=60, max-age=6",
        "-1",
    ]
    + [
        "0",
        "9" * 30,
        "1.5",
        date(),
        date(60),
        date(-1000),
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "*",
        '"1"',
        'W/"1"',
        "a, b",
    ]
    + ['"1", "2"', "bytes=0-4", "bytes=-5", "bytes 0-4/10", "bytes 5-9/10", "gzip", "br;q=0, *", "Accept", "Foo", "/x"]
    + [
        "stale-while-revalidate=9, max-age=1",
        "only-if-cached",
        "no-cache",
        "max-stale",
        "immutable, max-age=5",
        "1",
        "é",
    ]
)
VALUES = st.one_of(
    OCTETS, PLAUSIBLE, PLAUSIBLE, st.lists(PLAUSIBLE).map(", ".join), OCTETS.map(lambda junk: junk * 200)
)
RESPONSE_NAMES = st.sampled_from(
    ["Age", "Cache-Control", "Connection", "Content-Encoding", "Content-Language", "Content-Length", "Content-Location"]
    + ["Content-Range", "Content-Type", "Date", "ETag", "Expires", "Last-Modified", "Location", "Vary", "X-Targeted"]
)
REQUEST_NAMES = st.sampled_from(
    ["Accept", "Accept-Encoding", "Accept-Language", "Authorization", "Cache-Control", "Cookie", "Foo", "If-Match"]
    + ["If-Modified-Since", "If-None-Match", "If-Range", "If-Unmodified-Since", "Pragma", "Range", "User-Agent"]
)
RESPONSES = st.builds(
    Response,
    st.sampled_from([200, 200, 200, 206, 206, 304, 304, 404, 503, 301, 999]),
    st.lists(st.tuples(RESPONSE_NAMES, VALUES), max_size=8).map(Fields),
)
REQUESTS = st.builds(
    Request,
    st.sampled_from(["GET", "GET", "HEAD"]),
    st.sampled_from([URI, URI + "?sig=1&se=2&sp=3&sv=4", URI + "?sig=2&se=2&sp=3&sv=4"]),
    st.lists(st.tuples(REQUEST_NAMES, VALUES), max_size=5).map(Fields),
)
OPTIONS = st.builds(
    CacheOptions,
    shared=st.booleans(),
    mode=st.sampled_from([mode for mode in MODES if mode != "off"]),
    ttl=st.sampled_from([0.0, 60.0, inf]),
    stale_if_error=st.sampled_from([None, 0.0, 100.0]),
    targeted=st.sampled_from([(), ("X-Targeted",)]),
)
TIMES = st.floats(T - 100, T + 200)


def stored_of(request: Request, response: Response, options: CacheOptions, delay: float = 0) -> StoredResponse:
    return replace(stored_response(request, response, T - delay, T, options), body=BodyRef("x", 5))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(REQUESTS, RESPONSES), max_size=3), REQUESTS, RESPONSES, OPTIONS, TIMES)
def test_no_octets_raise(
    past: list[tuple[Request, Response]], request: Request, response: Response, options: CacheOptions, now: float
) -> None:
    responses: tuple[StoredResponse, ...] = ()
    for one, other in past:
        responses = merged(responses, stored_of(one, other, options), now)
    decision = select(request, responses, now, options)
    assert decision == select(request, responses, now, options)
    flight_key("0" * 64, request, responses)
    if isinstance(decision, Reuse):
        head, span = respond(request, decision.stored, now)
        assert span is None or 0 <= span[0] < span[1] <= 5
        assert head.fields.get("age") is not None
    candidates = decision.candidates if isinstance(decision, Ask) else responses
    sent = conditional(request, candidates)
    verdict = judge(request, sent, response, now, now + 1, candidates, options)
    assert verdict == judge(request, sent, response, now, now + 1, candidates, options)
    assert candidates or not isinstance(verdict, Refetch)
    assert not isinstance(verdict, Keep) or verdict.part or storable(request, response, options)
    if isinstance(verdict, Keep):
        assert not verdict.shareable or now + 1 < fresh_until(verdict.stored, options)
    assert judge_failure(request, candidates, now, options) in (None, *candidates)
    for stored in responses:
        explain(request, stored, now, options)
    invalidated(replace(request, method="POST"), response)
    assert not {"range", "if-none-match"} & {name.lower() for name, _ in unconditional(request).fields}


def states_a_lifetime(fields: Fields) -> bool:
    """Is there anything at all that could, with the best of wills, be read as one?"""
    given_ = (fields.get("cache-control") or "") + (fields.get("x-targeted") or "")
    dated = any(parsedate_tz(fields.get(name) or "") for name in ("expires", "last-modified"))
    return dated or re.search(r'(max-age|s-maxage)="?[0-9]', given_, re.IGNORECASE) is not None


@settings(max_examples=300, deadline=None)
@given(RESPONSES, OPTIONS, st.floats(0, 100))
def test_nothing_is_fresh_that_nobody_called_fresh(response: Response, options: CacheOptions, delay: float) -> None:
    stored = stored_of(Request("GET", URI), response, options, delay)
    if states_a_lifetime(stored.fields):
        return
    assert fresh_until(stored, options) <= T
    decision = select(Request("GET", URI), (stored,), T, replace(options, mode="default"))
    assert not isinstance(decision, Reuse) or (decision.ttl <= 0 and decision.validate_later)


@given(RESPONSES, st.floats(0, 100), TIMES, st.floats(0, 1e9))
def test_age_only_grows(response: Response, delay: float, now: float, later: float) -> None:
    stored = stored_of(Request("GET", URI), response, CacheOptions(), delay)
    assert 0 <= current_age(stored, now) <= current_age(stored, now + later)


@given(RESPONSES, OPTIONS, st.floats(0, 1e9), st.floats(0, 1e9))
def test_what_is_stale_stays_stale(response: Response, options: CacheOptions, age: float, later: float) -> None:
    stored = stored_of(Request("GET", URI), response, options)
    asked = Request("GET", URI)
    options = replace(options, mode="default")
    if isinstance(select(asked, (stored,), T + age, options), Ask):
        assert isinstance(select(asked, (stored,), T + age + later, options), Ask)


@given(RESPONSES, OPTIONS, TIMES)
def test_nothing_is_used_past_the_ttl(response: Response, options: CacheOptions, now: float) -> None:
    stored = stored_of(Request("GET", URI), response, options)
    used = select(Request("GET", URI), (stored,), now, options)
    assert not isinstance(used, Reuse) or now < T + options.ttl
