"""Records as they are read, with a memo of those decoded before.

A record file never changes; replacing it makes another. The whole seconds of its modification time say when it was
used last, so that reading files, as backups do, is no use. The rest is a mark, given when the file is made, of the
milliseconds of that time and a random number: with inode and size it tells one file from another, because inodes come
back. Where a file system keeps whole seconds only, they do, and a use that has been noted has the record read again.
"""

from __future__ import annotations

import os
import random
import stat
from contextlib import suppress
from dataclasses import dataclass

from .devices import shut
from .layout import Home, file_path, is_key
from .protocol import Record
from .readers import read_file
from .records import LARGEST, decode

__all__ = ["Loaded", "Shelf", "marked"]

_ENTRIES = 4096
_LARGEST_KEPT = 16 * 1024  # octets of a record file
_USE_INTERVAL = 60.0  # seconds

_SECOND = 10**9  # nanoseconds

Generation = tuple[int, int, int]


@dataclass(slots=True)
class Loaded:
    """A record file. ``record`` is None when it is damaged."""

    generation: Generation
    record: Record | None
    oldest: float = 0.0  # the range of its responses' ``confirmed``
    newest: float = 0.0
    used: float = 0.0  # when its use was last noted on the disk

    def visible(self, earliest: float, latest: float) -> Record | None:
        """The record as far as it was confirmed between these times; None when nothing is left of it."""
        record = self.record
        if record is None or (self.oldest >= earliest and self.newest <= latest):
            return record
        responses = tuple(stored for stored in record.responses if earliest <= stored.confirmed <= latest)
        return Record(responses, self.generation) if responses else None


class Shelf:
    def __init__(self) -> None:
        self._memo: dict[str, Loaded] = {}

    def get(self, home: Home, key: str, *, wait: bool = True) -> Loaded | None:
        """The record file of *key*.

        :raises BlockingIOError: with ``wait=False``, when it would have to wait for the medium.
        :raises OSError: the disk does.
        """
        loaded = self._memo.get(key)
        if loaded is None and is_key(key) is None:
            raise ValueError(f"{key!r} is not a key")
        if home.remote:  # there, only opening a file tells what it is now
            if not wait:
                raise BlockingIOError
            return self._load(home, key, loaded, wait=wait)
        try:
            status = os.stat(f"{key[:2]}/{key}", dir_fd=home.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if loaded is not None and loaded.generation == _generation(status):
            return loaded
        if not stat.S_ISREG(status.st_mode):
            return Loaded(_generation(status), None)
        return self._load(home, key, None, wait=wait)

    def _load(self, home: Home, key: str, known: Loaded | None, *, wait: bool) -> Loaded | None:
        try:
            fd = home.open(file_path(key), os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            status = os.fstat(fd)
            generation = _generation(status)
            if known is not None and known.generation == generation:
                return known
            if not stat.S_ISREG(status.st_mode):
                return Loaded(generation, None)
            data = read_file(fd, min(status.st_size, LARGEST), 0, extra=1, wait=wait)
        finally:
            shut(fd)
        responses = decode(data, key)
        loaded = Loaded(generation, None, used=status.st_mtime_ns // _SECOND)
        if responses:
            times = [stored.confirmed for stored in responses]
            loaded.record = Record(responses, generation)
            loaded.oldest, loaded.newest = min(times), max(times)
            if len(data) <= _LARGEST_KEPT:
                self._keep(key, loaded)
        return loaded

    def _keep(self, key: str, loaded: Loaded) -> None:
        with suppress(RuntimeError, StopIteration):  # other threads change it too
            while len(self._memo) >= _ENTRIES:
                self._memo.pop(next(iter(self._memo)), None)
        self._memo[key] = loaded

    def note_use(self, home: Home, key: str, loaded: Loaded, now: float) -> None:
        """Note on the disk that a record has answered, once a minute at most. What prevents it does not matter."""
        if 0 <= now - loaded.used < _USE_INTERVAL:
            return
        loaded.used = now
        with suppress(OSError):
            _touch(home, file_path(key), marked(now, loaded.generation[1]))


def _generation(status: os.stat_result) -> Generation:
    return status.st_ino, status.st_mtime_ns % _SECOND or status.st_mtime_ns, status.st_size


def _touch(home: Home, path: str, time: int) -> None:
    """Whoever has replaced the file just now finds it with this mark, and reads it once more."""
    try:
        os.utime(path, ns=(time, time), dir_fd=home.fd, follow_symlinks=False)
    except PermissionError:
        os.utime(path, dir_fd=home.fd, follow_symlinks=False)  # another user's, in a shared group: the mark is lost


def marked(now: float, mark: int | None = None) -> int:
    """The modification time, in nanoseconds, of a record file that is used now. Without a mark: a new one's."""
    if mark is None:
        return int(now * 1000) * 10**6 + 1 + random.getrandbits(19)
    return int(now) * _SECOND + mark % _SECOND
