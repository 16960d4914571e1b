"""What was forgotten while requests were under way: an answer that was asked for before is not kept after.

An unsafe request may succeed, or somebody may call ``forget``, while an older request still waits for its head; what
then comes tells of a past that is to be gone (RFC 9111 section 4.4).
"""

from __future__ import annotations

import threading

__all__ = ["Forgotten"]

KEYS = 4096


class Forgotten:
    """Moments are numbers that only grow. Of keys forgotten long ago nothing is known but that they may have been."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._lock = threading.Lock()
        self._moments: dict[str, int] = {}
        self._earliest = 0  # until then any key may have been forgotten
        self.now = 0

    def note(self, key: str) -> None:
        """*key* is being forgotten now."""
        with self._lock:
            self.now += 1
            self._moments.pop(key, None)
            self._moments[key] = self.now
            if len(self._moments) > KEYS:
                self._earliest = self._moments.pop(next(iter(self._moments)))

    def since(self, key: str, moment: int) -> bool:
        """May *key* have been forgotten after *moment*?"""
        with self._lock:
            return self._moments.get(key, self._earliest) > moment
