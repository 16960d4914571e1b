"""One exchange under way: performs its steps, and cleans up when it ends early.

What a step does is the same for threads and for tasks, but for how they wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from . import steps
from .boarding import Boarding
from .bodies import DownloadSupply, EmptySupply, ForeignSupply, StoredSupply, Supply
from .coding import CodingCheck, coding_check
from .downloads import Download
from .flights import Seat
from .loops import ThreadBell, in_a_loop, in_thread, task_bell
from .rfc9111.framing import announced_length
from .rfc9111.message import StoredResponse
from .rfc9111.ranges import has_its_length, holds_whole
from .rfc9111.target import redacted
from .steps import Again, Alone, Answer, Arrived, Failed, Joined
from .storage.protocol import BodyDamaged, BodyUnreadable, BodyWriter
from .tail import CHUNK
from .transfers import alet_go, let_go
from .wire import AsyncSend, Caller, Fetched, Reply, Send

if TYPE_CHECKING:
    from .cache import Cache
    from .hits import Look
    from .metrics import Outcome
    from .rfc9111.cachestatus import CacheStatus
    from .rfc9111.message import BodyRef, Request

__all__ = ["Course"]

log = logging.getLogger("vllm_http_cache")


class Course:
    """The state of one exchange."""

    def __init__(
        self,
        cache: Cache,
        request: Request,
        caller: Caller,
        look: Look | None = None,
        without: set[BodyRef] | None = None,
        *,
        background: bool = False,
    ) -> None:
        self._cache = cache
        self._look = look  # that was taken just now
        self.without: set[BodyRef] = set() if without is None else without  # bodies that cannot be read now
        self._background = background
        self.request = request
        self.caller = caller
        self._key = ""
        self._boarding: Boarding | None = None
        self._source: Any = None  # a body on the wire that is nobody's yet
        self._time_outs: tuple[type[Exception], ...] = ()  # its client's
        self._supply: Supply | None = None  # what would be handed out
        self._writer: BodyWriter | None = None
        self._coding: CodingCheck | None = None
        self._asked_at = 0  # the moment at which the origin was asked last
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
                look, self._look = self._look, None
                record = self._cache.read(key, wait=wait) if look is None else look.record
                responses = record.responses if record else ()
                if self.without:
                    responses = tuple(stored for stored in responses if stored.body not in self.without)
                return responses, self._cache.clock()
            case steps.Open(key, stored):
                if (ref := stored.body) is None:
                    return None
                drop = partial(self._cache.drop, stored.uri, key, ref, "damaged")
                reader = None
                try:
                    reader = storage.open_body(ref, wait=wait)
                except BodyDamaged as damage:
                    if not wait:
                        raise BlockingIOError from damage
                    drop()
                if reader is None:
                    self.without.add(ref)
                    return None
                self._supply = StoredSupply(reader, ref, drop, self.without)
                return self._supply
            case steps.Change(key, changes):
                self._cache.change(key, changes)
            case steps.Forget(key):
                self._cache.forget_key(key)
                self._asked_at = self._cache.forgotten.now  # its own answer is newer than what it has outdated
            case steps.Leave(supply):
                self._supply = None
                supply.close()
            case _:
                raise TypeError(f"{step!r} is not a step")
        return None

    def forward(self, send: Send, step: steps.Forward) -> Arrived | Failed:
        asked = self._ask()
        try:
            reply = send(step.request)
        except Exception as error:
            return self._fail(error, step)
        return self._arrive(reply, asked, step)

    async def aforward(self, send: AsyncSend, step: steps.Forward) -> Arrived | Failed:
        asked = self._ask()
        try:
            reply = await send(step.request)
        except Exception as error:
            return self._fail(error, step)
        return self._arrive(reply, asked, step)

    def _ask(self) -> float:
        self._asked_at = self._cache.forgotten.now
        return self._cache.clock()

    def _fail(self, error: Exception, step: steps.Forward) -> Failed:
        self._count_validation(step, None)
        return Failed(error, self._cache.clock())

    def _arrive(self, reply: Reply, asked: float, step: steps.Forward) -> Arrived:
        self._source, self._time_outs = reply.source, reply.time_outs
        now = self._cache.clock()
        if self._cache.metrics is not None:
            self._cache.metrics.forwarded(max(0.0, now - asked))
        self._count_validation(step, reply.response.status)
        return Arrived(reply.response, reply.source, asked, now, reply.framed, reply.legible, reply.native)

    def _count_validation(self, step: steps.Forward, status: int | None) -> None:
        if step.validates and self._cache.metrics is not None:
            failed = status is None or status >= 500
            self._cache.metrics.validated("failed" if failed else "confirmed" if status == 304 else "replaced")

    def discard(self, arrived: Arrived) -> None:
        """What came is of no use; its connection may be."""
        if arrived.response.status == 304:
            with suppress(Exception):
                arrived.source.read()  # nothing, but then its connection can be used again
        let_go(arrived.source)

    async def adiscard(self, arrived: Arrived) -> None:
        if arrived.response.status == 304:
            with suppress(Exception):
                await arrived.source.read()
        await alet_go(arrived.source)

    # Single flight.

    def enter(self, flight: str) -> Seat | Joined | Again | Alone | Failed:
        if in_a_loop():  # which may be the one that we would wait for
            return Alone()
        boarding = self._boarding = Boarding(self._cache, self.caller, flight, ThreadBell())
        if boarding.enter():
            for bell, seconds in boarding.bells(ThreadBell):
                if bell.wait(seconds):
                    break
        for pause in boarding:
            time.sleep(pause)
        return boarding.outcome

    async def aenter(self, flight: str) -> Seat | Joined | Again | Alone | Failed:
        boarding = self._boarding = Boarding(self._cache, self.caller, flight, task_bell())
        if boarding.enter():
            for bell, seconds in boarding.bells(task_bell):
                if await bell.wait(seconds):
                    break
        look = partial(next, iter(boarding), None)
        remote = self._cache.storage.remote
        while (pause := await in_thread(look) if remote else look()) is not None:  # noqa: ASYNC110 - no disk rings
            await anyio.sleep(pause)
        return boarding.outcome

    def _seat(self) -> Seat | None:
        """The leader's, if this exchange leads."""
        return self._boarding.seat() if self._boarding is not None else None

    # Keeping a body.

    def create(self, step: steps.Store) -> BodyWriter | None:
        """Room for the arriving body, with the octets of the stored part in it already where it completes one."""
        self._key = step.key
        arrived, cache = step.arrived, self._cache
        if not (arrived.legible and (arrived.framed or cache.options.store_unframed)):
            return None
        if cache.forgotten.since(step.key, self._asked_at):
            return None
        prefix = _prefix(step)
        length = announced_length(arrived.response)
        self._coding = coding_check(step.stored.fields) if holds_whole(step.stored) else None
        writer = cache.storage.create_body(step.key, None if length is None else prefix + length)
        if writer is None:
            return None
        if prefix and not self._copy(step.part, writer):
            writer.abort()
            return None
        with self._lock:
            if self._over:  # the caller was cancelled while its thread went on
                writer.abort()
                return None
            self._writer = writer
            return writer

    def _copy(self, part: StoredResponse | None, writer: BodyWriter) -> bool:
        reader = None
        try:
            reader = self._cache.storage.open_body(part.body) if part and part.body else None
            if reader is None:
                return False
            offset = 0
            while data := reader.read(offset, CHUNK):
                if not writer.write(data):
                    return False
                if self._coding is not None:
                    self._coding.feed(data)
                offset += len(data)
        except BodyUnreadable:
            return False
        finally:
            if reader is not None:
                reader.close()
        return True

    def store(
        self, writer: BodyWriter | None, step: steps.Store, kind: Callable[..., Download]
    ) -> tuple[Any, bool] | None:
        """Start the download and let the followers join it."""
        if writer is None:
            return None if step.part else (step.arrived.source, False)
        stored, prefix = step.stored, _prefix(step)
        boarding, seat = self._boarding, self._seat() if step.shareable else None
        length = announced_length(step.arrived.response)

        def publish() -> None:
            if boarding is not None:
                writer.publish(boarding.flight, stored)

        def keep(ref: BodyRef) -> None:
            complete = replace(stored, body=ref)
            if has_its_length(complete):
                self._cache.keep(step.key, complete)

        download = kind(
            step.arrived.source,
            writer,
            length=None if length is None else prefix + length,
            coding=self._coding,
            keep=keep,
            publish=publish if seat is not None else None,
            seat=seat,
            prefix=prefix,
            time_outs=self._time_outs,
            count=self._cache.metrics.received if self._cache.metrics else None,
        )
        reader = download.attach()
        assert reader is not None
        self._supply = DownloadSupply(download, reader)
        self._source = self._writer = None
        self._led = True
        self._cache.forgotten.begun(step.key, download, self._asked_at)
        if seat is not None:
            self._boarding = None
            seat.land(stored, download)
            download.landed()
        return self._supply, True

    # The end.

    def end(
        self, outcome: Answer | Failed | None, kind: Callable[..., Any], resume: Callable[[], Any]
    ) -> Fetched | None:
        """Tell the others what became of this exchange, and hand out its answer.

        :raises Exception: the client's own error, when there is no answer.
        """
        self._over = True
        seat = self._seat()
        if not isinstance(outcome, Answer):
            if seat is not None:  # each of the others may as well find out for itself, at once
                seat.disperse(remember=False)
            if outcome is None:
                return None
            self._count("failed", outcome.status)
            raise outcome.error
        if outcome.shareable and self._boarding is not None:
            self._cache.flights.shareable(self._boarding.flight)
        if seat is not None and outcome.shareable:
            seat.finish()
        elif seat is not None:
            failing = outcome.response.status >= 500 or outcome.status.detail is not None
            seat.disperse(remember=not failing)
        if outcome.arrived is not None:
            self._count("forwarded", outcome.status)
            if self._cache.metrics is not None and self.request.method != "HEAD" and not self._background:
                # Its octets pass by: the client itself gives them to its caller.
                self._cache.metrics.received(announced_length(outcome.arrived.response) or 0)
            return Fetched(outcome.response, outcome.arrived.source, outcome.arrived.native, outcome.status)
        stored = outcome.stored
        supply: Supply = EmptySupply() if outcome.body is None else outcome.body
        if isinstance(supply, StoredSupply) and outcome.span is not None:
            supply.cut(*outcome.span)
        if outcome.status.detail is not None:
            log.info("%s: %s, answered %d", redacted(self.request.uri), outcome.status.detail, outcome.response.status)
        self._count(_outcome(outcome), outcome.status, 0 if self._led else supply.length or 0)
        continuable = stored is not None and outcome.response.status == stored.status
        body = kind(supply, self.caller, stored, resume if continuable and not self._led else None, own=self._led)
        refuse = self._veto(stored, supply, body)
        return Fetched(outcome.response, body, status=outcome.status, refuse=refuse, stored=stored)

    def _count(self, outcome: Outcome, status: CacheStatus, octets: int = 0) -> None:
        if self._cache.metrics is not None and not self._background:
            self._cache.metrics.answered(outcome, status.forward, octets)

    def _veto(self, stored: StoredResponse | None, supply: Supply, body: Any) -> Callable[[], None]:
        cache, key, uri = self._cache, self._key, self.request.uri

        def refuse() -> None:
            ref = stored.body if stored else None
            if isinstance(supply, DownloadSupply):
                supply.download.disown()
                ref = supply.download.ref
            if ref is not None:
                cache.drop(uri, key, ref, "refused")
            elif isinstance(supply, ForeignSupply):
                cache.forget_key(key)
            if body.continued is not None:
                body.continued.refuse()

        return refuse

    def close(self) -> None:
        """Give up, where nobody can wait for a source to close."""
        self.give_up()

    def give_up(self) -> Any:
        """The exchange ended early: leave nothing behind. Returns a source that is still to be closed, or None."""
        with self._lock:
            self._over = True
            writer, self._writer = self._writer, None
        if writer is not None:
            writer.abort()
        if self._boarding is not None:
            self._boarding.leave()
        if self._supply is not None:
            self._supply.close()
        return self._source


def _prefix(step: steps.Store) -> int:
    """The octets that are stored already."""
    return step.part.body.length if step.part and step.part.body else 0


def _outcome(answer: Answer) -> Outcome:
    status = answer.status
    if status.hit:
        return "stale" if (status.ttl or 0) < 0 else "hit"
    if status.forward is None:
        return "refused"
    if status.detail is not None:
        return "stale"
    return "collapsed" if status.collapsed else "forwarded"
