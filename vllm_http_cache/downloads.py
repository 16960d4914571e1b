"""One body on its way from the origin to the disk and to everybody who reads it.

The producer's side receives chunks; what has not been written yet is kept in memory (the tail, bounded), the rest is
read back from the growing body, so a slow reader holds nobody back: the disk is the buffer. When the storage has no
room for more, the body is no longer stored: its first reader goes on with what passes through the tail, at its own
pace, and the others are told that their supply is broken.

How the octets come out of a source is in :mod:`.transfers`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from .coding import CodingCheck
from .loops import Bell, ThreadBell, task_bell
from .patience import BEAT, looks, patience
from .tail import CHUNK, Tail, batches

if TYPE_CHECKING:
    from .flights import Seat
    from .rfc9111.message import BodyRef
    from .storage.protocol import BodyWriter
    from .wire import Caller

__all__ = ["PACE", "Broken", "Download", "Reader"]

log = logging.getLogger("vllm_http_cache")

B = TypeVar("B", bound="Bell")

SMALL = 4 * 1024  # octets of a chunk up to which joining it to others costs less than writing it by itself
PACE = 0.05  # seconds after which the octets of a slow body are written without waiting for more


class Broken(Exception):
    """A body cannot be given to its end. ``error`` is the client's own where there is one; did it wait too long?"""

    def __init__(self, why: str, error: Exception | None = None, *, timed_out: bool = False) -> None:
        super().__init__(why)
        self.error = error
        self.timed_out = timed_out


class Reader:
    """One reader's place in a download."""

    __slots__ = ("bell", "lost", "offset")

    def __init__(self) -> None:
        self.offset = 0
        self.bell: Bell | None = None
        self.lost = False


class Download:
    """What is common to both kinds.

    :param writer: where the octets go.
    :param length: how many there must be, None when nothing says.
    :param coding: checks that a content coding is finished.
    :param keep: puts the committed body on record.
    :param publish: shows the growing body to other processes. None: it is for this caller alone.
    :param seat: the leader's, given up at the end.
    :param prefix: octets that are in the writer already.
    :param time_outs: errors of the source that say that it waited too long.
    :param count: told how many octets came, at the end.
    :param clock: seconds that only go forward.
    """

    longest_tail = 1024 * 1024  # octets received but not yet written

    def __init__(
        self,
        writer: BodyWriter,
        length: int | None,
        coding: CodingCheck | None,
        keep: Callable[[BodyRef], None],
        publish: Callable[[], None] | None,
        seat: Seat | None,
        prefix: int = 0,
        time_outs: tuple[type[Exception], ...] = (),
        count: Callable[[int], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.length = length
        self.ref: BodyRef | None = None
        self._writer: BodyWriter | None = writer
        self._written = writer.follow()
        self._coding = coding
        self._keep = keep
        self._time_outs = time_outs
        self._count = count
        self._prefix = prefix
        self._publish = publish
        self._is_shown = False  # other processes may follow
        self._seat = seat
        self._make_locks()
        self._tail = Tail(prefix)
        self._on_disk = prefix  # octets that can be read from _written; short of the tail once there is no room
        self._ended = False
        self._deserted = False  # the last reader has left before the end
        self._disowned = False
        self._error: Broken | None = None
        self._readers: list[Reader] = []
        self._clock = clock
        self._began = self._flushed = clock()

    def _make_locks(self) -> None:
        self._lock = threading.Lock()
        self._writing = threading.Lock()  # a cancelled task leaves its thread behind, still writing
        self._keeping = threading.Lock()  # it is put on record before it is disowned, or not at all

    def forked(self) -> None:
        """In a child process: it goes on in the parent only. Another thread may have held any lock."""
        self._make_locks()
        self._seat = None
        if not self._ended:
            self._ended, self._error = True, Broken("the process was forked while it was receiving this body")

    # The readers' side.

    def joinable(self) -> bool:
        """Whether there is something to join."""
        return not (self._ended or self._deserted or self._disowned) and self._writer is not None

    def attach(self) -> Reader | None:
        """A reader from the first octet on; None when there is nothing to join any more."""
        with self._lock:
            if not self.joinable():
                return None
            reader = Reader()
            self._readers.append(reader)
            return reader

    def detach(self, reader: Reader) -> None:
        """The reader wants no more. Without readers the download ends."""
        with self._lock:
            if reader not in self._readers:
                return
            self._readers.remove(reader)
            if self._ended:
                if not self._readers:
                    self._written.close()
                return
            if self._deserted or any(not other.lost for other in self._readers):
                return
            self._deserted = self._writer is None or not self._is_here()
        if not self._deserted:
            self._wind_up()
            return
        if self._seat is not None:  # its source may not notice for long
            self._seat.abandon()
        self._cancel()

    def disown(self) -> None:
        """What comes is out of date, or of no use: those who read it go on, but nobody joins, and it is not kept."""
        with self._keeping:
            self._disowned = True
        if self._seat is not None:
            self._seat.finish()

    def is_lost(self) -> bool:
        """Does nobody drive it any more?"""
        return False

    def is_silent(self, seconds: float) -> bool:
        """Does who drives it not get on, and has not for so long?"""
        return False

    def bury(self) -> None:
        """End it if it is lost."""
        if self.is_lost():
            self._fail(Broken("the event loop that was receiving this body has ended"))

    def take(self, reader: Reader, *, wait: bool = True) -> bytes | None:
        """The next octets for this reader: None when they have not come yet, empty at the end.

        :raises Broken: they will not come.
        :raises BlockingIOError: with ``wait=False``, when they must be read from the disk.
        """
        data: bytes | None = None
        made_room = False
        with self._lock:
            size = min(CHUNK, self._on_disk - reader.offset)
            if size <= 0:
                data = self._next(reader)
                made_room = self._writer is None and self._trim()
        if size > 0:
            data = self._written.read(reader.offset, size, wait=wait)
            reader.offset += len(data)
        elif made_room:
            self._room_made()
        return data

    def _next(self, reader: Reader) -> bytes | None:
        if reader.lost:
            raise Broken("the storage has no room for the rest of this body")
        data = self._tail.read(reader.offset)
        if data is not None:
            reader.offset += len(data)
            return data
        if self._error is not None:
            raise self._error
        return b"" if self._ended else None

    def _trim(self) -> bool:
        """Unwritten octets that the one remaining reader has taken make room for more."""
        reader = next((reader for reader in self._readers if not reader.lost), None)
        return reader is not None and self._tail.shift_to(reader.offset)

    # The producer's side.

    def _receive(self, chunk: bytes) -> bool:
        """Take a chunk; whether the tail should now be written."""
        with self._lock:
            self._tail.append(chunk)
            self._ring(self._readers)
            return len(self._tail) >= self.longest_tail or self._clock() - self._flushed > PACE

    def _flush(self) -> None:
        """Write the tail, and show the body to other processes once it turns out to take its time."""
        with self._writing:
            if self._ended:
                return
            self._write_tail()
            if self._writer is not None and self._beats():
                self._writer.beat()
                self._flushed = self._clock()
            unwanted = self._disowned or self._deserted or self._writer is None
            if unwanted or self._publish is None or self._clock() - self._began < PACE:
                return
            publish, self._publish, self._is_shown = self._publish, None, True
            publish()
            self._go_on_alone()

    def _is_due(self) -> bool:
        """Is there something that :meth:`_flush` would do, once PACE has gone by?"""
        return not self._ended and (bool(self._tail) or self._publish is not None or self._beats())

    def _beats(self) -> bool:
        """Have those in other processes seen nothing new for so long that they need a sign of life?"""
        return self._is_shown and self._clock() - self._flushed >= BEAT

    def _write_tail(self) -> None:
        with self._lock:
            chunks = self._tail.chunks()
        writer = self._writer
        if writer is None or not chunks:
            return
        stored = None
        try:
            stored = all(self._store(writer, batch) for batch in batches(chunks))
        finally:
            if not stored:
                self._store_no_more(writer, remember=stored is False)
        self._flushed = self._clock()
        if stored:
            with self._lock:
                self._tail.shift(len(chunks))
                self._on_disk = self._tail.start

    def _store(self, writer: BodyWriter, pieces: tuple[bytes, ...]) -> bool:
        if sum(map(len, pieces)) < len(pieces) * SMALL:
            pieces = (b"".join(pieces),)
        if self._coding is not None:
            for data in pieces:
                self._coding.feed(data)
        return writer.write(*pieces)

    def _store_no_more(self, writer: BodyWriter, *, remember: bool) -> None:
        with self._lock:
            self._writer = None
            for reader in self._readers[1:]:
                reader.lost = True
            self._ring(self._readers)
            self._trim()
        writer.abort()
        if self._seat is not None:
            self._seat.disperse(remember=remember)

    def _finish(self) -> None:
        """The source says that the body is whole."""
        with self._writing:
            if not self._ended:
                self._commit()

    def _commit(self) -> None:
        if self.length is not None and self._tail.end != self.length:
            self._abort(Broken(f"{self._tail.end} octets came where {self.length} were announced"))
            return
        try:
            self._write_tail()
            if self._writer is not None:
                self._keep_or_not(self._writer)
        except Exception:  # the octets are whole all the same
            log.exception("a body could not be kept")
        self._end(None)

    def _keep_or_not(self, writer: BodyWriter) -> None:
        if self._disowned or not (self._coding is None or self._coding.finished()):
            writer.abort()
            return
        ref = writer.commit()
        with self._keeping:
            if ref is not None and not self._disowned:
                self.ref = ref
                self._keep(ref)

    def _fail(self, error: Broken) -> None:
        with self._writing:
            if not self._ended:
                self._abort(error)

    def _abort(self, error: Broken) -> None:
        if self._writer is not None:
            self._writer.abort()
        self._end(error)

    def _end(self, error: Broken | None) -> None:
        if self._seat is not None:  # first: a reader who knows the end may ask for the same again
            self._seat.finish() if error is None else self._seat.abandon()
        with self._lock:
            self._ended, self._error = True, error
            self._ring(self._readers)
            if not self._readers:
                self._written.close()
        if self._count is not None:
            self._count(self._tail.end - self._prefix)

    def _ring(self, readers: Iterable[Reader]) -> None:
        for reader in readers:
            if reader.bell is not None:
                reader.bell.ring()
                reader.bell = None

    def _hang(self, reader: Reader, bell: Bell) -> bool:
        """Ring *bell* when there may be more for the reader. False: there is already."""
        with self._lock:
            if self._ended or reader.lost or reader.offset < self._tail.end:
                return False
            reader.bell = bell
            return True

    def wait(self, reader: Reader, caller: Caller) -> None:
        """Until :meth:`take` may have something to say.

        :raises Exception: the caller's time-out error.
        """
        for bell, seconds in self._bells(reader, caller, ThreadBell):
            if bell.wait(seconds):
                return

    async def await_more(self, reader: Reader, caller: Caller) -> None:
        """The same for a task."""
        for bell, seconds in self._bells(reader, caller, task_bell):
            if await bell.wait(seconds):
                return

    def _bells(self, reader: Reader, caller: Caller, make: Callable[[], B]) -> Iterator[tuple[B, float]]:
        """Bells to wait for, and for how long: now and then it is seen whether anybody still receives."""
        for _, seconds in looks(caller.timeout):
            if not self._hang(reader, bell := make()):
                return
            self._stir()
            yield bell, seconds
            self.bury()
            if self.is_silent(patience(caller.timeout)):
                raise Broken("the event loop that was receiving this body does not turn")
        raise caller.timed_out()

    def settle(self) -> None:
        """The cache is being closed."""

    def landed(self) -> None:
        """It is in its place, and others may come."""

    def _stir(self) -> None:
        """A reader waits for more."""

    def _go_on_alone(self) -> None:
        """Other processes may be reading now, and they cannot ask for more."""

    def _is_here(self) -> bool:
        """Is there nothing left to come but the end?"""
        return self.length is not None and self._tail.end >= self.length

    def _wind_up(self) -> None:
        """Nobody reads any more, but it is all here."""

    def _cancel(self) -> None:
        """Nobody reads any more."""
        raise NotImplementedError

    def _room_made(self) -> None:
        """The tail has become shorter, or the reader who held it has gone."""
