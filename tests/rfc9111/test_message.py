"""Field lines and options: the values that all rules read."""

from __future__ import annotations

from math import inf, nan

import pytest

from vllm_http_cache.rfc9111.message import Fields
from vllm_http_cache.rfc9111.options import MODES, CacheOptions

LINES = (("A", "1"), ("b", "2"), ("a", "3"))


def test_fields_are_found_in_any_case_and_keep_their_spelling_and_order() -> None:
    found = Fields(LINES)
    assert found.get_all("a") == ("1", "3") and found.get("a") == "1, 3" and found.get("b") == "2"
    assert found.get("c") is None and found.get_all("c") == ()
    assert "a" in found and "c" not in found
    assert tuple(found) == LINES and len(found) == 3


def test_fields_are_values() -> None:
    assert Fields(LINES) == Fields(iter(LINES)) and hash(Fields(LINES)) == hash(Fields(LINES))
    assert Fields(LINES) != Fields(LINES[:2]) and Fields() != ()
    assert repr(Fields(LINES[:1])) == "Fields([('A', '1')])"


def test_fields_are_removed_and_replaced() -> None:
    assert Fields(LINES).without(("a",)) == Fields(LINES[1:2])
    assert Fields(LINES).replaced(("A", "4"), ("C", "5")) == Fields([("b", "2"), ("A", "4"), ("C", "5")])


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("mode", "faster", "mode='faster' is not one of default, no-store, reload, no-cache, force-cache, only-if-"),
        ("heuristic_fraction", 0.11, "heuristic_fraction=0.11 is not between 0 and 0.1"),
        ("heuristic_fraction", -0.01, "heuristic_fraction=-0.01 is not between 0 and 0.1"),
        ("ttl", -1.0, "ttl=-1.0 is not a number of seconds, 0 or more"),
        ("ttl", nan, "ttl=nan is not a number of seconds, 0 or more"),
        ("stale_if_error", -0.1, "stale_if_error=-0.1 is not a number of seconds, 0 or more"),
    ],
)
def test_options_out_of_bounds(name: str, value: object, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        CacheOptions(**{name: value})  # type: ignore[arg-type]
    assert str(caught.value).startswith(words)


def test_options_at_their_bounds() -> None:
    for fraction in (0, 0.1):
        assert CacheOptions(heuristic_fraction=fraction).heuristic_fraction == fraction
    assert CacheOptions(ttl=0, stale_if_error=0).ttl == 0
    assert CacheOptions(ttl=inf, stale_if_error=inf).stale_if_error == inf
    assert len(MODES) == 7
