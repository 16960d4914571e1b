"""What takes part: each client, without a cache and with each of the caches that there are for it.

A module here serves one library. Its ``SUBJECTS`` says what makes a subject, by client and by cache; the names are
those of the report.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from io import FileIO
from pathlib import Path
from typing import Any

__all__ = ["AsyncSubject", "Keeper", "Makers", "Subject", "make"]

Makers = Mapping[str, Mapping[str, Callable[..., "Subject | AsyncSubject"]]]


class Subject(ABC):
    """A client with a cache."""

    @abstractmethod
    def open(self, folder: Path) -> None:
        """Begin, with a cache in an empty folder."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def get(self, url: str) -> bytes:
        """The whole content."""

    def stream(self, url: str) -> int:
        """Read the content bit by bit, and keep none of it; its length."""
        raise NotImplementedError

    def validate(self, url: str) -> bytes:
        """The content as :meth:`get`, after asking the origin whether it is still good.

        Of a client without a cache: a bare conditional request, which has no content.
        """
        return self.get(url)


class AsyncSubject(ABC):
    """The same for asyncio."""

    @abstractmethod
    async def open(self, folder: Path) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def get(self, url: str) -> bytes: ...

    async def stream(self, url: str) -> int:
        raise NotImplementedError

    async def validate(self, url: str) -> bytes:
        return await self.get(url)


class Keeper:
    """Puts the pieces of a content into a new file, each as it comes, and the file into its place when it is whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0

    def keep(self, pieces: Iterable[bytes]) -> bytes:
        with self._file() as file:
            return b"".join([_written(file, piece) for piece in pieces])

    async def akeep(self, pieces: AsyncIterable[bytes]) -> bytes:
        """The same for a task, which writes in its loop: no thread takes as little."""
        with self._file() as file:
            return b"".join([_written(file, piece) async for piece in pieces])

    @contextmanager
    def _file(self) -> Iterator[FileIO]:
        self._number += 1
        path = self._folder / f"{self._number}"
        temporary = self._folder / "temporary"
        with FileIO(temporary, "w") as file:
            yield file
        temporary.rename(path)


def _written(file: FileIO, piece: bytes) -> bytes:
    file.write(piece)
    return piece


def make(client: str, cache: str, options: Mapping[str, Any]) -> Subject | AsyncSubject:
    """:raises ModuleNotFoundError: a library is missing."""
    module = import_module(f"{__name__}.under_{client.partition(' ')[0]}")
    makers: Makers = module.SUBJECTS
    return makers[client][cache](**options)
