"""What this process knows to be gone.

An unsafe request may succeed, or somebody may call ``forget``, while an older request still waits for its head or its
body; what then comes tells of a past that is to be gone (RFC 9111 section 4.4). And what is to be gone may still be
there where the storage cannot remove it: its folder is read-only, its server does not answer.
"""

from __future__ import annotations

import threading
from math import inf
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from .rfc9111.message import MAX_VARIANTS, BodyRef, StoredResponse
from .storage.protocol import Record

if TYPE_CHECKING:
    from .downloads import Download

__all__ = ["Forgotten"]

KEYS = 4096


class _Gone(NamedTuple):
    """Of one key: the moment and the time at which it was forgotten last, and what else must not answer."""

    moment: int = 0
    time: float = -inf
    dropped: tuple[BodyRef | StoredResponse, ...] = ()

    def covers(self, stored: StoredResponse) -> bool:
        return stored.response_time < self.time or (stored.body or stored) in self.dropped


class Forgotten:
    """Moments are numbers that only grow. Of keys forgotten long ago nothing is known but that they may have been."""

    def __init__(self) -> None:
        self._gone: dict[str, _Gone] = {}
        self._others = _Gone()  # of all other keys: the moment until which any of them may have been forgotten
        self.now = 0
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self.downloads: WeakKeyDictionary[Download, str] = WeakKeyDictionary()  # under way, or ended just now

    def forked(self) -> None:
        """In a child process: what is under way belongs to the parent, and another thread may have held the lock."""
        for download in self.downloads:
            download.forked()
        self._begin()

    def note(self, key: str | None, time: float) -> None:
        """*key* (None: every key) is being forgotten now: all that the origin sent before *time*.

        What of it is arriving is not kept. *time* is in seconds since the epoch.
        """
        with self._lock:
            self.now += 1
            if key is None:
                self._gone.clear()
                self._others = _Gone(self.now, max(time, self._others.time))
            else:
                known = self._gone.pop(key, self._others)
                self._put(key, known._replace(moment=self.now, time=max(time, known.time)))
        for reference in self.downloads.keyrefs():  # which other threads may change meanwhile
            download = reference()
            if download is not None and key in (None, self.downloads.get(download)):
                download.disown()

    def drop(self, key: str, stored: BodyRef | StoredResponse) -> None:
        """One response of *key*, by its body if it has one, must not answer any more."""
        with self._lock:
            known = self._gone.pop(key, self._others)
            self._put(key, known._replace(dropped=(stored, *known.dropped[: MAX_VARIANTS - 1])))

    def _put(self, key: str, gone: _Gone) -> None:
        self._gone[key] = gone
        if len(self._gone) > KEYS:
            oldest = self._gone.pop(next(iter(self._gone)))
            self._others = self._others._replace(moment=max(self._others.moment, oldest.moment))

    def since(self, key: str, moment: int) -> bool:
        """May *key* have been forgotten after *moment*?"""
        with self._lock:
            return self._gone.get(key, self._others).moment > moment

    def begun(self, key: str, download: Download, asked: int) -> None:
        """A download of *key*, which was asked for at the moment *asked*, has begun."""
        self.downloads[download] = key
        if self.since(key, asked):
            download.disown()

    def remaining(self, key: str, record: Record | None) -> Record | None:
        """As much of what is on record for *key* as may still answer; the same object where that is all of it."""
        if record is None or not (self._gone or self._others.moment):
            return record
        known = self._gone.get(key, self._others)
        left = tuple(stored for stored in record.responses if not known.covers(stored))
        if len(left) == len(record.responses):
            return record
        return Record(left, record.generation) if left else None
