"""One thread that tidies up when asked to, and is not there otherwise."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

__all__ = ["Janitor"]


class Janitor:
    """:param work: what to do when asked; yields whenever something may have changed for those who wait."""

    def __init__(self, work: Callable[[], Iterator[object]]) -> None:
        self._work = work
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._asked = False
        self._closed = False

    def ask(self) -> None:
        """Have it tidy up, soon, once for all who ask meanwhile."""
        with self._changed:
            if self._closed:
                return
            self._asked = True
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="vllm-http-cache-janitor", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no more threads, or the interpreter is going down
                    return
                self._thread = thread

    def _run(self) -> None:
        try:
            while self._go_on():
                for _ in self._work():
                    with self._changed:
                        self._changed.notify_all()
                        if self._closed:
                            return
        finally:
            with self._changed:
                if self._thread is threading.current_thread():
                    self._thread = None
                    self._changed.notify_all()

    def _go_on(self) -> bool:
        with self._changed:
            self._changed.notify_all()
            if not self._asked or self._closed:
                self._thread = None
                return False
            self._asked = False
            return True

    def pause(self, deadline: float) -> bool:
        """Wait until something may have changed; False once nothing will, or *deadline* is past (monotonic seconds)."""
        with self._changed:
            left = deadline - time.monotonic()
            if left <= 0 or self._thread is None:
                return False
            self._changed.wait(min(left, 0.005))
        return True

    def rest(self, patience: float) -> bool:
        """Wait until it has done what it was asked to do, for *patience* seconds at most; whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, patience)

    def close(self) -> None:
        """Stop at the next folder."""
        with self._changed:
            self._closed = True
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(2.0)
