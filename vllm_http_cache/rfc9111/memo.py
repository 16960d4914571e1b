"""What was made of a text before, for texts that come again and again."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Concatenate, ParamSpec, TypeVar

__all__ = ["LONGEST", "memo"]

P = ParamSpec("P")
T = TypeVar("T")

LONGEST = 2048  # characters of a text that is remembered: whoever sends longer ones must not fill the memory with them


def memo(
    size: int,
) -> Callable[[Callable[Concatenate[str, P], T]], Callable[Concatenate[str, P], T]]:
    """Remember what a pure function of a text, its first argument, and of hashable others gave for the last *size*."""

    def remembering(function: Callable[Concatenate[str, P], T]) -> Callable[Concatenate[str, P], T]:
        remembered: Callable[..., T] = lru_cache(size)(function)

        @wraps(function)
        def called(text: str, /, *arguments: P.args, **named: P.kwargs) -> T:
            return (remembered if len(text) <= LONGEST else function)(text, *arguments, **named)

        return called

    return remembering
