"""The octets of a body that have come and are not written yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

__all__ = ["CHUNK", "Tail", "batches"]

CHUNK = 256 * 1024  # octets given out at once
JOINED = 64 * 1024  # octets up to which chunks are joined; beyond, copying them costs more than it saves
BATCH = 256 * 1024  # octets written at once; more at once gets no faster


def batches(chunks: Iterable[bytes]) -> Iterator[tuple[bytes, ...]]:
    """Them all, in groups of at most BATCH octets, of at least one chunk."""
    group: list[bytes] = []
    size = 0
    for chunk in chunks:
        if group and size + len(chunk) > BATCH:
            yield tuple(group)
            group, size = [], 0
        group.append(chunk)
        size += len(chunk)
    if group:
        yield tuple(group)


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
        """The octets from *offset* to the end of its chunk, joined by further chunks as JOINED allows.

        None where it has none.
        """
        if not self.start <= offset < self.end:
            return None
        start, chunks = self.end, []
        for chunk in reversed(self._chunks):  # most want the last one
            start -= len(chunk)
            chunks.append(chunk)
            if start <= offset:
                break
        pieces = [chunks.pop()[max(0, offset - start) :]]
        size = len(pieces[0])
        while chunks and (size := size + len(chunks[-1])) <= JOINED:
            pieces.append(chunks.pop())
        return b"".join(pieces)
