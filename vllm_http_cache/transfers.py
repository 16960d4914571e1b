"""How octets come out of a source into a download.

A synchronous source has no pump: it is read when a reader is short of octets. An asynchronous one is pumped by a task
of its own, so that a cancelled caller cannot break off a read in the middle.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from .downloads import PACE, Broken, Download, Reader
from .loops import Task, in_thread, spawn, task_bell

if TYPE_CHECKING:
    from .wire import AsyncSource, Caller, Source

log = logging.getLogger("vllm_http_cache")

__all__ = ["PulledDownload", "PumpedDownload", "Ticker", "alet_go", "let_go"]


def let_go(source: Source) -> None:
    """Close it. Whatever that raises is nothing to those who do not want it any more."""
    with suppress(Exception):
        source.close()


async def alet_go(source: AsyncSource) -> None:
    """The same for a task."""
    with suppress(Exception):
        await source.aclose()


class Ticker:
    """Has pulled downloads write what has come when nothing comes after it: other processes may be waiting.

    One thread for all, while there are any. (A pumped download has a task for that.)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._downloads: list[PulledDownload] = []
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def watch(self, download: PulledDownload) -> None:
        """Look at it every PACE seconds until it has ended."""
        with self._lock:
            if self._stopped.is_set() or download in self._downloads:
                return
            self._downloads.append(download)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="vllm-http-cache ticker", daemon=True)
                with suppress(RuntimeError):  # there are no more threads: others wait a little longer
                    thread.start()
                    self._thread = thread

    def _run(self) -> None:
        while not self._stopped.wait(PACE):
            with self._lock:
                watched = tuple(self._downloads)
                if not watched:
                    self._thread = None
                    return
            for download in watched:
                if not self._goes_on(download):
                    with self._lock:
                        self._downloads.remove(download)

    def _goes_on(self, download: PulledDownload) -> bool:
        try:
            return download.tick()
        except Exception:  # of one, and not of all
            log.exception("a body could not be written in time for other processes")
            return False

    def stop(self, seconds: float) -> None:
        """End the thread; wait for it so long at most."""
        self._stopped.set()
        if (thread := self._thread) is not None:
            thread.join(seconds)


class PulledDownload(Download):
    """From a synchronous source: whichever reader is short pulls.

    The source waits as long as its own caller would. That caller, the owner, pulls in its own thread; for the others
    a thread pulls, so that each waits no longer than it wants to.
    """

    def __init__(self, ticker: Ticker, source: Source, *rest: Any, **more: Any) -> None:
        super().__init__(*rest, **more)
        self._ticker = ticker
        self._source = source
        self._pulling = threading.RLock()  # which knows its owner, who may be interrupted at any moment
        self._is_pulled = self._stopped = False
        self._owner: Reader | None = None

    def attach(self) -> Reader | None:
        reader = super().attach()
        self._owner = self._owner or reader
        return reader

    def landed(self) -> None:
        self._ticker.watch(self)  # from now on: its owner may never read

    def wait(self, reader: Reader, caller: Caller) -> None:
        if not (reader is self._owner and self._pull(reader)):
            super().wait(reader, caller)

    def _stir(self) -> None:
        if self._is_pulled:
            return
        try:
            threading.Thread(target=self._pull, name="vllm-http-cache download", daemon=True).start()
        except RuntimeError:  # there are no more threads: it goes at its owner's pace
            if self._owner not in self._readers:
                self._alone(lambda: self._stop(Broken("there is no thread to receive this body in")))

    def _pull(self, reader: Reader | None = None) -> bool:
        """Receive one chunk, unless there is one for *reader* already. False: another thread is receiving."""

        def receive() -> None:
            if not (self._ended or (reader is not None and reader.offset < self._tail.end)):
                self._receive_one()

        return self._alone(receive)

    def _alone(self, act: Callable[[], None], *, wait: bool = False) -> bool:
        """Do what one thread at a time may. False: another is at it, and looks after what is left to do."""
        if self._is_pulled and not wait:
            return False
        try:
            if not self._pulling.acquire(blocking=wait):
                return False
            try:
                self._is_pulled = True
                act()
            finally:
                self._is_pulled = False
        finally:
            try:  # and call nothing before, for that could be interrupted
                self._pulling.release()
            except RuntimeError:  # it was not acquired
                pass
            else:
                self._leave()
        return True

    def _leave(self) -> None:
        """After :meth:`_alone`: those who found another at it have left what they wanted to this thread."""
        with self._lock:
            self._ring(self._readers)  # who got nothing by it has to pull next
        if self._ended or self._stopped:
            return
        if self._deserted:
            self._cancel()
        elif not self._readers and self._is_here():
            self._wind_up()

    def _receive_one(self) -> None:
        try:
            try:
                chunk = self._source.read()
            except Exception as error:
                self._fail(_broken(error, self._time_outs))
                return
            if not chunk:
                self._finish()
                return
            if self._receive(chunk):
                self._flush()
        except BaseException:  # a signal's handler raises between any two of these steps
            self._interrupted()
            raise
        finally:
            if self._ended:
                let_go(self._source)

    def _interrupted(self) -> None:
        """Whoever received has broken off anywhere: what is in the tail may not be what came."""
        with self._lock:
            if not self._ended:
                self._tail.clear()
        self._fail(Broken("the reader was interrupted"))

    def tick(self) -> bool:
        """Write what has come when nothing comes after it. False: there will be nothing more to write."""
        if self._is_due():
            self._flush()
        return not self._ended and self._writer is not None

    def _go_on_alone(self) -> None:
        with suppress(RuntimeError):  # there are no more threads: it goes at its readers' pace
            threading.Thread(target=self._pull_on, name="vllm-http-cache download", daemon=True).start()

    def _pull_on(self) -> None:
        def receive_all() -> None:
            while not self._ended and not self._deserted and self._writer is not None:
                self._receive_one()

        self._alone(receive_all, wait=True)

    def _wind_up(self) -> None:
        self._pull()  # if another does, it comes to the end

    def _cancel(self) -> None:
        self._alone(lambda: self._stop(Broken("nobody wanted the rest")))

    def _stop(self, why: Broken) -> None:
        if not (self._ended or self._stopped):
            self._stopped = True
            let_go(self._source)
            self._fail(why)


def _broken(error: Exception, time_outs: tuple[type[Exception], ...]) -> Broken:
    """What an error of the source is to the readers."""
    return Broken(str(error) or type(error).__name__, error, timed_out=isinstance(error, time_outs))


class PumpedDownload(Download):
    """From an asynchronous source: a task of its own pumps, and another has a thread write meanwhile."""

    def __init__(self, source: AsyncSource, *rest: Any, **more: Any) -> None:
        super().__init__(*rest, **more)
        self._source = source
        self._room, self._due = task_bell(), task_bell()
        self._scribe: Task | None = None
        self._task = spawn(self._pump)

    def joinable(self) -> bool:
        return super().joinable() and not self._task.is_lost()

    def is_lost(self) -> bool:
        return not self._ended and self._task.is_lost()

    def is_silent(self, seconds: float) -> bool:
        return not (self._ended or self._task.is_lost()) and self._task.silent() >= seconds

    async def _pump(self) -> None:
        error: Broken | None = Broken("the event loop that was receiving this body has ended")
        try:
            if self._publish is not None:
                self._scribe = spawn(self._write)
            while chunk := await self._source.read():
                if due := self._receive(chunk):
                    self._due.ring()
                if due and self._scribe is None:
                    self._scribe = spawn(self._write)
                await self._wait_for_room()
            error = None
        except Exception as caught:
            error = _broken(caught, self._time_outs)
        except BaseException:  # the loop ends
            error = None if self._is_here() else error
            raise
        finally:
            if self._scribe is not None:
                self._scribe.cancel()
            end = self._finish if error is None else partial(self._fail, error)
            try:
                if not self._task.is_lost():  # otherwise nothing can be awaited
                    with anyio.CancelScope(shield=True):
                        await alet_go(self._source)
                        await in_thread(end)
            finally:
                end()  # a loop that ends cancels in spite of the shield, perhaps before the thread has begun

    async def _write(self) -> None:
        """Write what is due, and what has come when nothing comes after it: other processes may be waiting."""
        while not self._ended and self._writer is not None:
            await self._due.wait(PACE)
            self._due = task_bell()
            if self._is_due():
                try:
                    await in_thread(self._flush)
                except Exception:
                    log.exception("a body could not be written")
            self._room.ring()

    async def _wait_for_room(self) -> None:
        while len(self._tail) >= self.longest_tail * (1 if self._writer is None else 2):
            await self._room.wait(None)
            self._room = task_bell()

    def settle(self) -> None:
        if self._is_here():  # and its loop may not be run any more
            self._finish()

    def _cancel(self) -> None:
        if not self._task.cancel():
            self.bury()

    def _room_made(self) -> None:
        self._room.ring()
