"""Choices that are none are refused, with what is allowed."""

from __future__ import annotations

import pytest

from vllm_http_cache.rfc9111.options import CacheOptions


@pytest.mark.parametrize(
    "choice, said",
    [
        ({"mode": "never"}, "mode='never' is not one of default, no-store, "),
        ({"heuristic_fraction": 0.2}, "between 0 and 0.1"),
        ({"heuristic_fraction": -0.1}, "between 0 and 0.1"),
        ({"ttl": -1.0}, "ttl=-1.0 is not a number of seconds"),
        ({"stale_if_error": float("nan")}, "stale_if_error=nan is not a number of seconds"),
    ],
)
def test_what_is_no_choice_is_refused(choice: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        CacheOptions(**choice)  # type: ignore[arg-type]


def test_the_bounds_are_choices() -> None:
    CacheOptions(heuristic_fraction=0.1, ttl=0, stale_if_error=0)
