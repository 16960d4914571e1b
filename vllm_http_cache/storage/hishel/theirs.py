"""hishel's synchronous storages under our cache."""

from __future__ import annotations

import base64
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from errno import ETIMEDOUT
from functools import partial
from math import inf
from typing import TypeVar, cast

from hishel import BaseStorage, Entry, Headers, Request, Response

from ...rfc9111.message import BodyRef, StoredResponse
from .. import records
from ..claims import NoClaim
from ..devices import Descriptor
from ..protocol import BodyDamaged, BodyReader, BodyUnreadable, BodyWriter, Observer, Record, Stat
from ..sweep import SKEW
from .failing_open import FailOpen
from .passing import EntryReader, TemporaryWriter

__all__ = ["HishelStorage"]

T = TypeVar("T")

DAY = 86_400.0
EVER = 3650 * DAY  # hishel cannot be told "for ever" where a storage of its own has a default
SLOW, REST = 1.0, 10.0  # seconds that reading or changing a record may take; otherwise hishel is left alone so long
MOST_DOOMED = 4096
GRACE = 600.0  # seconds after which a body without a record is taken for abandoned

_RECORD = "record"
_WRITTEN = "written"  # when a body came that has no record yet


class HishelStorage(FailOpen):
    """A synchronous storage of hishel's (SQLite, Redis) under our cache: an entry of hishel's for each stored response.

    A body goes to an unnamed temporary file first, from which its followers read, and to hishel when it is whole. Until
    then it costs its size in ``$TMPDIR``, and the last octets wait for the copy. Memory is a few MiB a body.

    What is lost, beside :class:`~.files.FileStorage`:

    - Replacing is atomic among the threads that share one object. Of two processes that change a key at once, one may
      lose its change, or what one replaced stays beside the new; and a reader may see a key in the midst of a change.
      Each response is whole and has its own body in any case.
    - hishel counts its ttl from the download, so that a validation does not prolong a response's stay: it is downloaded
      again ``ttl`` seconds after it was.
    - The bound and recency are hishel's: SQLite's ``max_size``, against which removed bodies count for some minutes,
      Redis' ``maxmemory``.
    - :meth:`scan` raises :class:`NotImplementedError`, for hishel does not list.
    - Processes that want the same at once each download it: there are no claims and no growing bodies among them.
    - A removed or evicted body stays readable for hishel's ``soft_delete_ttl``; after :meth:`close` no body is.
    - Reading at an offset reads what lies before it; reading backwards starts again.
    - A forked child finds and stores nothing, since SQLite's connections do not survive a fork.
    - hishel logs its own failures, each of them. When it takes a second or more to read or change a record, nothing is
      read, stored or removed for ten seconds, so that not every request waits for it. What was to be removed meanwhile
      goes before the key is read again.
    - An observer is told of failures alone: hishel does not say what it evicts, nor what it holds.

    :param hishel_storage: closed with this one; transports of hishel's may share it until then.
    :param ttl: seconds after the origin last sent or confirmed a response, when it goes; ``inf`` keeps. Given to hishel
        in place of its storage's ``default_ttl``; its ``default_tti`` holds as well.
    :param clock: seconds since the epoch.
    """

    def __init__(
        self, hishel_storage: BaseStorage, *, ttl: float = DAY, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(f"hishel's {type(hishel_storage).__name__}")
        self.ttl = ttl
        self._hishel = hishel_storage
        self._clock = clock
        limits = (hishel_storage.max_stream_size, getattr(hishel_storage, "max_size", None))
        self._largest = min((limit for limit in limits if limit is not None), default=None)
        self._locks = tuple(threading.Lock() for _ in range(64))
        self._pid: int | None = os.getpid()  # None: closed
        self._timer: Callable[[], float] = time.monotonic
        self._rests_until = -inf
        self._doomed: dict[str, object] = {}  # what was to be removed, and may still be there: by key, the last wish

    @property
    def _usable(self) -> bool:
        return self._pid == os.getpid()

    def _attempt(self, doing: str, call: Callable[[], T], otherwise: T, *, wait: bool = True) -> T:
        if self._usable:
            return super()._attempt(doing, call, otherwise, wait=wait)
        if self._pid is not None:
            self._troubles.warn(doing, OSError("this process is a fork of the one that made the storage"))
        return otherwise

    def _promptly(self, doing: str, call: Callable[[], T], otherwise: T) -> T:
        """What should take no time. When it does, others need not wait as long: a server is down, a file is locked."""
        began = self._timer()
        if began < self._rests_until:
            return otherwise
        try:
            return self._attempt(doing, call, otherwise)
        finally:
            ended = self._timer()
            if ended - began >= SLOW:
                self._rests_until = ended + REST
                self._troubles.warn(
                    doing, TimeoutError(ETIMEDOUT, f"it took {ended - began:.1f} s; not again for {REST:.0f} s")
                )

    def _lock(self, key: str) -> threading.Lock:
        return self._locks[int(key[:2], 16) % len(self._locks)]

    def observe(self, observer: Observer | None) -> None:
        self._troubles.observer = observer

    def read(self, key: str, *, wait: bool = True) -> Record | None:
        if not wait:
            raise BlockingIOError
        return self._promptly("reading a record", lambda: self._read(key), None)

    def _read(self, key: str) -> Record | None:
        if not self._remove(key):
            return None
        responses = self._live(self._found(key))
        return Record(responses) if responses else None

    def _found(self, key: str) -> list[tuple[Entry, StoredResponse | None]]:
        """hishel's entries for *key*. Without a response: a body that has no record yet, or damage."""
        return [(entry, _recorded(key, entry)) for entry in self._hishel.get_entries(_place(key))]

    def _live(self, found: Iterable[tuple[Entry, StoredResponse | None]]) -> tuple[StoredResponse, ...]:
        now = self._clock()
        live = [stored for _, stored in found if stored and now - self.ttl <= stored.confirmed <= now + SKEW]
        return tuple(sorted(live, key=lambda stored: stored.response_time, reverse=True))

    def swap(self, key: str, seen: Record | None, record: Record) -> bool:
        return self._promptly("keeping a record", lambda: self._swap(key, seen, record), otherwise=True)

    def _swap(self, key: str, seen: Record | None, record: Record) -> bool:
        if not self._remove(key):
            return True
        with self._lock(key):
            found = self._found(key)
            live = self._live(found)
            if set(live) != set(seen.responses if seen else ()):
                return False
            kept = set()
            for stored in record.responses:
                entry = next((entry for entry, old in found if old == stored or _is_home(key, entry, stored)), None)
                put = partial(self._put, key, entry, stored)
                if (stored in live or self._attempt("keeping a response", put, otherwise=False)) and entry is not None:
                    kept.add(entry.id)
            for entry, old in found:
                if entry.id not in kept and (old is not None or self._is_abandoned(entry)):
                    self._hishel.remove_entry(entry.id)
        return True

    def _put(self, key: str, entry: Entry | None, stored: StoredResponse) -> bool:
        headers = Headers({_RECORD: base64.b64encode(records.encode(key, (stored,))).decode()})
        if entry is not None:
            self._hishel.update_headers(entry.id, headers)
        elif stored.body is None:
            self._create(key, headers, iter(()))
        return True

    def _is_abandoned(self, entry: Entry) -> bool:
        try:
            return self._clock() - float(entry.response.headers[_WRITTEN]) > GRACE
        except (KeyError, ValueError):
            return True

    def _create(self, key: str, headers: Headers, body: Iterator[bytes]) -> Entry:
        place = _place(key)
        entry = self._hishel.create_entry(
            Request("GET", place), Response(200, headers, body), place, ttl=min(self.ttl, EVER)
        )
        for _ in cast("Iterator[bytes]", entry.response.stream):
            pass
        return entry

    def forget(self, key: str) -> None:
        self._doomed[key] = object()
        with suppress(RuntimeError, StopIteration):  # other threads change it too
            while len(self._doomed) > MOST_DOOMED:
                self._doomed.pop(next(iter(self._doomed)), None)
        self._promptly("removing a record", partial(self._remove, key), otherwise=False)

    def _remove(self, key: str) -> bool:
        """Whether nothing that was to be removed is there, as far as hishel says, which hides its failures."""
        wish = self._doomed.get(key)
        if wish is not None:
            began = self._timer()
            with self._lock(key):
                for entry in self._hishel.get_entries(_place(key)):
                    self._hishel.remove_entry(entry.id)
            if self._timer() - began < SLOW and self._doomed.get(key) is wish:  # otherwise there is more to remove
                self._doomed.pop(key, None)
        return key not in self._doomed

    def create_body(self, key: str, length: int | None) -> BodyWriter | None:
        if self._timer() < self._rests_until or (length is not None and not self._has_room(length)):
            return None
        return self._attempt("beginning a body", lambda: TemporaryWriter(self, key, length, _unnamed_file()), None)

    def _has_room(self, size: int) -> bool:
        return self._largest is None or size <= self._largest

    def _keep_body(self, key: str, body: Iterator[bytes]) -> str | None:
        """Hand a body to hishel; its name, None when it was not kept."""
        with self._lock(key):  # of entries that come to a key at once, hishel on Redis keeps one
            entry = self._create(key, Headers({_WRITTEN: repr(self._clock())}), body)
        # hishel does not say whether it kept it.
        kept = any(found.id == entry.id for found in self._hishel.get_entries(_place(key)))
        return _name(key, entry) if kept else None

    def open_body(self, ref: BodyRef, *, wait: bool = True) -> BodyReader | None:
        if not wait:
            raise BlockingIOError
        opened = self._attempt("opening a body", lambda: self._open_body(ref), None)
        if isinstance(opened, BodyDamaged):
            raise opened
        return opened

    def _open_body(self, ref: BodyRef) -> BodyReader | BodyDamaged | None:
        try:
            return EntryReader(self, ref)
        except BodyDamaged as damage:
            return damage
        except BodyUnreadable:
            return None

    def _chunks(self, ref: BodyRef) -> Iterator[bytes]:
        """A body as hishel gives it.

        :raises BodyUnreadable: there is none: it is gone, and its record with it, or hishel could not read it.
        """
        key = ref.name[:64]
        for entry in self._hishel.get_entries(_place(key)):
            if _name(key, entry) == ref.name:
                return cast("Iterator[bytes]", entry.response.stream)
        raise BodyUnreadable(f"{ref.name} is not there")

    @property
    def remote(self) -> bool:
        return False  # there are no claims

    def claim(self, flight: str) -> NoClaim:
        return NoClaim()

    def growing(self, flight: str) -> None:
        return None

    def scan(self) -> Iterator[Stat]:
        raise NotImplementedError(f"hishel's {type(self._hishel).__name__} cannot list what it holds")

    def close(self) -> None:
        self._attempt("closing", self._hishel.close, None)
        self._pid = None


def _place(key: str) -> str:
    return f"vllm-http-cache:1:{key}"


def _name(key: str, entry: Entry) -> str:
    return f"{key}.{entry.id.hex[:16]}"


def _is_home(key: str, entry: Entry, stored: StoredResponse) -> bool:
    """Is this the entry that has the body?"""
    return stored.body is not None and stored.body.name == _name(key, entry)


def _recorded(key: str, entry: Entry) -> StoredResponse | None:
    try:
        responses = records.decode(base64.b64decode(entry.response.headers[_RECORD], validate=True), key)
    except (KeyError, ValueError):
        return None
    if responses is None or len(responses) != 1:
        return None
    return responses[0] if responses[0].body is None or _is_home(key, entry, responses[0]) else None


def _unnamed_file() -> Descriptor:
    with tempfile.TemporaryFile() as file:
        return Descriptor(os.dup(file.fileno()))
