"""A storage in memory, as small as the contract allows, whose failures a test can script."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from itertools import count
from math import inf

from vllm_http_cache.rfc9111.message import BodyRef, StoredResponse
from vllm_http_cache.storage.protocol import BodyDamaged, BodyUnreadable, Observer, Record, Stat


class MemoryReader:
    def __init__(self, storage: MemoryStorage, data: bytearray | bytes) -> None:
        self._storage = storage
        self._data = data

    @property
    def length(self) -> int:
        return len(self._data)

    def read(self, offset: int, size: int, *, wait: bool = True) -> bytes:
        if not wait and self._storage.slow:
            raise BlockingIOError
        damaged_from = self._storage.damaged_from if isinstance(self._data, bytes) else None  # a growing body is not
        if damaged_from is not None and offset + size > damaged_from:
            raise BodyUnreadable("scripted") if self._storage.whole else BodyDamaged("scripted")
        return bytes(self._data[offset : offset + min(size, self._storage.most)])

    def close(self) -> None:
        self._storage.open_readers -= 1


class MemoryWriter:
    def __init__(self, storage: MemoryStorage) -> None:
        self._storage = storage
        self._data = bytearray()
        storage.open_writers += 1

    def write(self, *pieces: bytes) -> bool:
        data = b"".join(pieces)
        if len(self._data) + len(data) > self._storage.room:
            return False
        self._data += data
        return True

    def follow(self) -> MemoryReader:
        self._storage.open_readers += 1
        return MemoryReader(self._storage, self._data)

    def publish(self, flight: str, stored: StoredResponse) -> None:
        pass

    def beat(self) -> None:
        pass

    def commit(self) -> BodyRef | None:
        self._storage.open_writers -= 1
        name = f"body {next(self._storage.names)}"
        self._storage.bodies[name] = bytes(self._data)
        return BodyRef(name, len(self._data))

    def abort(self) -> None:
        self._storage.open_writers -= 1
        self._storage.aborted += 1


class Unclaimed:
    def release(self) -> None:
        pass


class MemoryStorage:
    """``room``: octets a body may have. ``most``: octets that one read gives. ``damaged_from``: offset; ``whole``: from
    there on bodies cannot be read, but are not damaged. ``unreadable``: no body can be opened.

    ``slow``: nothing is there without waiting. ``stuck``: nothing can be stored or removed, as on a read-only disk.
    """

    def __init__(self, *, ttl: float = inf) -> None:
        self.ttl = ttl
        self.room: float = inf
        self.most = sys.maxsize
        self.slow = self.stuck = self.remote = self.unreadable = self.whole = False
        self.damaged_from: int | None = None
        self.records: dict[str, Record] = {}
        self.bodies: dict[str, bytes] = {}
        self.names = count()
        self.open_readers = self.open_writers = self.aborted = 0
        self._lock = threading.Lock()

    def observe(self, observer: Observer | None) -> None:
        pass

    def read(self, key: str, *, wait: bool = True) -> Record | None:
        if not wait and self.slow:
            raise BlockingIOError
        return self.records.get(key)

    def swap(self, key: str, seen: Record | None, record: Record) -> bool:
        if self.stuck:
            return True
        with self._lock:
            if self.records.get(key) is not seen:
                return False
            if record.responses:
                self.records[key] = record
            else:
                self.records.pop(key, None)
            return True

    def forget(self, key: str) -> None:
        if not self.stuck:
            self.records.pop(key, None)

    def create_body(self, key: str, length: int | None) -> MemoryWriter | None:
        return None if self.stuck or (length is not None and length > self.room) else MemoryWriter(self)

    def open_body(self, ref: BodyRef, *, wait: bool = True) -> MemoryReader | None:
        if not wait and self.slow:
            raise BlockingIOError
        if self.unreadable:
            return None
        data = self.bodies.get(ref.name)
        if data is None:
            raise BodyDamaged("gone")
        self.open_readers += 1
        return MemoryReader(self, data)

    def claim(self, flight: str) -> Unclaimed:
        return Unclaimed()

    def growing(self, flight: str) -> None:
        return None

    def scan(self) -> Iterator[Stat]:
        for key, record in tuple(self.records.items()):
            for stored in record.responses:
                yield Stat(key, stored, stored.body.length if stored.body else 0, 0.0)

    def close(self) -> None:
        pass
