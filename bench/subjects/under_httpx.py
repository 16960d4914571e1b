"""httpx, on asyncio too. hishel with its RFC mode, as without it it would not be an HTTP cache."""

from __future__ import annotations

from pathlib import Path

import httpx

from . import AsyncSubject, Keeper, Makers, Subject
from .names import HISHEL, NONE, OURS, TO_FILE


class Base(Subject):
    def open(self, folder: Path) -> None:
        self._client = httpx.Client(transport=self._transport(folder), trust_env=False)

    def _transport(self, folder: Path) -> httpx.BaseTransport:
        return httpx.HTTPTransport(verify=False)

    def close(self) -> None:
        self._client.close()

    def get(self, url: str) -> bytes:
        return self._client.get(url).raise_for_status().content

    def stream(self, url: str) -> int:
        with self._client.stream("GET", url) as response:
            return sum(map(len, response.iter_bytes()))


class Plain(Base):
    _tag = ""

    def validate(self, url: str) -> bytes:
        self._tag = self._tag or self._client.get(url).headers["ETag"]
        response = self._client.get(url, headers={"If-None-Match": self._tag})
        assert response.status_code == 304
        return response.content


class ToFile(Base):
    def open(self, folder: Path) -> None:
        super().open(folder)
        self._keeper = Keeper(folder)

    def get(self, url: str) -> bytes:
        with self._client.stream("GET", url) as response:
            return self._keeper.keep(response.raise_for_status().iter_raw())


class Ours(Base):
    def _transport(self, folder: Path) -> httpx.BaseTransport:
        from vllm_http_cache import Cache, FileStorage
        from vllm_http_cache.httpx import CacheTransport

        self._cache = Cache(FileStorage(folder))
        return CacheTransport(super()._transport(folder), self._cache)

    def close(self) -> None:
        super().close()
        self._cache.close()


class Hishel(Base):
    def _transport(self, folder: Path) -> httpx.BaseTransport:
        from hishel import SqliteStorage
        from hishel.httpx import CacheTransport

        storage = SqliteStorage(database_path=folder / "hishel.db")
        return CacheTransport(super()._transport(folder), storage, rfc=True)


class AsyncBase(AsyncSubject):
    async def open(self, folder: Path) -> None:
        self._client = httpx.AsyncClient(transport=self._transport(folder), trust_env=False)

    def _transport(self, folder: Path) -> httpx.AsyncBaseTransport:
        return httpx.AsyncHTTPTransport(verify=False)

    async def close(self) -> None:
        await self._client.aclose()

    async def get(self, url: str) -> bytes:
        return (await self._client.get(url)).raise_for_status().content

    async def stream(self, url: str) -> int:
        async with self._client.stream("GET", url) as response:
            return sum([len(piece) async for piece in response.aiter_bytes()])


class AsyncPlain(AsyncBase):
    _tag = ""

    async def validate(self, url: str) -> bytes:
        self._tag = self._tag or (await self._client.get(url)).headers["ETag"]
        response = await self._client.get(url, headers={"If-None-Match": self._tag})
        assert response.status_code == 304
        return response.content


class AsyncToFile(AsyncBase):
    async def open(self, folder: Path) -> None:
        await super().open(folder)
        self._keeper = Keeper(folder)

    async def get(self, url: str) -> bytes:
        async with self._client.stream("GET", url) as response:
            return await self._keeper.akeep(response.raise_for_status().aiter_raw())


class AsyncOurs(AsyncBase):
    def _transport(self, folder: Path) -> httpx.AsyncBaseTransport:
        from vllm_http_cache import Cache, FileStorage
        from vllm_http_cache.httpx import AsyncCacheTransport

        self._cache = Cache(FileStorage(folder))
        return AsyncCacheTransport(super()._transport(folder), self._cache)

    async def close(self) -> None:
        await super().close()
        await self._cache.aclose()


class AsyncHishel(AsyncBase):
    def _transport(self, folder: Path) -> httpx.AsyncBaseTransport:
        from hishel import AsyncSqliteStorage
        from hishel.httpx import AsyncCacheTransport

        storage = AsyncSqliteStorage(database_path=folder / "hishel.db")
        return AsyncCacheTransport(super()._transport(folder), storage, rfc=True)


SUBJECTS: Makers = {
    "httpx": {NONE: Plain, TO_FILE: ToFile, OURS: Ours, HISHEL: Hishel},
    "httpx async": {NONE: AsyncPlain, TO_FILE: AsyncToFile, OURS: AsyncOurs, HISHEL: AsyncHishel},
}
