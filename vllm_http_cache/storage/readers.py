"""Bodies as they are read: no octet is given out before the digest of its block has been compared.

Small bodies are read and checked in one go and served from memory. Larger ones are read a block at a time; those of
medium size are checked whole before the first octet is given out.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Protocol

from xxhash import xxh3_64_digest

from ..rfc9111.message import BodyRef
from .devices import Descriptor, is_no_file, shut
from .layout import Home, file_path, is_body
from .protocol import BodyDamaged, BodyReader, BodyUnreadable

__all__ = ["BLOCK", "MEDIUM", "GrowingReader", "open_reader", "read_file"]

BLOCK = 1024 * 1024  # octets; one digest each
MEDIUM = 16 * BLOCK

_DIGEST = 8
_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # as Home.open, without its overhead
_scratch = threading.local()


def open_reader(
    home: Home,
    ref: BodyRef,
    *,
    wait: bool,
    damaged: Callable[[str], None],
    warn: Callable[[str, OSError], None],
) -> BodyReader:
    """Open a body.

    :param damaged: told the name of a body that turns out to be damaged, now or later.
    :param warn: told what the disk does later.
    :raises BlockingIOError: the answer would have to wait for the medium.
    :raises BodyDamaged: it is gone, or not what *ref* says.
    :raises OSError: it cannot be read.
    """
    name, length = ref.name, ref.length
    if is_body(name) is None or len(ref.digests) != -(-length // BLOCK) * _DIGEST:
        raise BodyDamaged(f"{name} cannot be a body")
    if not wait and (home.remote or length > BLOCK):
        raise BlockingIOError
    try:
        fd = os.open(file_path(name), _FLAGS, dir_fd=home.fd)
        if length > BLOCK:
            reader = _Blocks(Descriptor(fd), ref, damaged, warn)
            reader.check()
            return reader
        try:
            data = read_file(fd, length, 0, extra=1, wait=wait)
        finally:
            shut(fd)
    except OSError as error:
        if not is_no_file(error):
            raise
    else:
        if len(data) == length and (not length or xxh3_64_digest(data) == ref.digests):
            return _Memory(data)
    damaged(name)
    raise BodyDamaged(f"{name} is gone or damaged")


class _Memory:
    __slots__ = ("_data", "length")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.length = len(data)

    def read(self, offset: int, size: int, *, wait: bool = True) -> bytes:
        return self._data[offset : offset + size]

    def close(self) -> None:
        pass


class _Blocks:
    """Keeps the block read last, so that reading on in small pieces checks each block once."""

    def __init__(
        self, file: Descriptor, ref: BodyRef, damaged: Callable[[str], None], warn: Callable[[str, OSError], None]
    ) -> None:
        self.length = ref.length
        self._file: Descriptor | None = file
        self._ref = ref
        self._damaged = damaged
        self._warn = warn
        self._last = (-1, b"")

    def check(self) -> None:
        """What can be checked before the first octet is given out.

        :raises BodyDamaged: it is not what was stored.
        :raises OSError: it cannot be read.
        """
        if os.fstat(self._open().number).st_size != self.length:
            raise self._damage()
        if self.length <= MEDIUM:
            for index in range(-(-self.length // BLOCK)):
                self._load(index, wait=True)

    def _open(self) -> Descriptor:
        if self._file is None:
            raise ValueError("read of a closed body")
        return self._file

    def _damage(self) -> BodyDamaged:
        self._damaged(self._ref.name)
        return BodyDamaged(f"{self._ref.name} is damaged")

    def read(self, offset: int, size: int, *, wait: bool = True) -> bytes:
        if offset >= self.length:
            return b""
        index, start = divmod(offset, BLOCK)
        return self._block(index, wait=wait)[start : start + size]

    def _block(self, index: int, *, wait: bool) -> bytes:
        last, data = self._last
        if last == index:
            return data
        try:
            return self._load(index, wait=wait)
        except BlockingIOError:
            raise
        except OSError as error:
            self._warn("reading a body", error)
            raise BodyUnreadable(f"{self._ref.name} cannot be read") from error

    def _load(self, index: int, *, wait: bool) -> bytes:
        file, size = self._open(), min(BLOCK, self.length - index * BLOCK)
        data = read_file(file.number, size, index * BLOCK, wait=wait)
        if xxh3_64_digest(data) != self._ref.digests[index * _DIGEST : (index + 1) * _DIGEST]:
            raise self._damage()
        self._last = (index, data)
        return data

    def close(self) -> None:
        self._file = None
        self._last = (-1, b"")


class Writer(Protocol):
    written: int


class GrowingReader:
    """Reads what its writer has written so far, also after the writer's end."""

    def __init__(self, writer: Writer, file: Descriptor | None) -> None:
        self._writer = writer
        self._file = file

    @property
    def length(self) -> int:
        return self._writer.written

    def read(self, offset: int, size: int, *, wait: bool = True) -> bytes:
        size = min(size, self.length - offset)
        if size <= 0:
            return b""
        if (file := self._file) is None:
            raise ValueError("read of a closed body")
        try:
            data = os.pread(file.number, size, offset)
        except OSError as error:
            raise BodyUnreadable("a growing body cannot be read") from error
        if not data:
            raise BodyDamaged("a growing body has been cut")
        return data

    def close(self) -> None:
        self._file = None


def read_file(fd: int, size: int, offset: int, *, extra: int = 0, wait: bool = True) -> bytes:
    """*size* octets at *offset*, fewer at the end of the file, and up to *extra* more if there are.

    :raises BlockingIOError: with ``wait=False``, when the *size* octets are not in memory.
    """
    if not wait and _NOWAIT is not None:
        data = _read_cached(fd, size + extra, offset)
        if data is not None:
            if len(data) < size:
                raise BlockingIOError
            return data
    data = os.pread(fd, size + extra, offset)
    while 0 < len(data) < size:
        more = os.pread(fd, size - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def _read_cached(fd: int, size: int, offset: int) -> bytes | None:
    """What of it is in memory. None: the file system cannot say; it is not a remote one, so it is not slow."""
    try:
        view: memoryview = _scratch.view
    except AttributeError:
        view = _scratch.view = memoryview(bytearray(BLOCK + 1))
    if size > len(view):
        return None
    try:
        count = os.preadv(fd, [view[:size]], offset, _NOWAIT or 0)
    except BlockingIOError:
        raise
    except OSError:
        return None
    return bytes(view[:count])
