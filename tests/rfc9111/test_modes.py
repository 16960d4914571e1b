"""The Fetch standard's cache modes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vllm_http_cache.rfc9111.options import CacheOptions, Mode
from vllm_http_cache.rfc9111.selecting import Ask, Refuse, Reuse, select

from .make import T, date, get, kept
from .test_selecting import FRESH, ONE, SWR


@pytest.mark.parametrize(
    "mode, fresh, stale, nothing",
    [
        ("default", "reuse", "stale", "uri-miss"),
        ("no-store", "bypass", "bypass", "bypass"),
        ("reload", "request", "request", "request"),
        ("no-cache", "request", "stale", "uri-miss"),
        ("force-cache", "reuse", "reuse", "uri-miss"),
        ("only-if-cached", "reuse", "reuse", "refuse"),
    ],
)
def test_modes(mode: Mode, fresh: str, stale: str, nothing: str) -> None:
    options = CacheOptions(mode=mode)
    # Decision 15: an explicit mode of the operator's beats even must-revalidate.
    stored = kept("Cache-Control: max-age=60, must-revalidate, stale-while-revalidate=5")
    for responses, now, expected in (((stored,), T, fresh), ((stored,), T + 61, stale), ((), T, nothing)):
        decision = select(get(), responses, now, options)
        if expected == "reuse":
            assert decision == Reuse(stored, 60 if now == T else -1)
        elif expected == "refuse":
            assert decision == Refuse("only-if-cached")
        else:
            assert isinstance(decision, Ask) and decision.why == expected
            assert decision.candidates == (responses if mode in ("default", "no-cache") else ())
            assert decision.collapsible is (mode in ("default", "force-cache"))


@pytest.mark.parametrize("mode", ["force-cache", "only-if-cached"])
@pytest.mark.parametrize("line", ["Cache-Control: no-cache", "Cache-Control: max-age=0, no-store", 'If-Match: "2"'])
def test_modes_that_take_what_there_is_take_no_advice(mode: Mode, line: str) -> None:
    stored = kept("Cache-Control: no-cache")
    assert isinstance(select(get(line), (stored,), T + 61, CacheOptions(mode=mode)), Reuse)


def test_modes_that_take_what_there_is_keep_the_ttl() -> None:
    old, new = replace(kept(FRESH, ONE), confirmed=T - 60), kept(FRESH, f"Date: {date(-99)}", name="new")
    options = CacheOptions(mode="force-cache", ttl=30)
    assert select(get(), (old,), T, options) == Ask("stale", (old,))
    assert select(get(), (old,), T, replace(options, mode="only-if-cached")) == Refuse("only-if-cached")
    assert select(get(), (old, new), T, options) == Reuse(new, -39)


def test_stale_while_revalidate_needs_no_network_in_an_air_gap() -> None:
    assert select(get(), (SWR,), T + 61, CacheOptions(mode="only-if-cached")) == Reuse(SWR, -1)


@pytest.mark.parametrize("mode", ["default", "reload", "no-store", "no-cache", "force-cache", "only-if-cached"])
def test_only_if_cached_holds_in_every_mode(mode: Mode) -> None:
    local = get("Cache-Control: only-if-cached")
    assert select(local, (), T, CacheOptions(mode=mode)) == Refuse("only-if-cached")
    never = mode in ("reload", "no-store", "no-cache")
    decision = select(local, (kept(FRESH),), T, CacheOptions(mode=mode))
    assert decision == (Refuse("only-if-cached") if never else Reuse(kept(FRESH), 60))
