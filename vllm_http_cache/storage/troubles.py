"""What goes wrong with the disk: said once for each cause and interval, never raised."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .protocol import Observer

__all__ = ["Troubles"]

logger = logging.getLogger("vllm_http_cache.storage")

INTERVAL = 600.0  # seconds


class Troubles:
    """The warnings of one storage."""

    def __init__(self, place: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.observer: Observer | None = None
        self._place = place
        self._clock = clock
        self._said: dict[str, float] = {}

    def warn(self, doing: str, error: OSError) -> None:
        """Log that *doing* failed, unless the same cause was logged within the last ten minutes."""
        if self.observer is not None:
            self.observer.storage_failed(doing)
        if self._is_due(errno.errorcode.get(error.errno or 0, type(error).__name__)):
            logger.warning("vllm-http-cache in %s: %s failed, going on without: %s", self._place, doing, error)

    def tell(self, what: str) -> None:
        """Log what is no failure, and hardly meant, as seldom."""
        if self._is_due(what):
            logger.warning("vllm-http-cache in %s: %s", self._place, what)

    def _is_due(self, cause: str) -> bool:
        now = self._clock()
        due = now - self._said.get(cause, -INTERVAL) >= INTERVAL
        if due:
            self._said[cause] = now
        return due

    def within(self, doing: str) -> Within:
        """A context in which an OSError is a warning, and the end of what is being done."""
        return Within(self, doing)


class Within:
    __slots__ = ("_doing", "_troubles")

    def __init__(self, troubles: Troubles, doing: str) -> None:
        self._troubles = troubles
        self._doing = doing

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if not isinstance(error, OSError):
            return False
        self._troubles.warn(self._doing, error)
        return True
