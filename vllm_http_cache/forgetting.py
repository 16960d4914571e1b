"""What this process knows to be gone.

An unsafe request may succeed, or somebody may call ``forget``, while an older request still waits for its head; what
then comes tells of a past that is to be gone (RFC 9111 section 4.4). And what is to be gone may still be there where
the storage cannot remove it: its folder is read-only, its server does not answer.
"""

from __future__ import annotations

import threading
from math import inf
from typing import NamedTuple

from .rfc9111.judging import MAX_VARIANTS
from .rfc9111.message import BodyRef, StoredResponse
from .storage.protocol import Record

__all__ = ["Forgotten"]

KEYS = 4096


class _Gone(NamedTuple):
    """Of one key: the moment and the time at which it was forgotten last, and what else must not answer."""

    moment: int
    time: float = -inf
    dropped: tuple[BodyRef | StoredResponse, ...] = ()

    def covers(self, stored: StoredResponse) -> bool:
        return stored.response_time < self.time or (stored.body or stored) in self.dropped


class Forgotten:
    """Moments are numbers that only grow. Of keys forgotten long ago nothing is known but that they may have been."""

    def __init__(self) -> None:
        self._gone: dict[str, _Gone] = {}
        self._earliest = 0  # until then any key may have been forgotten
        self.now = 0
        self.forked()

    def forked(self) -> None:
        """In a child process: another thread may have held the lock."""
        self._lock = threading.Lock()

    def note(self, key: str, time: float) -> None:
        """*key* is being forgotten now: all that the origin sent before *time*, in seconds since the epoch."""
        with self._lock:
            self.now += 1
            known = self._gone.pop(key, _Gone(self.now))
            self._put(key, known._replace(moment=self.now, time=max(time, known.time)))

    def drop(self, key: str, stored: BodyRef | StoredResponse) -> None:
        """One response of *key*, by its body if it has one, must not answer any more."""
        with self._lock:
            known = self._gone.pop(key, _Gone(self._earliest))
            self._put(key, known._replace(dropped=(stored, *known.dropped[: MAX_VARIANTS - 1])))

    def _put(self, key: str, gone: _Gone) -> None:
        self._gone[key] = gone
        if len(self._gone) > KEYS:
            self._earliest = max(self._earliest, self._gone.pop(next(iter(self._gone))).moment)

    def since(self, key: str, moment: int) -> bool:
        """May *key* have been forgotten after *moment*?"""
        with self._lock:
            known = self._gone.get(key)
            return (self._earliest if known is None else known.moment) > moment

    def remaining(self, key: str, record: Record | None) -> Record | None:
        """As much of what is on record for *key* as may still answer; the same object where that is all of it."""
        known = self._gone.get(key)
        if known is None or record is None:
            return record
        left = tuple(stored for stored in record.responses if not known.covers(stored))
        if len(left) == len(record.responses):
            return record
        return Record(left, record.generation) if left else None
