"""System calls that fail, or kill, on demand."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.storage.helpers import patched

CALLS = {
    os: [
        *("open", "close", "dup", "read", "write", "pread", "pwrite", "preadv", "pwritev", "stat", "fstat", "fstatvfs"),
        *("listdir", "rename", "unlink", "mkdir", "rmdir", "chmod", "fchmod", "utime", "fsync"),
    ],
    fcntl: ["flock", "fcntl"],
}


@contextmanager
def intercepted(before: Callable[[str], None]) -> Iterator[None]:
    """Have *before* called before each system call that a storage makes, and for none of its own."""
    busy = False

    def wrap(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def intercept(*arguments: Any, **options: Any) -> Any:
            nonlocal busy
            if not busy:
                busy = True
                try:
                    before(name)
                finally:
                    busy = False
            return call(*arguments, **options)

        return intercept

    with ExitStack() as stack:
        for module, names in CALLS.items():
            for name in names:
                if hasattr(module, name):
                    stack.enter_context(patched(module, name, wrap(name, getattr(module, name))))
        yield


class Nth:
    """Does something at the nth system call, or at all from there on."""

    def __init__(self, nth: int, what: Callable[[], None], *, only: str | None = None, on: bool = False) -> None:
        self.calls = 0
        self._nth = nth
        self._what = what
        self._only = only
        self._on = on

    @property
    def happened(self) -> bool:
        return self.calls >= self._nth

    def __call__(self, name: str) -> None:
        if self._only in {None, name}:
            self.calls += 1
            if self.calls == self._nth or (self._on and self.happened):
                self._what()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail(code: int) -> Callable[[], None]:
    def raise_it() -> None:
        raise OSError(code, os.strerror(code))

    return raise_it
