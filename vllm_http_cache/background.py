"""Validations that run beside the requests that caused them: few at once, and one for each URI."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Awaitable, Callable

import anyio

from .loops import Task, spawn
from .rfc9111.target import redacted

__all__ = ["MOST", "Background"]

log = logging.getLogger("vllm_http_cache")

MOST = 16  # at once


class Background:
    """Those of one cache."""

    def __init__(self) -> None:
        self._closed = False
        self.forked()

    def forked(self) -> None:
        """In a child process: what runs is the parent's."""
        self._work: dict[str, Task | threading.Thread | None] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._work)

    def begin(self, uri: str, validate: Callable[[], None]) -> None:
        """Validate *uri* in a thread, if it may be."""

        def run() -> None:
            try:
                validate()
            except Exception as error:
                _log(uri, error)
            finally:
                self._work.pop(uri, None)

        if self._may_begin(uri):
            self._work[uri] = thread = threading.Thread(target=run, name="vllm-http-cache validation", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # there are no more threads: another request validates
                self._work.pop(uri, None)

    def abegin(self, uri: str, validate: Callable[[], Awaitable[None]]) -> None:
        """The same in a task."""

        async def run() -> None:
            try:
                await validate()
            except Exception as error:
                _log(uri, error)
            finally:
                self._work.pop(uri, None)

        if self._may_begin(uri):
            self._work[uri] = spawn(run)

    def _may_begin(self, uri: str) -> bool:
        with self._lock:
            for other, work in tuple(self._work.items()):
                if isinstance(work, Task) and work.is_lost():
                    self._work.pop(other, None)
            if self._closed or uri in self._work or len(self._work) >= MOST:
                return False
            self._work[uri] = None
            return True

    def close(self, deadline: float) -> None:
        """Cancel tasks, wait for threads until *deadline* (monotonic seconds), and begin no more."""
        with self._lock:
            self._closed = True
        running = tuple(self._work.values())
        for work in running:
            if isinstance(work, Task):
                work.cancel()
        for work in running:
            if isinstance(work, threading.Thread) and work.ident is not None:
                work.join(max(0.0, deadline - time.monotonic()))

    async def ended(self) -> None:
        """Wait, a second at most, until cancelled tasks are done."""
        for _ in range(100):
            if not any(isinstance(work, Task) for work in self._work.values()):
                break
            await anyio.sleep(0.01)


def _log(uri: str, error: Exception) -> None:
    # The error's own words are not ours to log: clients put URLs in them, signatures and all.
    log.info("validating %s in the background failed: %s", redacted(uri), type(error).__name__)
