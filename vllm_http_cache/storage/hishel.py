"""hishel 2 and this package, either under the other. Needs the extra ``vllm-http-cache[hishel]``.

:func:`as_hishel` and :func:`as_hishel_async` put a storage of ours under hishel's own transports:

    httpx.Client(transport=hishel.httpx.CacheTransport(httpx.HTTPTransport(), as_hishel(FileStorage(path))))

:class:`HishelStorage` puts a synchronous storage of hishel's under our cache:

    Cache(HishelStorage(hishel.SqliteStorage(database_path=path)))

What is lost on each way stands with each of them.
"""

from __future__ import annotations

import base64
import json
import os
import re
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import IO, ClassVar, TypeVar, cast
from uuid import UUID
from weakref import WeakValueDictionary

import anyio
from anyio.to_thread import run_sync as in_thread
from xxhash import xxh3_64_digest

try:
    from hishel import AsyncBaseStorage, BaseStorage, Entry, Headers, Request, Response
except ImportError as error:
    raise ImportError("vllm_http_cache.storage.hishel needs hishel 2: pip install vllm-http-cache[hishel]") from error

from ..rfc9111.message import BodyRef, Fields, StoredResponse
from . import records
from .claims import NoClaim
from .protocol import BodyDamaged, BodyReader, BodyWriter, Record, Stat, Storage
from .sweep import SKEW
from .troubles import Troubles

__all__ = ["HishelStorage", "as_hishel", "as_hishel_async"]

T = TypeVar("T")

CHUNK = 256 * 1024  # octets read at once; octets that an asynchronous caller writes at once
SWAPS = 64  # attempts to change a record that others are changing too; each failure is somebody else's success
VARIANTS = 16  # entries of one of hishel's keys


class _FailOpen:
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


# Ours under hishel.

# What a request says in these is no secret; any other field is taken for a credential.
_OPEN = frozenset(("accept", "accept-charset", "accept-encoding", "accept-language", "dnt", "origin", "user-agent"))
_USERINFO = re.compile(r"[^:/?#]+://[^/?#]*@")


def as_hishel(
    storage: Storage,
    *,
    default_ttl: float | None = None,
    default_tti: float | None = None,
    max_stream_size: int | None = None,
    clock: Callable[[], float] = time.time,
) -> BaseStorage:
    """*storage*, with its bound, its checks and its recency, under hishel's synchronous transports and adapters.

    hishel's contract holds: entries of several variants, ``ttl`` and ``tti``, removal while an entry is being written,
    streams that save as they are read, and give all of a body or raise (:class:`~.protocol.BodyDamaged`).

    What is lost, or different from hishel's own storages:

    - The *storage*'s ``ttl`` holds besides hishel's. A validation renews the former and, as hishel wants it, not the
      latter.
    - Of a request, only the fields that Vary names are kept, and their values only where they cannot be credentials:
      what varies by another field is validated for each request that has that field.
    - Not kept at all: what has a user name or password in its URL, what is not as long as its Content-Length, and of
      one key more than 16 entries.
    - An entry that has expired takes up room until it is looked for, evicted, or past the *storage*'s ``ttl``.
    - hishel downloads once for each request that misses, also when they come at once.

    :param default_ttl: seconds after its creation when an entry expires, unless hishel says otherwise.
    :param default_tti: seconds after it was last returned when an entry expires, unless hishel says otherwise.
    :param max_stream_size: octets of the largest body that is kept.
    :param clock: seconds since the epoch.
    :returns: a storage for any number of transports. Closing it, or as hishel has it one of them, closes *storage*.
    """
    return _SyncAdapter(_Entries(storage, max_stream_size, clock), default_ttl, default_tti)


def as_hishel_async(
    storage: Storage,
    *,
    default_ttl: float | None = None,
    default_tti: float | None = None,
    max_stream_size: int | None = None,
    clock: Callable[[], float] = time.time,
) -> AsyncBaseStorage:
    """:func:`as_hishel` for hishel's asynchronous transports, on asyncio and trio.

    What *storage* has at hand is given at once, all else is done in threads. Of each body that arrives, up to 256 KiB
    wait in memory.
    """
    return _AsyncAdapter(_Entries(storage, max_stream_size, clock), default_ttl, default_tti)


@dataclass(frozen=True, slots=True)
class _Ticket:
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
    def of(cls, stored: StoredResponse) -> _Ticket | None:
        """None: *stored* is no entry of hishel's."""
        for name, value in stored.selecting[:1]:
            if name == cls.NAME:
                return cls(*json.loads(value))
        return None

    def expired(self, now: float) -> bool:
        limits = (self.deadline, None if self.tti is None else self.returned + self.tti)
        return any(limit is not None and limit <= now for limit in limits)


class _Entries(_FailOpen):
    """hishel's entries in a storage of ours.

    hishel changes entries by their id alone. So the first half of an id is the first half of a digest of the entry's
    key and leads to the record; keys that share it share a record, and tickets keep them apart.
    """

    def __init__(self, storage: Storage, largest: int | None, clock: Callable[[], float]) -> None:
        super().__init__("hishel on our storage")
        self.storage = storage
        self.largest = largest
        self.clock = clock
        self._arriving: WeakValueDictionary[UUID, _Arriving] = WeakValueDictionary()

    def find(self, key: str, *, wait: bool = True) -> list[tuple[Entry, BodyReader]]:
        """The key's entries, their bodies open. What has expired or is damaged goes.

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
                ticket = _Ticket.of(stored)
                if ticket is None or ticket.key != digest.hex() or ticket.expired(now) or stored.body is None:
                    continue
                reader = self.storage.open_body(stored.body, wait=wait)
                if reader is not None:
                    opened.callback(reader.close)
                    found.append((_entry(ticket, stored), reader))
                elif wait:
                    self.edit(UUID(ticket.id), lambda _: None)
                else:
                    raise BlockingIOError
            opened.pop_all()
        return found

    def arriving(
        self, request: Request, response: Response, key: str, deadline: float | None, tti: float | None
    ) -> _Arriving:
        """An entry whose body is yet to come."""
        digest = _digest(key)
        id_ = UUID(bytes=digest[:8] + os.urandom(8))
        now = self.clock()
        values = ((name, request.headers.get(name)) for name in sorted(_vary_names(response.headers)))
        selecting = tuple(
            (name, _octets(value) if name in _OPEN else id_.hex) for name, value in values if value is not None
        )
        stored = StoredResponse(request.url, response.status_code, _fields(response.headers), selecting, now, now, now)
        ticket = _Ticket(id_.hex, digest.hex(), request.method, deadline, tti, now)
        arriving = _Arriving(self, id_, ticket.punched(stored), _length(request, response))
        self._arriving[id_] = arriving
        return arriving

    def edit(self, id_: UUID, change: Callable[[StoredResponse], StoredResponse | None]) -> None:
        """Change an entry, or remove it; nothing happens when there is none."""
        arriving = self._arriving.get(id_)
        if arriving is not None:
            arriving.edit(change)

        def changed(stored: StoredResponse) -> StoredResponse | None:
            ticket = _Ticket.of(stored)
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
            unknown = _vary_names(headers) - _vary_names(_headers(stored.fields))
            selecting = (*stored.selecting, *((name, id_.hex) for name in sorted(unknown)))
            return replace(
                stored, fields=_fields(headers), selecting=selecting, request_time=now, response_time=now, confirmed=now
            )

        self.edit(id_, change)


class _Arriving:
    """An entry whose body is on its way into the storage. One thread at a time uses it, but for :meth:`edit`."""

    def __init__(self, entries: _Entries, id_: UUID, stored: StoredResponse, length: int | None) -> None:
        self.id = id_
        self._entries = entries
        self._stored: StoredResponse | None = stored
        self._length = length
        self._written = 0
        self._writer: BodyWriter | None = None
        self._lock = threading.Lock()

    @property
    def saving(self) -> bool:
        return self._writer is not None

    def begin(self) -> None:
        stored = self._stored
        if stored is not None and self._fits(self._length or 0) and not _USERINFO.match(stored.uri):
            create = partial(self._entries.storage.create_body, _record_key(self.id.bytes), self._length)
            self._writer = self._entries._attempt("beginning a body", create, None)

    def _fits(self, size: int) -> bool:
        largest = self._entries.largest
        return largest is None or size <= largest

    def write(self, data: bytes) -> None:
        self._written += len(data)
        writer = self._writer
        if writer is not None and not (
            self._fits(self._written)
            and self._entries._attempt("writing a body", partial(writer.write, data), otherwise=False)
        ):
            self.abort()

    def commit(self) -> None:
        """The body is whole: from now on the entry is found."""
        if self._writer is not None and self._length in (None, self._written):
            ref = self._entries._attempt("keeping a body", self._writer.commit, None)
            if ref is not None:
                self._entries._attempt("keeping an entry", partial(self._publish, ref), None)
        self.abort()

    def _publish(self, ref: BodyRef) -> None:
        with self._lock:
            stored, self._stored = self._stored, None
            ticket = stored and _Ticket.of(stored)
            if stored and ticket:
                whole = replace(ticket, returned=self._entries.clock()).punched(replace(stored, body=ref))
                self._entries.change(self.id.bytes, added=(whole,))

    def abort(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            self._entries._attempt("giving up a body", writer.abort, None)

    def edit(self, change: Callable[[StoredResponse], StoredResponse | None]) -> None:
        with self._lock:
            self._stored = self._stored and change(self._stored)


class _SyncAdapter(BaseStorage):
    def __init__(self, entries: _Entries, default_ttl: float | None, default_tti: float | None) -> None:
        super().__init__(default_ttl=default_ttl, default_tti=default_tti, max_stream_size=entries.largest)
        self._entries = entries

    def create_entry(
        self, request: Request, response: Response, key: str, *, ttl: float | None = None, tti: float | None = None
    ) -> Entry:
        arriving = self._entries.arriving(request, response, key, *self._limits(ttl, tti, self._entries.clock()))
        body = cast("Iterable[bytes]", response.stream or ())
        return Entry(arriving.id, request, replace(response, stream=self._save(body, arriving)))

    def _save(self, body: Iterable[bytes], arriving: _Arriving) -> Iterator[bytes]:
        arriving.begin()
        try:
            for chunk in body:
                arriving.write(chunk)
                yield chunk
            arriving.commit()
        finally:
            arriving.abort()

    def get_entries(self, key: str) -> list[Entry]:
        found = self._entries.find(key)
        return [_streaming(entry, self._deliver(entry.id, reader)) for entry, reader in found]

    def _deliver(self, id_: UUID, reader: BodyReader) -> Iterator[bytes]:
        offset = 0
        try:
            while data := reader.read(offset, CHUNK):
                offset += len(data)
                yield data
        except BodyDamaged:
            self.remove_entry(id_)
            raise
        finally:
            reader.close()

    def update_headers(self, id: UUID, headers: Headers) -> None:  # noqa: A002
        self._entries.freshen(id, headers)

    def remove_entry(self, id: UUID) -> None:  # noqa: A002
        self._entries.edit(id, lambda _: None)

    def close(self) -> None:
        self._entries.storage.close()


class _AsyncAdapter(AsyncBaseStorage):
    def __init__(self, entries: _Entries, default_ttl: float | None, default_tti: float | None) -> None:
        super().__init__(default_ttl=default_ttl, default_tti=default_tti, max_stream_size=entries.largest)
        self._entries = entries

    async def create_entry(
        self, request: Request, response: Response, key: str, *, ttl: float | None = None, tti: float | None = None
    ) -> Entry:
        arriving = self._entries.arriving(request, response, key, *self._limits(ttl, tti, self._entries.clock()))
        body = cast("AsyncIterator[bytes] | None", response.stream)
        return Entry(arriving.id, request, replace(response, stream=self._save(body, arriving)))

    async def _save(self, body: AsyncIterator[bytes] | None, arriving: _Arriving) -> AsyncIterator[bytes]:
        pending = bytearray()
        try:
            await in_thread(arriving.begin)
            if body is not None:
                async for chunk in body:
                    if arriving.saving:
                        pending += chunk
                        if len(pending) >= CHUNK:
                            await in_thread(arriving.write, bytes(pending))
                            pending.clear()
                    yield chunk
            if arriving.saving:
                await in_thread(arriving.write, bytes(pending))
                await in_thread(arriving.commit)
        finally:
            with anyio.CancelScope(shield=True):
                if arriving.saving:
                    await in_thread(arriving.abort)
                if isinstance(body, AsyncGenerator):  # hishel does not, and trio complains
                    await body.aclose()

    async def get_entries(self, key: str) -> list[Entry]:
        try:
            found = self._entries.find(key, wait=False)
        except BlockingIOError:
            found = await in_thread(self._entries.find, key)
        return [_streaming(entry, self._deliver(entry.id, reader)) for entry, reader in found]

    async def _deliver(self, id_: UUID, reader: BodyReader) -> AsyncIterator[bytes]:
        offset = 0
        try:
            while True:
                try:
                    data = reader.read(offset, CHUNK, wait=False)
                except BlockingIOError:
                    data = await in_thread(reader.read, offset, CHUNK)
                if not data:
                    return
                offset += len(data)
                yield data
        except BodyDamaged:
            await self.remove_entry(id_)
            raise
        finally:
            reader.close()

    async def update_headers(self, id: UUID, headers: Headers) -> None:  # noqa: A002
        await in_thread(self._entries.freshen, id, headers)

    async def remove_entry(self, id: UUID) -> None:  # noqa: A002
        await in_thread(self._entries.edit, id, lambda _: None)

    async def close(self) -> None:
        await in_thread(self._entries.storage.close)


def _entry(ticket: _Ticket, stored: StoredResponse) -> Entry:
    fields = Fields(pair for pair in stored.selecting if pair[0] != _Ticket.NAME)
    return Entry(
        UUID(ticket.id),
        Request(ticket.method, stored.uri, _headers(fields)),
        Response(stored.status, _headers(stored.fields)),
    )


def _streaming(entry: Entry, stream: Iterator[bytes] | AsyncIterator[bytes]) -> Entry:
    return replace(entry, response=replace(entry.response, stream=stream))


def _looked_at(stored: StoredResponse, digest: bytes, now: float) -> StoredResponse | None:
    """What a look-up leaves of a stored response: None when it has expired, now and then a later start of its tti."""
    ticket = _Ticket.of(stored)
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
    return int(length) if length.isascii() and length.isdigit() else None


# hishel's values are text that goes out as UTF-8; ours are octets, read as ISO-8859-1.


def _octets(value: str) -> str:
    return value.encode("utf-8", "surrogatepass").decode("latin-1")


def _fields(headers: Headers) -> Fields:
    return Fields((name, _octets(value)) for name in headers for value in headers.get_list(name) or ())


def _headers(fields: Fields) -> Headers:
    grouped: dict[str, str | list[str]] = {}
    for name in dict.fromkeys(name for name, _ in fields):
        grouped[name] = [value.encode("latin-1").decode("utf-8", "surrogatepass") for value in fields.get_all(name)]
    return Headers(grouped)


# hishel's under us.

DAY = 86_400.0
EVER = 3650 * DAY  # hishel cannot be told "for ever" where a storage of its own has a default
BLOCK = 1024 * 1024  # octets; one digest each
CHECKED = 16 * BLOCK  # octets of the largest body that is checked whole before it is given
GRACE = 600.0  # seconds after which a body without a record is taken for abandoned

_RECORD = "record"
_WRITTEN = "written"  # when a body came that has no record yet


class HishelStorage(_FailOpen):
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
    - :meth:`scan` finds nothing, for hishel does not list.
    - Processes that want the same at once each download it: there are no claims and no growing bodies among them.
    - A removed or evicted body stays readable for hishel's ``soft_delete_ttl``; after :meth:`close` no body is.
    - Reading at an offset reads what lies before it; reading backwards starts again.
    - A forked child finds and stores nothing, since SQLite's connections do not survive a fork.
    - hishel logs its own failures, each of them.

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

    @property
    def _usable(self) -> bool:
        return self._pid == os.getpid()

    def _attempt(self, doing: str, call: Callable[[], T], otherwise: T, *, wait: bool = True) -> T:
        if self._usable:
            return super()._attempt(doing, call, otherwise, wait=wait)
        if self._pid is not None:
            self._troubles.warn(doing, OSError("this process is a fork of the one that made the storage"))
        return otherwise

    def _lock(self, key: str) -> threading.Lock:
        return self._locks[int(key[:2], 16) % len(self._locks)]

    def read(self, key: str, *, wait: bool = True) -> Record | None:
        if not wait:
            raise BlockingIOError
        return self._attempt("reading a record", lambda: self._read(key), None)

    def _read(self, key: str) -> Record | None:
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
        return self._attempt("keeping a record", lambda: self._swap(key, seen, record), otherwise=True)

    def _swap(self, key: str, seen: Record | None, record: Record) -> bool:
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
        def remove() -> None:
            with self._lock(key):
                for entry in self._hishel.get_entries(_place(key)):
                    self._hishel.remove_entry(entry.id)

        self._attempt("removing a record", remove, None)

    def create_body(self, key: str, length: int | None) -> BodyWriter | None:
        if length is not None and not self._has_room(length):
            return None
        return self._attempt(
            "beginning a body", lambda: _TemporaryWriter(self, key, length, tempfile.TemporaryFile()), None
        )

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
        return self._attempt("opening a body", lambda: self._open_body(ref), None)

    def _open_body(self, ref: BodyRef) -> BodyReader | None:
        try:
            return _EntryReader(self, ref)
        except BodyDamaged:
            return None

    def _chunks(self, ref: BodyRef) -> Iterator[bytes]:
        """A body as hishel gives it.

        :raises BodyDamaged: it is gone.
        """
        key = ref.name[:64]
        for entry in self._hishel.get_entries(_place(key)):
            if _name(key, entry) == ref.name:
                return cast("Iterator[bytes]", entry.response.stream)
        raise BodyDamaged(f"{ref.name} is gone")

    def claim(self, flight: str) -> NoClaim:
        return NoClaim()

    def growing(self, flight: str) -> None:
        return None

    def scan(self) -> Iterator[Stat]:
        return iter(())

    def close(self) -> None:
        self._attempt("closing", self._hishel.close, None)
        self._pid = None


class _TemporaryWriter:
    """A body in the making: in a file without a name until it is whole."""

    def __init__(self, storage: HishelStorage, key: str, length: int | None, file: IO[bytes]) -> None:
        self._storage = storage
        self._key = key
        self._length = length
        self._file = file
        self._sound = True
        self.written = 0

    def write(self, data: bytes) -> bool:
        size = self.written + len(data)
        self._sound = (
            self._sound
            and self._storage._has_room(size)
            and self._storage._attempt("writing a body", lambda: self._append(data), otherwise=False)
        )
        return self._sound

    def _append(self, data: bytes) -> bool:
        view = memoryview(data)
        while view:
            view = view[os.pwrite(self._file.fileno(), view, self.written + len(data) - len(view)) :]
        self.written += len(data)
        return True

    def follow(self) -> _TemporaryReader:
        fd = self._storage._attempt("following a body", lambda: os.dup(self._file.fileno()), -1)
        return _TemporaryReader(self, fd)

    def publish(self, flight: str, stored: StoredResponse) -> None:
        """hishel shows nothing that is not whole."""

    def commit(self) -> BodyRef | None:
        ref = None
        if self._sound and self._length in (None, self.written):
            ref = self._storage._attempt("keeping a body", self._commit, None)
        self.abort()
        return ref

    def _commit(self) -> BodyRef | None:
        digests = bytearray()

        def blocks() -> Iterator[bytes]:
            for offset in range(0, self.written, BLOCK):
                block = os.pread(self._file.fileno(), BLOCK, offset)
                digests.extend(xxh3_64_digest(block))
                yield block

        name = self._storage._keep_body(self._key, blocks())
        return None if name is None else BodyRef(name, self.written, bytes(digests))

    def abort(self) -> None:
        self._sound = False
        self._file.close()

    def __del__(self) -> None:
        self._file.close()


class _TemporaryReader:
    """Reads what its writer has written so far, also after the writer's end."""

    def __init__(self, writer: _TemporaryWriter, fd: int) -> None:
        self._writer = writer
        self._fd = fd

    @property
    def length(self) -> int:
        return self._writer.written

    def read(self, offset: int, size: int, *, wait: bool = True) -> bytes:
        size = min(size, self.length - offset)
        if size <= 0:
            return b""
        try:
            return os.pread(self._fd, size, offset)
        except OSError as error:
            raise BodyDamaged("a growing body cannot be read") from error

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close


class _EntryReader:
    """Reads the stream of an entry of hishel's a block at a time. Keeps the block read last."""

    def __init__(self, storage: HishelStorage, ref: BodyRef) -> None:
        """:raises BodyDamaged: it is gone, or not what was stored, as far as it is checked before the first read."""
        self.length = ref.length
        self._storage = storage
        self._ref = ref
        self._lock = threading.Lock()
        self._restart()
        if 0 < ref.length <= CHECKED:
            self._seek((ref.length - 1) // BLOCK)

    def _restart(self) -> None:
        self._index, self._block, self._rest = -1, b"", b""
        self._chunks = self._storage._chunks(self._ref)

    def read(self, offset: int, size: int, *, wait: bool = True) -> bytes:
        if offset >= self.length:
            return b""
        index, start = divmod(offset, BLOCK)
        if not self._lock.acquire(blocking=wait):
            raise BlockingIOError
        try:
            if index != self._index:
                if not wait:
                    raise BlockingIOError
                self._seek(index)
            return self._block[start : start + size]
        finally:
            self._lock.release()

    def _seek(self, index: int) -> None:
        if not self._storage._usable:
            raise BodyDamaged("its storage is closed, or another process's")
        try:
            if index < self._index:
                self._restart()
            while self._index < index:
                self._advance()
        except BodyDamaged:
            raise
        except Exception as error:
            raise BodyDamaged(f"{self._ref.name} cannot be read") from error

    def _advance(self) -> None:
        index = self._index + 1
        size = min(BLOCK, self.length - index * BLOCK)
        octets = bytearray(self._rest)
        while len(octets) < size and (chunk := next(self._chunks, None)) is not None:
            octets += chunk
        block = bytes(octets[:size])
        if xxh3_64_digest(block) != self._ref.digests[index * 8 : index * 8 + 8]:
            self._chunks, self._rest = iter(()), b""
            raise BodyDamaged(f"{self._ref.name} is damaged")
        self._index, self._block, self._rest = index, block, bytes(octets[size:])

    def close(self) -> None:
        with self._lock:
            self._chunks, self._index, self._block, self._rest = iter(()), -1, b"", b""


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
