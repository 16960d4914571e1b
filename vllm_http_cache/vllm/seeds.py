"""Files that vLLM's built-in cache left, or that somebody put beside an air-gapped server in its place.

They are named after the URL as the user wrote it, and hold a body alone: when it came, and how long it is good for,
nobody knows. So they answer only where nothing better is stored and the origin would have to be asked unconditionally.
The folders are only read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ..loops import in_thread
from ..rfc9111.message import Fields, Request, Response
from ..wire import Reply

if TYPE_CHECKING:
    from ..settings import Settings

__all__ = ["Seeds"]

CHUNK = 256 * 1024
SEEDED = ("default", "force-cache", "only-if-cached")  # the modes in which a seed may answer
CONDITIONS = ("if-none-match", "if-modified-since")


class Seeds:
    """:param folders: where files lie, the first that has one answers."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = tuple(folders)

    @classmethod
    def of(cls, settings: Settings) -> Seeds:
        """Those that the settings ask for."""
        folders = []
        if settings.seed is not None and settings.mode in SEEDED:
            folders.append(settings.seed)
        if settings.path is not None and settings.mode in ("force-cache", "only-if-cached"):
            folders.append(settings.path)
        return cls(folders)

    @classmethod
    def complaint(cls, settings: Settings) -> str | None:
        """Why the folder of seeds will never answer, if it will not."""
        if settings.seed is None:
            return None
        if settings.mode not in SEEDED:
            return f"MEDIA_CACHE_SEED is not looked at in mode {settings.mode}"
        if not os.access(settings.seed, os.R_OK | os.X_OK) or not settings.seed.is_dir():
            return f"MEDIA_CACHE_SEED={str(settings.seed)!r} is no folder that can be read: no seed will answer"
        return None

    def reply(self, url: str, sent: Request) -> Reply | None:
        """What stands in for the origin's answer to *sent*; None where there is nothing, or nothing is needed."""
        found = None if any(name in sent.fields for name in CONDITIONS) else self._open(url)
        return found and Reply(_head(found[1]), _Source(found[0]))

    async def areply(self, url: str, sent: Request) -> Reply | None:
        """The same for a task."""
        if not self._folders or any(name in sent.fields for name in CONDITIONS):
            return None
        found = await in_thread(self._open, url)
        return found and Reply(_head(found[1]), _AsyncSource(found[0]))

    def _open(self, url: str) -> tuple[BinaryIO, int] | None:
        if not self._folders:
            return None
        name = sha256(url.encode()).hexdigest()[:20] + Path(url.split("?", 1)[0]).suffix
        for folder in self._folders:
            try:
                file = (folder / name).open("rb")
            except (OSError, ValueError):
                continue
            length = file.seek(0, 2)
            file.seek(0)
            if length:
                return file, length
            file.close()
        return None


def _head(length: int) -> Response:
    return Response(200, Fields((("Content-Length", str(length)), ("Cache-Control", "no-store"))), "OK")


class _Source:
    """A :class:`~..wire.Source`, and a :class:`~..wire.Body`."""

    length = None

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self) -> bytes:
        return self._file.read(CHUNK)

    def close(self) -> None:
        self._file.close()


class _AsyncSource:
    """The same for tasks."""

    length = None

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def ready(self) -> bytes | None:
        return None

    async def read(self) -> bytes:
        return await in_thread(self._file.read, CHUNK)

    async def aclose(self) -> None:
        self._file.close()
