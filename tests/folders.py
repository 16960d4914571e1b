"""Looking into a folder that others are changing."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["holds", "standing_still"]


def holds(folder: Path, octets: bytes) -> bool:
    """Whether any file below *folder* has *octets* in it; a file that goes meanwhile has not."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                if octets in Path(parent, name).read_bytes():
                    return True
    return False


@contextmanager
def standing_still(children: Collection[int]) -> Iterator[None]:
    """Stop these processes meanwhile, so that what they move is not counted twice."""
    for pid in children:
        os.kill(pid, signal.SIGSTOP)
    for pid in children:
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    try:
        yield
    finally:
        for pid in children:
            os.kill(pid, signal.SIGCONT)
