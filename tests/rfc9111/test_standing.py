"""An answer that stands is the one that the rules would give: the short cut is no way round them."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_http_cache.rfc9111.message import StoredResponse
from vllm_http_cache.rfc9111.options import CacheOptions
from vllm_http_cache.rfc9111.responding import respond
from vllm_http_cache.rfc9111.selecting import Reuse, select
from vllm_http_cache.rfc9111.standing import is_plain, standing

from .make import SHARED, T, date, get, head, kept, part

FRESH = "Cache-Control: max-age=60"


def test_a_standing_answer() -> None:
    stored = kept(FRESH, "Age: 5", "A: 1", delay=2)
    found = standing(get("Foo: 1"), (stored,), T + 3, SHARED)
    assert found is not None
    assert (found.stored, found.since, found.until) == (stored, T, T + 53)
    assert (found.age(T), found.age(T + 3.9), found.ttl(T + 3), found.ttl(T + 3.1)) == (7, 10, 50, 49)
    assert sorted(found.answer(10).fields) == sorted(respond(get(), stored, T + 3.9)[0].fields)


@pytest.mark.parametrize(
    "line",
    ["Authorization: x", "Cache-Control: x", "Content-Length: 1", "If-Match: x", "If-Modified-Since: x", "Range: x"]
    + ["If-None-Match: x", "If-Range: x", "If-Unmodified-Since: x", "PRAGMA: x", "Transfer-Encoding: x", "Host: other"],
)
def test_requests_that_are_not_plain(line: str) -> None:
    assert not is_plain(get("Foo: 1", line))
    assert standing(get(line), (kept(FRESH),), T, SHARED) is None


def test_plain_requests() -> None:
    assert is_plain(get()) and is_plain(get("Foo: 1", "Accept: x", "Cookie: a", "Host: example.test"))
    assert not is_plain(head()) and not is_plain(get(method="POST"))


@pytest.mark.parametrize(
    "responses, now",
    [
        ((), T),
        ((kept(FRESH), kept(FRESH, "Vary: Foo")), T),
        ((kept(FRESH, "Vary: Foo"),), T),
        ((kept(FRESH, "Content-Encoding: gzip"),), T),
        ((part("0-4/10", FRESH),), T),
        ((kept(FRESH),), T + 60),
        ((kept(FRESH),), T - 1),
        ((kept("Cache-Control: max-age=60, stale-while-revalidate=60"),), T + 61),
    ],
)
def test_what_does_not_stand(responses: tuple[StoredResponse, ...], now: float) -> None:
    assert standing(get(), responses, now, SHARED) is None


def test_only_the_default_mode_has_standing_answers() -> None:
    for mode in ("no-store", "reload", "no-cache", "force-cache", "only-if-cached"):
        assert standing(get(), (kept(FRESH),), T, CacheOptions(mode=mode)) is None


def test_the_ttl_ends_a_standing_answer() -> None:
    found = standing(get(), (kept(FRESH, f"Date: {date(-5)}"),), T, CacheOptions(ttl=30))
    assert found is not None and found.until == T + 30


LINES = st.lists(
    st.sampled_from(
        ["Age: 5", "Age: x", 'ETag: "1"', f"Last-Modified: {date(-900)}", "Content-Length: 5", "Connection: a"]
    )
    | st.sampled_from(["A: 1", f"Date: {date(-9)}", "Date: x", f"Expires: {date(40)}", "Cache-Control: max-age=60"])
)
PLAIN = st.lists(
    st.sampled_from(["Foo: 1", "Accept: a, b", "Cookie: c", "Accept-Encoding: br", "Host: example.test"]), unique=True
)


@given(LINES, PLAIN, PLAIN, st.booleans(), st.sampled_from([20.0, inf]), st.floats(0, 50), st.floats(0, 50))
def test_it_says_what_the_rules_say(
    lines: list[str], first: list[str], second: list[str], shared: bool, ttl: float, now: float, later: float
) -> None:
    options = CacheOptions(shared=shared, ttl=ttl)
    stored = kept(*lines, length=5, delay=1, options=options)
    found = standing(get(*first), (stored,), T + now, options)
    assert (found is not None) is isinstance(select(get(), (stored,), T + now, options), Reuse)
    at = T + later
    if found is not None and found.since <= at < found.until:
        assert select(get(*second), (stored,), at, options) == Reuse(stored, found.ttl(at))
        told = respond(get(*second), stored, at)[0]
        assert sorted(found.answer(found.age(at)).fields) == sorted(told.fields)
        assert found.answer(0).status == told.status and found.answer(0).reason == told.reason
