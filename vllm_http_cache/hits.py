"""Fresh hits that no rule can refuse, without asking the rules again.

A memo of standing answers, one for each URI. It is a short cut only: what it answers is what an exchange would, and
whatever it is not sure of it leaves to one.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from .rfc9111.cachestatus import CacheStatus
from .rfc9111.memo import LONGEST
from .rfc9111.message import Fields, Request, Response
from .rfc9111.standing import Standing, is_plain, standing
from .rfc9111.target import cache_key
from .storage.protocol import BodyDamaged

if TYPE_CHECKING:
    from .forgetting import Forgotten
    from .rfc9111.message import BodyRef, StoredResponse
    from .rfc9111.options import CacheOptions
    from .storage.protocol import BodyReader, Record, Storage

__all__ = ["Hit", "Hits", "Look"]

URIS = 4096


class Hit(NamedTuple):
    """A stored response that answers, its head for the caller, and its open body."""

    key: str
    response: Response
    status: CacheStatus
    stored: StoredResponse
    ref: BodyRef
    reader: BodyReader


class Look(NamedTuple):
    """What was found on the way to a hit: what is on record (None: nothing), and the hit, if it is one."""

    record: Record | None
    hit: Hit | None


class _Memo:
    """What one record's standing answer is, if it has one, and its head as last given: it changes once a second."""

    __slots__ = ("_answer", "key", "plain", "record", "standing")

    def __init__(self, key: str, record: Record, stands: Standing | None) -> None:
        self.key = key
        self.record = record
        self.standing = stands
        self.plain: Request | None = None  # the last request that was seen to be
        self._answer: tuple[int, Response, CacheStatus] | None = None

    def answer(self, stands: Standing, now: float) -> tuple[Response, CacheStatus]:
        age, ttl = stands.age(now), stands.ttl(now)
        known = self._answer
        if known is not None and (known[0], known[2].ttl) == (age, ttl):
            return known[1:]
        response, status = stands.answer(age), CacheStatus(hit=True, ttl=ttl)
        response = replace(response, fields=Fields((*response.fields, ("Cache-Status", str(status)))))
        self._answer = age, response, status
        return response, status


class Hits:
    """The memo of one cache."""

    def __init__(
        self,
        storage: Storage,
        forgotten: Forgotten,
        options: CacheOptions,
        clock: Callable[[], float],
    ) -> None:
        self._storage = storage
        self._forgotten = forgotten
        self._options = options
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Forget all memos (in a forked child, whose parent may have held the lock)."""
        self._memos: dict[str, _Memo] = {}
        self._lock = threading.Lock()

    def look(self, request: Request, *, largest: float = math.inf, wait: bool = True) -> Look | None:
        """Look for a fresh hit. None: nothing was looked at, for a hit would need the rules.

        :param largest: octets of a content that would be a hit.
        :raises BlockingIOError: with ``wait=False``, when the storage would wait for the disk.
        """
        memo = self._memos.get(request.uri)
        if self._options.mode != "default" or ((memo is None or request != memo.plain) and not is_plain(request)):
            return None
        key = cache_key(request.uri, self._options) if memo is None else memo.key
        record = self._forgotten.remaining(key, self._storage.read(key, wait=wait))
        if record is None:
            return Look(None, None)
        if memo is None or record is not memo.record:
            memo = self._learn(request, key, record)
        memo.plain = request
        return Look(record, self._hit(memo, largest, wait=wait))

    def _hit(self, memo: _Memo, largest: float, *, wait: bool) -> Hit | None:
        now, stands = self._clock(), memo.standing
        if stands is None or (ref := stands.stored.body) is None or not stands.since <= now < stands.until:
            return None
        try:
            reader = self._storage.open_body(ref, wait=wait) if ref.length <= largest else None
        except BodyDamaged:  # an exchange will find out, and drop it
            return None
        return None if reader is None else Hit(memo.key, *memo.answer(stands, now), stands.stored, ref, reader)

    def _learn(self, request: Request, key: str, record: Record) -> _Memo:
        memo = _Memo(key, record, standing(request, record.responses, self._clock(), self._options))
        if len(request.uri) > LONGEST:
            return memo
        with self._lock:
            while len(self._memos) >= URIS:
                self._memos.pop(next(iter(self._memos)))
            self._memos[request.uri] = memo
        return memo
