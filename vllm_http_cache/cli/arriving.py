"""Reading an export, and telling whether it is one and whole."""

from __future__ import annotations

import tarfile
from typing import IO

from vllm_http_cache.storage.layout import is_key

__all__ = ["Arriving"]

_UNIT = 512
_END = bytes(_UNIT)


class Arriving:
    """An export as it is read. Its reader stops at the first block that is no member's head, which is to be its end."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._head = b""
        self._tail = b""
        self._all = False

    def read(self, size: int, /) -> bytes:
        data = self._file.read(size)
        if size:
            self._all = not data
        self._head = (self._head + data[:_UNIT])[:_UNIT]
        self._tail = (self._tail + data[-_UNIT:])[-_UNIT:]
        return data

    def is_export(self) -> bool:
        """Whether it begins as one."""
        if self._head == _END:
            return True  # of an empty cache
        try:
            name = tarfile.TarInfo.frombuf(self._head, "utf-8", "strict").name
        except (tarfile.HeaderError, ValueError):
            return False
        key, _, rest = name.partition("/")
        return is_key(key) is not None and rest == "record"

    def complaint(self) -> str:
        """What is wrong with its end; empty when nothing is."""
        if self._all:
            return "it ends too early: it has been cut"
        return "" if self._tail == _END else "it is damaged, and cannot be read to its end"
