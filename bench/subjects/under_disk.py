"""The floor: what the disk operations cost without any cache."""

from __future__ import annotations

import os
from pathlib import Path

from . import Makers, Subject
from .names import FLOORS, WRITE


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


class Write(Floor):
    """A new file, put into its place when whole."""

    def get(self, url: str) -> bytes:
        self._number += 1
        temporary = self._path.with_name("temporary")
        temporary.write_bytes(self._content)
        temporary.rename(self._path.with_name(f"file {self._number}"))
        return b""


SUBJECTS: Makers = {"disk": {**dict(zip(FLOORS, (ReadBytes, ReadyBuffer), strict=True)), WRITE: Write}}
