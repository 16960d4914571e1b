"""What a storage raises becomes a warning, and an answer that goes on without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..troubles import Troubles

__all__ = ["FailOpen"]

T = TypeVar("T")


class FailOpen:
    """Turns what a storage raises into a warning and an answer that goes on without it."""

    def __init__(self, place: str) -> None:
        self._troubles = Troubles(place)

    def _attempt(self, doing: str, call: Callable[[], T], otherwise: T, *, wait: bool = True) -> T:
        """:raises BlockingIOError: with ``wait=False``, when *call* does."""
        try:
            return call()
        except Exception as error:
            if not wait and isinstance(error, BlockingIOError):
                raise
            cause = error if isinstance(error, OSError) else OSError(f"{type(error).__name__}: {error}")
            self._troubles.warn(doing, cause)
            return otherwise
