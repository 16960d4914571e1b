"""What this process knows to be gone.

An unsafe request may succeed, or somebody may call ``forget``, while an older request still waits for its head or its
body; what then comes tells of a past that is to be gone (RFC 9111 section 4.4). And what is to be gone may still be
there where the storage cannot remove it, as in a folder that is read-only.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from .rfc9111.message import MAX_VARIANTS, BodyRef, StoredResponse
from .storage.protocol import Record

if TYPE_CHECKING:
    from .downloads import Download

__all__ = ["Forgotten"]

KEYS = 4096


class _Gone(NamedTuple):
    """Of one key: the moment at which it was forgotten last, and what must not answer, by its body if it has one."""

    moment: int = 0
    dropped: tuple[BodyRef | StoredResponse, ...] = ()


class Forgotten:
    """Moments are numbers that only grow. Of keys forgotten long ago nothing is known but that they may have been."""

    def __init__(self) -> None:
        self._gone: OrderedDict[str, _Gone] = OrderedDict()
        self._others = _Gone()  # of all other keys: the moment until which any of them may have been forgotten
        self.now = 0
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._downloads: WeakKeyDictionary[Download, str] = WeakKeyDictionary()  # under way, or ended just now

    def forked(self) -> None:
        """In a child process: what is under way belongs to the parent, and another thread may have held the lock."""
        for download in self._downloads:
            download.forked()
        self._begin()

    def note(self, key: str | None) -> None:
        """*key* (None: every key) is being forgotten now, and what of it is arriving is not kept."""
        with self._lock:
            self.now += 1
            if key is None:
                self._others = _Gone(self.now)
            for each in tuple(self._gone) if key is None else (key,):
                self._put(each, self._gone.get(each, self._others)._replace(moment=self.now))
        for download in self.under_way():
            if key in (None, self._downloads.get(download)):
                download.disown()

    def under_way(self) -> Iterator[Download]:
        """Downloads that have not ended, or just now."""
        for reference in self._downloads.keyrefs():  # which other threads may change meanwhile
            if (download := reference()) is not None:
                yield download

    def drop(self, key: str, stored: StoredResponse | BodyRef) -> None:
        """One response of *key* must not answer any more, even if it cannot be removed."""
        mark = stored if isinstance(stored, BodyRef) else stored.body or stored
        with self._lock:
            known = self._gone.get(key, self._others)
            self._put(key, known._replace(dropped=(mark, *known.dropped[: MAX_VARIANTS - 1])))

    def _put(self, key: str, gone: _Gone) -> None:
        self._gone[key] = gone  # in place: who reads it does not lock
        self._gone.move_to_end(key)
        if len(self._gone) > KEYS:
            _, oldest = self._gone.popitem(last=False)
            self._others = _Gone(max(self._others.moment, oldest.moment))

    def since(self, key: str, moment: int) -> bool:
        """May *key* have been forgotten after *moment*?"""
        with self._lock:
            return self._gone.get(key, self._others).moment > moment

    def begun(self, key: str, download: Download, asked: int) -> None:
        """A download of *key*, which was asked for at the moment *asked*, has begun."""
        self._downloads[download] = key
        if self.since(key, asked):
            download.disown()

    def hides(self, key: str, stored: StoredResponse) -> bool:
        """Whether it must not answer."""
        return (stored.body or stored) in self._gone.get(key, self._others).dropped

    def remaining(self, key: str, record: Record | None) -> Record | None:
        """As much of what is on record for *key* as may still answer; the same object where that is all of it."""
        if record is None or key not in self._gone:
            return record
        left = tuple(stored for stored in record.responses if not self.hides(key, stored))
        if len(left) == len(record.responses):
            return record
        return Record(left, record.generation) if left else None
