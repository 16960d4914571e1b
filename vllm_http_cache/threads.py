"""Threads for what may wait for the disk, shared by all who have calls to make.

They are daemons: an event loop may be left at any moment, for ever and without a word, and then nobody else would tell
them to end. The end of the process waits for the calls under way, but not for long.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar

__all__ = ["Threads"]

T = TypeVar("T")

_Call: TypeAlias = tuple[Future[Any], Callable[[], Any]]
_Work: TypeAlias = Callable[[Callable[[], None]], None]  # is told how its thread says that it is free for other work

IDLE = 10.0  # seconds after which a thread without work ends
ENDING = 1.0  # seconds that the end of the process waits at most


class Threads:
    """Makes calls in at most so many threads at once, in their order."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._busy = 0
        self._waiting: deque[_Call] = deque()
        self._lock = threading.Lock()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """:raises RuntimeError: no thread can be started."""
        future: Future[T] = Future()
        free = False
        try:
            with self._lock:
                free = self._busy < self._most
                self._busy += free
                if not free:
                    self._waiting.append((future, call))
            if free:
                _wake(partial(self._work, (future, call)))
        except BaseException:  # a signal's handler may raise anywhere
            with self._lock:
                self._busy -= free
            raise
        return future

    def _work(self, first: _Call, rest: Callable[[], None]) -> None:
        """Make calls until none waits. *rest* is called before the last one's result is told: that may bring more."""
        work: _Call | None = first
        while work is not None:
            future, call = work
            result, error = None, None
            try:
                result = call()
            except BaseException as caught:
                error = caught
            with self._lock:
                work = self._waiting.popleft() if self._waiting else None
                self._busy -= work is None
            if work is None:
                rest()
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
            del future, call, result, error  # the next call may take its time


class _Thread(threading.Thread):
    def __init__(self, first: _Work) -> None:
        super().__init__(name="vllm-http-cache disk", daemon=True)
        self.wanted: SimpleQueue[_Work | None] = SimpleQueue()  # None: it is to end
        self.wanted.put(first)

    def run(self) -> None:
        while (work := self._next()) is not None:
            work(self._rest)
            del work

    def _rest(self) -> None:
        _idle.append(self)

    def _next(self) -> _Work | None:
        while True:
            try:
                work = self.wanted.get(timeout=IDLE)
            except Empty:
                work = None
            if work is not None:
                return work
            try:
                _idle.remove(self)
            except ValueError:  # somebody is waking it just now
                continue
            return None


_idle: list[_Thread] = []


def _wake(work: _Work) -> None:
    try:
        thread = _idle.pop()
    except IndexError:
        _Thread(work).start()
    else:
        thread.wanted.put(work)


def _end() -> None:
    running = [thread for thread in threading.enumerate() if isinstance(thread, _Thread) and thread.is_alive()]
    for thread in running:
        thread.wanted.put(None)
    deadline = time.monotonic() + ENDING
    for thread in running:
        thread.join(max(0.0, deadline - time.monotonic()))


atexit.register(_end)
os.register_at_fork(after_in_child=_idle.clear)
