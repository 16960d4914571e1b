"""aiohttp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp

from . import AsyncSubject, Keeper, Makers
from .names import ACC_FILES, ACC_SQLITE, NONE, OURS, TO_FILE

PIECE = 64 * 1024  # octets
DAY = 86_400  # seconds


class Base(AsyncSubject):
    def _session(self, folder: Path) -> aiohttp.ClientSession:
        return aiohttp.ClientSession()

    async def open(self, folder: Path) -> None:
        self._client = self._session(folder)

    async def close(self) -> None:
        await self._client.close()

    async def get(self, url: str, **options: Any) -> bytes:
        async with self._client.get(url, **options) as response:
            response.raise_for_status()
            return await response.read()

    async def stream(self, url: str) -> int:
        async with self._client.get(url) as response:
            return sum([len(piece) async for piece in response.content.iter_chunked(PIECE)])


class Plain(Base):
    _tag = ""

    async def validate(self, url: str) -> bytes:
        if not self._tag:
            async with self._client.get(url) as response:
                self._tag = response.headers["ETag"]
        async with self._client.get(url, headers={"If-None-Match": self._tag}) as response:
            assert response.status == 304
            return await response.read()


class ToFile(Base):
    async def open(self, folder: Path) -> None:
        await super().open(folder)
        self._keeper = Keeper(folder)

    async def get(self, url: str, **options: Any) -> bytes:
        async with self._client.get(url, **options) as response:
            response.raise_for_status()
            return await self._keeper.akeep(response.content.iter_any())


class Ours(Base):
    def _session(self, folder: Path) -> aiohttp.ClientSession:
        from vllm_http_cache import Cache, FileStorage
        from vllm_http_cache.aiohttp import CacheMiddleware

        self._cache = Cache(FileStorage(folder))
        return aiohttp.ClientSession(middlewares=[CacheMiddleware(self._cache)])

    async def close(self) -> None:
        await super().close()
        await self._cache.aclose()


class Files(Base):
    def _session(self, folder: Path) -> aiohttp.ClientSession:
        from aiohttp_client_cache.backends.filesystem import FileBackend
        from aiohttp_client_cache.session import CachedSession

        return CachedSession(cache=FileBackend(folder / "responses", expire_after=DAY))

    async def validate(self, url: str) -> bytes:
        return await self.get(url, refresh=True)


class SQLite(Files):
    def _session(self, folder: Path) -> aiohttp.ClientSession:
        from aiohttp_client_cache.backends.sqlite import SQLiteBackend
        from aiohttp_client_cache.session import CachedSession

        return CachedSession(cache=SQLiteBackend(str(folder / "cache.sqlite"), expire_after=DAY))


SUBJECTS: Makers = {"aiohttp": {NONE: Plain, TO_FILE: ToFile, OURS: Ours, ACC_FILES: Files, ACC_SQLITE: SQLite}}
