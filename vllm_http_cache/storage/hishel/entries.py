"""hishel's entries in a storage of ours: what its adapters, synchronous and asynchronous, have in common."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import ClassVar
from uuid import UUID
from weakref import WeakValueDictionary

from hishel import Entry, Headers, Request, Response

from ...rfc9111.message import BodyRef, Fields, StoredResponse
from ..protocol import BodyDamaged, BodyReader, BodyWriter, Record, Storage
from .failing_open import FailOpen
from .translating import octets, to_fields, to_headers

__all__ = ["Arriving", "Entries", "Ticket", "streaming"]

SWAPS = 64  # attempts to change a record that others are changing too; each failure is somebody else's success
VARIANTS = 16  # entries of one of hishel's keys

# What a request says in these is no secret; any other field is taken for a credential.
_OPEN = frozenset(("accept", "accept-charset", "accept-encoding", "accept-language", "dnt", "origin", "user-agent"))
_LENGTH = re.compile(r"[0-9]{1,18}")  # more octets than that nobody has
_USERINFO = re.compile(r"[^:/?#]+://[^/?#]*@")


@dataclass(frozen=True, slots=True)
class Ticket:
    """What an entry of hishel's has and a stored response has no place for; kept first among the selecting fields."""

    id: str
    key: str  # a digest of hishel's
    method: str
    deadline: float | None
    tti: float | None
    returned: float  # when it last was, to half its tti

    NAME: ClassVar = ":hishel 1"  # no field can have this name

    def punched(self, stored: StoredResponse) -> StoredResponse:
        values = [self.id, self.key, self.method, self.deadline, self.tti, self.returned]
        others = (pair for pair in stored.selecting if pair[0] != self.NAME)
        return replace(stored, selecting=((self.NAME, json.dumps(values)), *others))

    @classmethod
    def of(cls, stored: StoredResponse) -> Ticket | None:
        """None: *stored* is no entry of hishel's."""
        for name, value in stored.selecting[:1]:
            if name == cls.NAME:
                return cls(*json.loads(value))
        return None

    def expired(self, now: float) -> bool:
        limits = (self.deadline, None if self.tti is None else self.returned + self.tti)
        return any(limit is not None and limit <= now for limit in limits)


class Entries(FailOpen):
    """hishel's entries in a storage of ours.

    hishel changes entries by their id alone. So the first half of an id is the first half of a digest of the entry's
    key and leads to the record; keys that share it share a record, and tickets keep them apart.
    """

    def __init__(self, storage: Storage, largest: int | None, clock: Callable[[], float]) -> None:
        super().__init__("hishel on our storage")
        self.storage = storage
        self.largest = largest
        self.clock = clock
        self._arriving: WeakValueDictionary[UUID, Arriving] = WeakValueDictionary()

    def find(self, key: str, *, wait: bool = True) -> list[tuple[Entry, BodyReader]]:
        """The key's entries whose bodies can be had, and these open. What has expired or is damaged goes.

        :raises BlockingIOError: with ``wait=False``, when they cannot be had at once.
        """
        return self._attempt("finding entries", partial(self._find, _digest(key), wait=wait), [], wait=wait)

    def _find(self, digest: bytes, *, wait: bool) -> list[tuple[Entry, BodyReader]]:
        record = self.storage.read(_record_key(digest), wait=wait)
        if record is None:
            return []
        now = self.clock()
        if any(_looked_at(stored, digest, now) != stored for stored in record.responses):
            if not wait:
                raise BlockingIOError
            self.change(digest, lambda stored: _looked_at(stored, digest, now))
        found = []
        with ExitStack() as opened:
            for stored in record.responses:
                ticket = Ticket.of(stored)
                if ticket is None or ticket.key != digest.hex() or ticket.expired(now) or stored.body is None:
                    continue
                try:
                    reader = self.storage.open_body(stored.body, wait=wait)
                except BodyDamaged as damage:
                    if not wait:
                        raise BlockingIOError from damage
                    self.edit(UUID(ticket.id), lambda _: None)
                    continue
                if reader is not None:
                    opened.callback(reader.close)
                    found.append((_entry(ticket, stored), reader))
            opened.pop_all()
        return found

    def arriving(
        self, request: Request, response: Response, key: str, deadline: float | None, tti: float | None
    ) -> Arriving:
        """An entry whose body is yet to come."""
        digest = _digest(key)
        id_ = UUID(bytes=digest[:8] + os.urandom(8))
        now = self.clock()
        values = ((name, request.headers.get(name)) for name in sorted(_vary_names(response.headers)))
        selecting = tuple(
            (name, octets(value) if name in _OPEN else id_.hex) for name, value in values if value is not None
        )
        stored = StoredResponse(
            request.url, response.status_code, to_fields(response.headers), selecting, now, now, now
        )
        ticket = Ticket(id_.hex, digest.hex(), request.method, deadline, tti, now)
        arriving = Arriving(self, id_, ticket.punched(stored), _length(request, response))
        self._arriving[id_] = arriving
        return arriving

    def edit(self, id_: UUID, change: Callable[[StoredResponse], StoredResponse | None]) -> None:
        """Change an entry, or remove it; nothing happens when there is none."""
        arriving = self._arriving.get(id_)
        if arriving is not None:
            arriving.edit(change)

        def changed(stored: StoredResponse) -> StoredResponse | None:
            ticket = Ticket.of(stored)
            return change(stored) if ticket and ticket.id == id_.hex else stored

        self._attempt("changing an entry", partial(self.change, id_.bytes, changed), None)

    def change(
        self,
        digest: bytes,
        change: Callable[[StoredResponse], StoredResponse | None] = lambda stored: stored,
        added: tuple[StoredResponse, ...] = (),
    ) -> None:
        """Change the stored responses that share a record, whoever else is changing them."""
        key = _record_key(digest)
        for _ in range(SWAPS):
            seen = self.storage.read(key)
            old = seen.responses if seen else ()
            new = (*added, *(changed for stored in old if (changed := change(stored)) is not None))[:VARIANTS]
            if new == old or self.storage.swap(key, seen, Record(new)):
                return
        self.storage.forget(key)  # what was to be removed must not stay

    def freshen(self, id_: UUID, headers: Headers) -> None:
        """Replace an entry's fields: the origin has confirmed it."""
        now = self.clock()

        def change(stored: StoredResponse) -> StoredResponse:
            # What the request said in a field that Vary names only now is not known: it matches nothing.
            unknown = _vary_names(headers) - _vary_names(to_headers(stored.fields))
            selecting = (*stored.selecting, *((name, id_.hex) for name in sorted(unknown)))
            return replace(
                stored,
                fields=to_fields(headers),
                selecting=selecting,
                request_time=now,
                response_time=now,
                confirmed=now,
            )

        self.edit(id_, change)


class Arriving:
    """An entry whose body is on its way into the storage.

    Any thread may give it up while another is at work: a task that is cancelled leaves its thread behind.
    """

    def __init__(self, entries: Entries, id_: UUID, stored: StoredResponse, length: int | None) -> None:
        self.id = id_
        self._entries = entries
        self._stored: StoredResponse | None = stored
        self._length = length
        self._written = 0
        self._writer: BodyWriter | None = None
        self._over = False
        self._working = threading.RLock()
        self._lock = threading.Lock()

    @property
    def saving(self) -> bool:
        return self._writer is not None

    def begin(self) -> None:
        stored = self._stored
        if stored is not None and self._fits(self._length or 0) and not _USERINFO.match(stored.uri):
            create = partial(self._entries.storage.create_body, _record_key(self.id.bytes), self._length)
            with self._working:
                if not self._over:
                    self._writer = self._entries._attempt("beginning a body", create, None)

    def _fits(self, size: int) -> bool:
        largest = self._entries.largest
        return largest is None or size <= largest

    def write(self, data: bytes) -> None:
        with self._working:
            self._written += len(data)
            writer = self._writer
            if writer is not None and not (
                self._fits(self._written)
                and self._entries._attempt("writing a body", partial(writer.write, data), otherwise=False)
            ):
                self.abort()

    def commit(self) -> None:
        """The body is whole: from now on the entry is found."""
        with self._working:
            if self._writer is not None and self._length in (None, self._written):
                ref = self._entries._attempt("keeping a body", self._writer.commit, None)
                if ref is not None:
                    self._entries._attempt("keeping an entry", partial(self._publish, ref), None)
            self.abort()

    def _publish(self, ref: BodyRef) -> None:
        with self._lock:
            stored, self._stored = self._stored, None
            ticket = stored and Ticket.of(stored)
            if stored and ticket:
                whole = replace(ticket, returned=self._entries.clock()).punched(replace(stored, body=ref))
                self._entries.change(self.id.bytes, added=(whole,))

    def abort(self) -> None:
        with self._working:
            self._over = True
            writer, self._writer = self._writer, None
            if writer is not None:
                self._entries._attempt("giving up a body", writer.abort, None)

    def edit(self, change: Callable[[StoredResponse], StoredResponse | None]) -> None:
        with self._lock:
            self._stored = self._stored and change(self._stored)


def _entry(ticket: Ticket, stored: StoredResponse) -> Entry:
    fields = Fields(pair for pair in stored.selecting if pair[0] != Ticket.NAME)
    return Entry(
        UUID(ticket.id),
        Request(ticket.method, stored.uri, to_headers(fields)),
        Response(stored.status, to_headers(stored.fields)),
    )


def streaming(entry: Entry, stream: Iterator[bytes] | AsyncIterator[bytes]) -> Entry:
    return replace(entry, response=replace(entry.response, stream=stream))


def _looked_at(stored: StoredResponse, digest: bytes, now: float) -> StoredResponse | None:
    """What a look-up leaves of a stored response: None when it has expired, now and then a later start of its tti."""
    ticket = Ticket.of(stored)
    if ticket is None:
        return stored
    if ticket.expired(now):
        return None
    if ticket.tti is not None and ticket.key == digest.hex() and now - ticket.returned >= ticket.tti / 2:
        return replace(ticket, returned=now).punched(stored)
    return stored


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogatepass")).digest()


def _record_key(digest: bytes) -> str:
    return sha256(b"hishel\n" + digest[:8]).hexdigest()


def _vary_names(headers: Headers) -> set[str]:
    return {name.strip().lower() for name in headers.get("vary", "").split(",")} - {"", "*"}


def _length(request: Request, response: Response) -> int | None:
    """The octets of the body, where the head says so (RFC 9112 section 6.3)."""
    if request.method.upper() == "HEAD" or response.status_code in (204, 304):
        return 0
    length = response.headers.get("content-length", "")
    return int(length) if _LENGTH.fullmatch(length) else None
