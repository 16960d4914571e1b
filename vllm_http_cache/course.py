"""One exchange under way: performs its steps, and cleans up when it ends early.

What a step does is the same for threads and for tasks, but for how they wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio

from . import steps
from .bodies import DownloadSupply, EmptySupply, ForeignSupply, StoredSupply, Supply
from .coding import coding_check
from .downloads import CHUNK, Download
from .flights import Landing, Seat, Ticket
from .loops import TaskBell, ThreadBell
from .rfc9111.message import Fields, StoredResponse
from .steps import Again, Alone, Answer, Arrived, Failed, Joined
from .storage.protocol import BodyDamaged, BodyWriter
from .wire import AsyncSend, Caller, Fetched, Reply, Send

if TYPE_CHECKING:
    from .cache import Cache
    from .rfc9111.message import Request

__all__ = ["Course"]

CLAIM_SECONDS = 30.0  # how long a caller without a time-out of its own waits for a leader in another process
PART_GONE = object()


class Course:
    """The state of one exchange."""

    def __init__(self, cache: Cache, caller: Caller) -> None:
        self._cache = cache
        self._caller = caller
        self._key = ""
        self._flight = ""
        self._seat: Seat | None = None
        self._source: Any = None  # a body on the wire that is nobody's yet
        self._supply: Supply | None = None  # what would be handed out
        self._writer: BodyWriter | None = None
        self._led = False  # what is handed out is this exchange's own download
        self._over = False
        self._lock = threading.Lock()

    def storage_step(self, step: Any, *, wait: bool = True) -> Any:
        """The steps that concern the storage alone.

        :raises BlockingIOError: with ``wait=False``, when the step would wait for the disk.
        """
        storage = self._cache.storage
        match step:
            case steps.LookUp(key):
                self._key = key
                record = storage.read(key, wait=wait)
                return (record.responses if record else ()), self._cache.clock()
            case steps.Open(key, stored):
                reader = storage.open_body(stored.body, wait=wait) if stored.body else None
                if reader is None:
                    self._cache.change(key, ((stored, None),))
                    return None
                self._supply = StoredSupply(reader, lambda: self._cache.drop_body(key, stored.body))
                return self._supply
            case steps.Change(key, changes):
                self._cache.change(key, changes)
            case steps.Forget(key):
                storage.forget(key)
            case steps.Leave(supply):
                supply.close()
            case _:
                raise TypeError(f"{step!r} is not a step")
        return None

    def forward(self, send: Send, request: Request) -> Arrived | Failed:
        asked = self._cache.clock()
        try:
            reply = send(request)
        except Exception as error:
            return Failed(error, self._cache.clock())
        return self._arrive(reply, asked)

    async def aforward(self, send: AsyncSend, request: Request) -> Arrived | Failed:
        asked = self._cache.clock()
        try:
            reply = await send(request)
        except Exception as error:
            return Failed(error, self._cache.clock())
        return self._arrive(reply, asked)

    def _arrive(self, reply: Reply, asked: float) -> Arrived:
        self._source = reply.source
        return Arrived(reply.response, reply.source, asked, self._cache.clock(), reply.framed, reply.native)

    # Single flight.

    def enter(self, flight: str) -> Seat | Joined | Again | Alone:
        came = self._cache.flights.enter(flight, ThreadBell)
        if isinstance(came, Ticket):
            ticket, came = came, None
            try:
                ticket.bell.wait(self._caller.timeout)
                came = ticket.outcome
            finally:
                if came is None:
                    self._cache.flights.leave(ticket)
        for pause in (boarding := self._board(flight, came)):
            time.sleep(pause)
        return self._seated(boarding)

    async def aenter(self, flight: str) -> Seat | Joined | Again | Alone:
        came = self._cache.flights.enter(flight, TaskBell)
        if isinstance(came, Ticket):
            ticket, came = came, None
            try:
                await ticket.bell.wait(self._caller.timeout)
                came = ticket.outcome
            finally:
                if came is None:
                    self._cache.flights.leave(ticket)
        for pause in (boarding := self._board(flight, came)):
            await anyio.sleep(pause)
        return self._seated(boarding)

    def _board(self, flight: str, came: Seat | Landing | Again | Alone | None) -> _Boarding:
        self._flight = flight
        if isinstance(came, Seat):
            self._seat = came
        return _Boarding(self._cache, self._caller, flight, came)

    def _seated(self, boarding: _Boarding) -> Seat | Joined | Again | Alone:
        came = boarding.outcome
        if not isinstance(came, Seat):
            self._seat = None
        if isinstance(came, Joined):
            self._supply = came.body
        return came

    # Keeping a body.

    def create(self, step: steps.Store) -> BodyWriter | None | object:
        """Room for the arriving body, with the stored part in it already where it completes one."""
        if not (step.arrived.framed or self._cache.options.store_unframed):
            return None
        part = step.part
        length = _length_on_the_wire(step.arrived.response.fields)
        prefix = part.body.length if part and part.body else 0
        writer = self._cache.storage.create_body(step.key, None if length is None else prefix + length)
        if part is not None and (writer is None or not self._copy(part, writer)):
            if writer is not None:
                writer.abort()
            return PART_GONE
        with self._lock:
            if not self._over:
                self._writer = writer
                return writer
        if writer is not None:
            writer.abort()
        return None

    def _copy(self, part: StoredResponse, writer: BodyWriter) -> bool:
        reader = self._cache.storage.open_body(part.body) if part.body else None
        if reader is None:
            return False
        try:
            offset = 0
            while data := reader.read(offset, CHUNK):
                if not writer.write(data):
                    return False
                offset += len(data)
        except BodyDamaged:
            return False
        finally:
            reader.close()
        return True

    def store(
        self, writer: BodyWriter | None | object, step: steps.Store, kind: Callable[..., Download]
    ) -> tuple[Any, bool] | None:
        """Start the download and let the followers join it."""
        if writer is PART_GONE:
            return None
        if writer is None:
            return step.arrived.source, False
        stored, fields = step.stored, step.arrived.response.fields
        prefix = step.part.body.length if step.part and step.part.body else 0
        length = _length_on_the_wire(fields)
        download = kind(
            step.arrived.source,
            writer,
            None if length is None else prefix + length,
            coding_check(fields) if prefix == 0 and stored.status == 200 else None,
            lambda ref: self._cache.keep(step.key, replace(stored, body=ref)),
            lambda: writer.publish(self._flight, stored) if self._seat and step.shareable else None,
            self._seat if step.shareable else None,
            prefix,
        )
        reader = download.attach()
        assert reader is not None
        self._source = self._writer = None
        self._supply = DownloadSupply(download, reader)
        self._led = True
        if step.shareable:
            self._cache.flights.shareable(self._flight)
            if self._seat is not None:
                self._seat.land(stored, download)
                self._seat = None
        return self._supply, True

    # The end.

    def end(
        self, outcome: Answer | Failed | None, kind: Callable[..., Any], resume: Callable[[], Any]
    ) -> Fetched | None:
        """Tell the others what became of this exchange, and hand out its answer.

        :raises Exception: the client's own error, when there is no answer.
        """
        self._over = True
        seat, self._seat = self._seat, None
        if not isinstance(outcome, Answer):
            if seat is not None:
                seat.abandon()
            if outcome is None:
                return None
            raise outcome.error
        if seat is not None:
            seat.finish() if outcome.shareable else seat.part()
        if outcome.arrived is not None:
            return Fetched(outcome.response, outcome.arrived.source, outcome.arrived.native)
        supply: Supply = EmptySupply()
        if outcome.body is not None and self._supply is not None:
            supply = self._supply
        if isinstance(supply, StoredSupply) and outcome.span is not None:
            supply.cut(*outcome.span)
        own = outcome.arrived is None and self._led
        whole = outcome.stored is not None and outcome.response.status == outcome.stored.status
        body = kind(supply, supply.length, self._caller, outcome.stored, None if own or not whole else resume)
        return Fetched(outcome.response, body, refuse=self._veto(outcome.stored, supply))

    def _veto(self, stored: StoredResponse | None, supply: Supply) -> Callable[[], None]:
        cache, key = self._cache, self._key

        def refuse() -> None:
            ref = supply.download.ref if isinstance(supply, DownloadSupply) else stored and stored.body
            if ref is not None:
                cache.drop_body(key, ref)
            elif isinstance(supply, ForeignSupply):
                cache.storage.forget(key)

        return refuse

    def give_up(self) -> Any:
        """The exchange ended early: leave nothing behind. Returns a source that is still to be closed, or None."""
        with self._lock:
            self._over = True
            writer, self._writer = self._writer, None
        if writer is not None:
            writer.abort()
        if self._seat is not None:
            self._seat.abandon()
        if self._supply is not None:
            self._supply.close()
        return self._source


class _Boarding:
    """Whether a process may lead: iterates over pauses in seconds until ``outcome`` is known."""

    def __init__(self, cache: Cache, caller: Caller, flight: str, came: Seat | Landing | Again | Alone | None) -> None:
        self.flight = flight
        self.outcome: Seat | Joined | Again | Alone = Again()
        self._cache = cache
        self._caller = caller
        self._came = came

    def __iter__(self) -> Iterator[float]:
        came = self._came
        if came is None:
            raise self._caller.timed_out()
        if isinstance(came, Landing):
            reader = came.download.attach()
            self.outcome = Joined(came.stored, DownloadSupply(came.download, reader)) if reader else Again()
        elif isinstance(came, Seat):
            yield from self._lead(came)
        else:
            self.outcome = came

    def _lead(self, seat: Seat) -> Iterator[float]:
        """Lead once no other process does, or join what another process is receiving."""
        storage, timeout = self._cache.storage, self._caller.timeout
        waited, pause = 0.0, 0.002
        self.outcome = seat
        while (claim := storage.claim(self.flight)) is None:
            if (growing := storage.growing(self.flight)) is not None:
                seat.finish()
                supply = ForeignSupply(growing, lambda: storage.claim(self.flight))
                self.outcome = Joined(growing.stored, supply)
                return
            if timeout is None and waited > CLAIM_SECONDS:
                seat.finish()
                self.outcome = Alone()
                return
            if timeout is not None and waited > timeout:
                raise self._caller.timed_out()
            yield pause
            waited, pause = waited + pause, min(pause * 1.5, 0.05)
        seat.claim = claim


def _length_on_the_wire(fields: Fields) -> int | None:
    """The octets that are to come, where Content-Length says so (RFC 9112 section 6.3)."""
    length = fields.get("content-length")
    if length is None or "transfer-encoding" in fields or not (length.isascii() and length.isdigit()):
        return None
    return int(length)
