"""The octets of a body that have come and are not written yet."""

from __future__ import annotations

from collections import deque

__all__ = ["CHUNK", "Tail"]

CHUNK = 256 * 1024  # octets given out at once, and the rest of the last chunk


class Tail:
    """A queue of chunks. Its user sees to it that one thread at a time is here.

    :param start: offset in the body of the first octet that will come.
    """

    __slots__ = ("_chunks", "end", "start")

    def __init__(self, start: int) -> None:
        self.start = self.end = start  # offsets of its first octet, and of the next to come
        self._chunks: deque[bytes] = deque()

    def __len__(self) -> int:
        """How many octets it holds."""
        return self.end - self.start

    def append(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self.end += len(chunk)

    def chunks(self) -> tuple[bytes, ...]:
        return tuple(self._chunks)

    def shift(self, chunks: int) -> None:
        """The first *chunks* of it go."""
        for _ in range(chunks):
            self.start += len(self._chunks.popleft())

    def shift_to(self, offset: int) -> bool:
        """The chunks that end at *offset* or before go; were there any?"""
        before = self.start
        while self._chunks and self.start + len(self._chunks[0]) <= offset:
            self.shift(1)
        return self.start > before

    def clear(self) -> None:
        self._chunks.clear()
        self.start = self.end

    def read(self, offset: int) -> bytes | None:
        """CHUNK octets from *offset* on, and the rest of the last chunk, or all there is; None where it has none."""
        if not self.start <= offset < self.end:
            return None
        start, chunks = self.end, []
        for chunk in reversed(self._chunks):  # most want the last one
            start -= len(chunk)
            chunks.append(chunk)
            if start <= offset:
                break
        pieces, size = [], 0
        while chunks and size < CHUNK:
            piece = chunks.pop()[max(0, offset - start) :]
            start = offset  # what follows is wanted whole
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)
