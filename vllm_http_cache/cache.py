"""Runs exchanges against a storage and a sender: one short driver for threads, one for tasks.

A :class:`Cache` holds what all exchanges share; :class:`~.course.Course` is one exchange under way.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

import anyio

from . import steps
from .abandoned import abandon, close_abandoned
from .background import Background
from .bodies import AsyncCachedBody, CachedBody, StoredSupply
from .course import Course
from .exchange import Exchange, exchange, revalidate
from .flights import Flights
from .forgetting import Forgotten
from .hits import Hit, Hits
from .loops import in_thread
from .rfc9111.judging import Changes, merged
from .rfc9111.message import BodyRef, Request, StoredResponse
from .rfc9111.options import CacheOptions
from .rfc9111.target import is_key_of, lookup_key, redacted
from .storage.protocol import BodyDamaged, BodyUnreadable, Record, Stat, Storage
from .transfers import PulledDownload, PumpedDownload, Ticker, alet_go, let_go
from .wire import AsyncSend, Caller, Fetched, Send, expect

if TYPE_CHECKING:
    from .metrics import Metrics

__all__ = ["Cache"]

log = logging.getLogger("vllm_http_cache")

AT_HAND = 1024**2  # octets of a content that is given in one piece
SWAPS = 8  # attempts to change a record that others are changing too
CLOSING_SECONDS = 1.0


class Cache:
    """A cache for any number of clients, threads, event loops and forked processes at once.

    :param storage: where responses lie; closed with the cache.
    :param options: how it behaves.
    :param clock: seconds since the epoch.
    :param metrics: counts what this cache and its storage do; None counts nothing.
    """

    def __init__(
        self,
        storage: Storage,
        options: CacheOptions = CacheOptions(),
        *,
        clock: Callable[[], float] = time.time,
        metrics: Metrics | None = None,
    ) -> None:
        expect(storage, "create_body", "storage has to be a storage, such as FileStorage(path)")
        self.storage = storage
        self.options = replace(options, ttl=min(options.ttl, storage.ttl))
        self.clock = clock
        self.metrics = metrics
        if metrics is not None:
            storage.observe(metrics)
        self.flights = Flights()
        self.forgotten = Forgotten()
        self.hits = Hits(storage, self.forgotten, self.options, clock)
        self.background = Background()
        self._ticker = Ticker()
        self._lock = threading.Lock()
        self._closed = False
        _caches.add(self)

    def fetch(self, request: Request, send: Send, caller: Caller = Caller()) -> Fetched:
        """Answer *request* from the cache or through *send*.

        :raises Exception: what *send* raised, when nothing stored may answer instead.
        :raises InvalidTarget: the request's URI is ambiguous or malformed.
        """
        return self._fetch(request, send, caller, set())

    def _fetch(self, request: Request, send: Send, caller: Caller, without: set[BodyRef]) -> Fetched:
        """:param without: bodies that cannot be read now; those that turn out to be such are added."""
        close_abandoned()
        look = None if without else self.hits.look(request)
        if look is not None and look.hit is not None:
            resume = partial(self._fetch, request, send, caller, without)
            return self._hand_out(look.hit, CachedBody, caller, resume, without)
        fetched = self._drive(exchange(request, self.options), Course(self, request, caller, look, without), send)
        assert fetched is not None
        return fetched

    async def afetch(self, request: Request, send: AsyncSend, caller: Caller = Caller()) -> Fetched:
        """The same for a task."""
        return await self._afetch(request, send, caller, set())

    async def _afetch(self, request: Request, send: AsyncSend, caller: Caller, without: set[BodyRef]) -> Fetched:
        close_abandoned()
        look = None
        with suppress(BlockingIOError):
            look = None if without else self.hits.look(request, wait=False)
        if look is not None and look.hit is not None:
            resume = partial(self._afetch, request, send, caller, without)
            return self._hand_out(look.hit, AsyncCachedBody, caller, resume, without)
        course = Course(self, request, caller, look, without)
        fetched = await self._adrive(exchange(request, self.options), course, send)
        assert fetched is not None
        return fetched

    def _hand_out(
        self, hit: Hit, kind: Callable[..., Any], caller: Caller, resume: Callable[[], Any], without: set[BodyRef]
    ) -> Fetched:
        if self.metrics is not None:
            self.metrics.answered("hit", None, hit.reader.length)
        drop = partial(self.drop, hit.stored.uri, hit.key, hit.ref)
        supply = StoredSupply(hit.reader, hit.ref, partial(drop, "damaged"), without)
        body = kind(supply, caller, hit.stored, resume)

        def refuse() -> None:
            drop("refused")
            if body.continued is not None:
                body.continued.refuse()

        return Fetched(hit.response, body, status=hit.status, refuse=refuse, stored=hit.stored)

    def at_hand(self, request: Request, largest: float = AT_HAND, *, wait: bool = True) -> Fetched | None:
        """A fresh 200 with its content, as octets, for ``body``, where that is small. None: :meth:`fetch` has to see.

        :param largest: octets that are small.
        :raises BlockingIOError: with ``wait=False``, when it would have to wait for the disk.
        """
        look = self.hits.look(request, largest=min(largest, AT_HAND), wait=wait)
        hit = look.hit if look is not None else None
        if hit is None:
            return None
        drop = partial(self.drop, hit.stored.uri, hit.key, hit.ref)
        try:
            if hit.stored.status != 200:
                return None
            content = hit.reader.read(0, hit.ref.length, wait=wait)
        except BodyUnreadable as trouble:
            if not wait:
                raise BlockingIOError from trouble
            if isinstance(trouble, BodyDamaged):
                drop("damaged")
            return None
        finally:
            hit.reader.close()
        if len(content) < hit.ref.length:
            return None
        if self.metrics is not None:
            self.metrics.answered("hit", None, len(content))
        return Fetched(hit.response, content, status=hit.status, refuse=partial(drop, "refused"), stored=hit.stored)

    def forget(self, uri: str) -> None:
        """Drop all that is stored for *uri*, and do not keep what this process has asked for or is receiving.

        User information in it does not count: clients send it as a field, and ask without it.

        :raises InvalidTarget: the URI is ambiguous or malformed.
        """
        self.forget_key(lookup_key(uri, self.options))

    def forget_key(self, key: str) -> None:
        """The same by key."""
        self.forgotten.note(key)
        self._remove(key)

    def _remove(self, key: str) -> None:
        """What of it cannot be removed answers no more all the same."""
        before = self.storage.read(key)
        self.storage.forget(key)
        if before is not None and (after := self.storage.read(key)) is not None:
            for stored in after.responses:
                if stored in before.responses:  # otherwise somebody has stored it just now
                    self.forgotten.drop(key, stored)

    def clear(self) -> None:
        """Drop all that :meth:`scan` finds, and do not keep what this process has asked for or is receiving.

        :raises NotImplementedError: the storage cannot list what it holds.
        """
        found = self.scan()
        self.forgotten.note(None)
        for key in {stat.key for stat in found}:
            self._remove(key)

    def scan(self) -> Iterator[Stat]:
        """What is stored and may answer this cache's requests; of a shared storage not what others keep for theirs.

        :raises NotImplementedError: the storage cannot list what it holds.
        """
        return (
            stat
            for stat in self.storage.scan()
            if is_key_of(stat.key, stat.stored.uri, self.options) and not self.forgotten.hides(stat.key, stat.stored)
        )

    def _drive(self, way: Exchange, course: Course, send: Send) -> Fetched | None:
        said: Any = None
        try:
            while True:
                try:
                    step = way.send(said)
                except StopIteration as end:
                    again = partial(self._fetch, course.request, send, course.caller, course.without)
                    return course.end(end.value, CachedBody, again)
                match step:
                    case steps.Forward():
                        said = course.forward(send, step)
                    case steps.Enter(flight):
                        said = course.enter(flight)
                    case steps.Store():
                        said = course.store(course.create(step), step, partial(PulledDownload, self._ticker))
                    case steps.Discard(arrived):
                        course.discard(arrived)
                    case steps.Later(later):
                        self._later(later, send)
                    case _:
                        said = course.storage_step(step)
        except BaseException:
            if (source := course.give_up()) is not None:
                let_go(source)
            raise
        finally:
            way.close()

    async def _adrive(self, way: Exchange, course: Course, send: AsyncSend) -> Fetched | None:
        said: Any = None
        try:
            while True:
                try:
                    step = way.send(said)
                except StopIteration as end:
                    again = partial(self._afetch, course.request, send, course.caller, course.without)
                    return course.end(end.value, AsyncCachedBody, again)
                match step:
                    case steps.Forward():
                        said = await course.aforward(send, step)
                    case steps.Enter(flight):
                        said = await course.aenter(flight)
                    case steps.Store():
                        said = course.store(await in_thread(course.create, step), step, PumpedDownload)
                    case steps.Discard(arrived):
                        await course.adiscard(arrived)
                    case steps.Later(later):
                        self._alater(later, send)
                    case steps.LookUp() | steps.Open() | steps.Leave():
                        try:
                            said = course.storage_step(step, wait=False)
                        except BlockingIOError:
                            said = await in_thread(course.storage_step, step)
                    case _:
                        said = await in_thread(course.storage_step, step)
        except GeneratorExit:  # by a collector; nothing can be awaited
            abandon(course)
            raise
        except BaseException:
            if (source := course.give_up()) is not None:
                with anyio.CancelScope(shield=True):
                    await alet_go(source)
            raise
        finally:
            way.close()

    def _later(self, request: Request, send: Send) -> None:
        def validate() -> None:
            way = revalidate(request, self.options)
            fetched = self._drive(way, Course(self, request, Caller(), background=True), send)
            if fetched is not None:
                while isinstance(fetched.body, CachedBody) and fetched.body.storing and fetched.body.read():
                    pass
                fetched.body.close()

        self.background.begin(request.uri, validate)

    def _alater(self, request: Request, send: AsyncSend) -> None:
        async def validate() -> None:
            way = revalidate(request, self.options)
            fetched = await self._adrive(way, Course(self, request, Caller(), background=True), send)
            if fetched is not None:
                while isinstance(fetched.body, AsyncCachedBody) and fetched.body.storing and await fetched.body.read():
                    pass
                await fetched.body.aclose()

        self.background.abegin(request.uri, validate)

    def close(self) -> None:
        """End what runs in the background and close the storage. Idempotent; bodies being read stay readable.

        Requests after it are forwarded, and nothing is stored of them. What of bodies is thrown away unclosed after it,
        the next request closes, or the next call.
        Validations in threads cannot be cut short; they are waited for, for a second at most.
        """
        close_abandoned()
        with self._lock:
            closed, self._closed = self._closed, True
        if closed:
            return
        for download in self.forgotten.under_way():
            download.settle()
        deadline = time.monotonic() + CLOSING_SECONDS
        self.background.close(deadline)
        self._ticker.stop(max(0.0, deadline - time.monotonic()))
        self.storage.close()

    async def aclose(self) -> None:
        """The same for a task."""
        await in_thread(self.close)
        await self.background.ended()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _forked(self) -> None:
        """In a child process: what is under way belongs to the parent."""
        self.flights.reset()
        self.forgotten.forked()
        self.hits.reset()
        self.background.forked()
        self._ticker = Ticker()
        self._lock = threading.Lock()

    # What an exchange needs of the storage.

    def read(self, key: str, *, wait: bool = True) -> Record | None:
        """What is on record for *key* and may answer.

        :raises BlockingIOError: with ``wait=False``, when the storage would wait for the disk.
        """
        return self.forgotten.remaining(key, self.storage.read(key, wait=wait))

    def change(self, key: str, changes: Changes) -> None:
        """Replace stored responses of *key* by others or by nothing, whoever else is changing it."""

        table = dict(changes)
        for old, new in changes:
            if new is None:
                self.forgotten.drop(key, old)

        def changed(responses: tuple[StoredResponse, ...]) -> tuple[StoredResponse, ...]:
            return tuple(new for old in responses if (new := table.get(old, old)) is not None)

        self._swap(key, changed)

    def keep(self, key: str, stored: StoredResponse) -> None:
        """Put a response whose body is committed on record."""
        self._swap(key, lambda responses: merged(responses, stored, self.clock()))

    def drop(self, uri: str, key: str, body: BodyRef, why: str) -> None:
        """Drop the response that has this body; *why*: ``damaged``, or ``refused`` by its consumer."""
        log.info("dropped what was stored of %s: %s", redacted(uri), why)
        self.forgotten.drop(key, body)
        if self._swap(key, lambda responses: responses) and self.metrics is not None:
            left = self.storage.read(key)  # a storage that cannot change anything does not say so
            if left is None or all(stored.body != body for stored in left.responses):
                self.metrics.evicted(why)

    def _swap(self, key: str, change: Callable[[tuple[StoredResponse, ...]], tuple[StoredResponse, ...]]) -> bool:
        """Whether there was something to change, and no one else has done it."""
        for _ in range(SWAPS):
            seen = self.storage.read(key)
            left = self.forgotten.remaining(key, seen)
            changed = change(left.responses if left else ())
            if changed == (seen.responses if seen else ()):
                return False
            if self.storage.swap(key, seen, Record(changed)):
                return True
        return False


_caches: WeakSet[Cache] = WeakSet()


def _after_fork() -> None:
    for cache in tuple(_caches):
        cache._forked()


os.register_at_fork(after_in_child=_after_fork)
