"""Bodies on their way into hishel's storage and out of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from xxhash import xxh3_64_digest

from ...rfc9111.message import BodyRef, StoredResponse
from ..devices import Descriptor, write_all
from ..protocol import BodyDamaged, BodyUnreadable
from ..readers import BLOCK, MEDIUM, GrowingReader

if TYPE_CHECKING:
    from .theirs import HishelStorage

__all__ = ["EntryReader", "TemporaryWriter"]


class TemporaryWriter:
    """A body in the making: in a file without a name until it is whole."""

    def __init__(self, storage: HishelStorage, key: str, length: int | None, file: Descriptor) -> None:
        self._storage = storage
        self._key = key
        self._length = length
        self._file: Descriptor | None = file
        self._sound = True
        self.written = 0

    def write(self, *pieces: bytes) -> bool:
        file, size = self._file, self.written + sum(map(len, pieces))
        if file is None or not self._sound:
            return False
        self._sound = self._storage._has_room(size) and self._storage._attempt(
            "writing a body", lambda: self._append(file, pieces, size), otherwise=False
        )
        return self._sound

    def _append(self, file: Descriptor, pieces: tuple[bytes, ...], size: int) -> bool:
        write_all(file.number, pieces, self.written)
        self.written = size
        return True

    def follow(self) -> GrowingReader:
        return GrowingReader(self, self._file)

    def publish(self, flight: str, stored: StoredResponse) -> None:
        """hishel shows nothing that is not whole."""

    def beat(self) -> None:
        """Nobody follows."""

    def commit(self) -> BodyRef | None:
        ref, file = None, self._file
        if file is not None and self._sound and self._length in (None, self.written):
            ref = self._storage._attempt("keeping a body", lambda: self._commit(file), None)
        self.abort()
        return ref

    def _commit(self, file: Descriptor) -> BodyRef | None:
        digests = bytearray()

        def blocks() -> Iterator[bytes]:
            for offset in range(0, self.written, BLOCK):
                block = os.pread(file.number, BLOCK, offset)
                digests.extend(xxh3_64_digest(block))
                yield block

        name = self._storage._keep_body(self._key, blocks())
        return None if name is None else BodyRef(name, self.written, bytes(digests))

    def abort(self) -> None:
        self._file = None


class EntryReader:
    """Reads the stream of an entry of hishel's a block at a time. Keeps the block read last."""

    def __init__(self, storage: HishelStorage, ref: BodyRef) -> None:
        """:raises BodyDamaged: it is gone, or not what was stored, as far as it is checked before the first read.
        :raises Exception: it cannot be read.
        """
        self.length = ref.length
        self._storage = storage
        self._ref = ref
        self._lock = threading.Lock()
        self._restart()
        if 0 < ref.length <= MEDIUM:
            self._seek((ref.length - 1) // BLOCK)

    def _restart(self) -> None:
        self._index, self._block, self._rest = -1, b"", b""
        self._chunks = self._storage._chunks(self._ref)

    def read(self, offset: int, size: int, *, wait: bool = True) -> bytes:
        if offset >= self.length:
            return b""
        index, start = divmod(offset, BLOCK)
        if not self._lock.acquire(blocking=wait):
            raise BlockingIOError
        try:
            if index != self._index:
                if not wait:
                    raise BlockingIOError
                self._seek(index)
            return self._block[start : start + size]
        finally:
            self._lock.release()

    def _seek(self, index: int) -> None:
        if not self._storage._usable:
            raise BodyUnreadable("its storage is closed, or another process's")
        try:
            if index < self._index:
                self._restart()
            while self._index < index:
                self._advance()
        except BodyUnreadable:
            raise
        except Exception as error:
            raise BodyUnreadable(f"{self._ref.name} cannot be read") from error

    def _advance(self) -> None:
        index = self._index + 1
        size = min(BLOCK, self.length - index * BLOCK)
        octets = bytearray(self._rest)
        while len(octets) < size and (chunk := next(self._chunks, None)) is not None:
            octets += chunk
        block = bytes(octets[:size])
        if xxh3_64_digest(block) != self._ref.digests[index * 8 : index * 8 + 8]:
            self._chunks, self._rest = iter(()), b""
            raise BodyDamaged(f"{self._ref.name} is damaged")
        self._index, self._block, self._rest = index, block, bytes(octets[size:])

    def close(self) -> None:
        with self._lock:
            self._chunks, self._index, self._block, self._rest = iter(()), -1, b"", b""
