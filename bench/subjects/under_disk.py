"""The floor: what the disk operations cost without any cache; and what the storage makes of them."""

from __future__ import annotations

import os
import time
from pathlib import Path

from vllm_http_cache import CacheOptions, FileStorage
from vllm_http_cache.rfc9111.message import Fields, StoredResponse
from vllm_http_cache.rfc9111.target import cache_key
from vllm_http_cache.storage.protocol import Record

from . import Makers, Subject
from .names import FLOORS, STORAGE, WRITE

URI = "http://media.example/100k.bin"
KEY = cache_key(URI, CacheOptions())


class Floor(Subject):
    """:param size: octets of the content, which lies in a file already."""

    def __init__(self, size: int) -> None:
        self._content = os.urandom(size)
        self._number = 0

    def open(self, folder: Path) -> None:
        self._path = folder / "file"
        self._path.write_bytes(self._content)
        self._buffer = bytearray(len(self._content))

    def close(self) -> None:
        """Nothing is kept open."""

    def get(self, url: str) -> bytes:
        raise NotImplementedError


class ReadBytes(Floor):
    def get(self, url: str) -> bytes:
        return self._path.read_bytes()


class ReadyBuffer(Floor):
    def open(self, folder: Path) -> None:
        super().open(folder)
        self._name = str(self._path)

    def get(self, url: str) -> bytes:
        fd = os.open(self._name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.preadv(fd, [self._buffer], 0)
        finally:
            os.close(fd)
        return b""


class Storage(Floor):
    """A record and its body, the digest compared, and no HTTP."""

    def open(self, folder: Path) -> None:
        self._storage = FileStorage(folder)
        writer = self._storage.create_body(KEY, len(self._content))
        assert writer is not None
        writer.write(self._content)
        now = time.time()
        stored = StoredResponse(URI, 200, Fields(), (), now, now, now, writer.commit())
        assert self._storage.swap(KEY, None, Record((stored,)))

    def close(self) -> None:
        self._storage.close()

    def get(self, url: str) -> bytes:
        record = self._storage.read(KEY)
        assert record is not None and record.responses[0].body is not None
        reader = self._storage.open_body(record.responses[0].body)
        assert reader is not None
        data = reader.read(0, reader.length)
        reader.close()
        return data


class Write(Floor):
    """A new file, put into its place when whole."""

    def get(self, url: str) -> bytes:
        self._number += 1
        temporary = self._path.with_name("temporary")
        temporary.write_bytes(self._content)
        temporary.rename(self._path.with_name(f"file {self._number}"))
        return b""


SUBJECTS: Makers = {
    "disk": {**dict(zip(FLOORS, (ReadBytes, ReadyBuffer), strict=True)), STORAGE: Storage, WRITE: Write}
}
