"""Bodies that other processes may follow while they grow.

``growing/<flight>`` says where such a body lies. Whoever has opened it learns from its own descriptor how it ended: a
body that is whole has lost its write permission, one that was abandoned has lost its name.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable

from ..rfc9111.message import StoredResponse
from .devices import Descriptor, is_no_file, shut
from .layout import Home
from .readers import read_file
from .records import LARGEST, decode_growing

__all__ = ["GrowingBody", "find", "withdraw", "withdraw_dead"]


class GrowingBody:
    """:param orphaned: whether the writer that has the file at a path has died."""

    def __init__(self, fd: int, path: str, stored: StoredResponse, orphaned: Callable[[str], bool]) -> None:
        self._file = Descriptor(fd)
        self._path = path
        self._orphaned = orphaned
        self.stored = stored

    def read(self, offset: int, size: int) -> bytes:
        try:
            return os.pread(self._file.number, size, offset)
        except OSError:
            return b""

    def ended(self) -> bool | None:
        try:
            status = os.fstat(self._file.number)
        except OSError:
            return False
        if not status.st_mode & stat.S_IWUSR:
            return True
        return None if status.st_nlink else False

    def orphaned(self) -> bool:
        return self._orphaned(self._path)

    def silent(self) -> float:
        try:
            return abs(time.time() - os.fstat(self._file.number).st_mtime)  # a clock may have been put back
        except OSError:
            return 0.0

    def close(self) -> None:
        self._file.close()


def find(home: Home, flight: str, orphaned: Callable[[str], bool]) -> GrowingBody | None:
    """The growing body of *flight*, if one is announced.

    :raises OSError: the disk does not answer.
    """
    announced = _announced(home, flight)
    if announced is None:
        return None
    path, stored = announced
    try:
        return GrowingBody(home.open(path, os.O_RDONLY), path, stored, orphaned)
    except FileNotFoundError:
        return None


def withdraw(home: Home, flight: str, path: str) -> None:
    """Announce the body at *path* no longer."""
    announced = _announced(home, flight)
    if announced is not None and announced[0] == path:
        home.unlink(f"growing/{flight}")


def withdraw_dead(home: Home) -> bool:
    """Remove the announcements of bodies that do not grow any more; whether there were any."""
    found = False
    for flight in home.names("growing"):
        announced = _announced(home, flight)
        ended = announced is None or home.status(announced[0]) is None
        if ended and _announced(home, flight) == announced:  # else it is a new leader's
            home.unlink(f"growing/{flight}")
            found = True
    return found


def _announced(home: Home, flight: str) -> tuple[str, StoredResponse] | None:
    fd = -1
    try:
        fd = home.open(f"growing/{flight}", os.O_RDONLY)
        return decode_growing(read_file(fd, LARGEST, 0, extra=1), flight)
    except OSError as error:
        if is_no_file(error):
            return None
        raise
    finally:
        shut(fd)
