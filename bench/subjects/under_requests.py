"""requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import requests

from . import Keeper, Makers, Subject
from .names import CC, CC_SEPARATE, NONE, OURS, RC_FILES, RC_SQLITE, TO_FILE

PIECE = 64 * 1024  # octets
DAY = 86_400  # seconds


class Base(Subject):
    def _session(self, folder: Path) -> requests.Session:
        return requests.Session()

    def open(self, folder: Path) -> None:
        self._client = self._session(folder)
        self._client.trust_env = False

    def close(self) -> None:
        self._client.close()

    def get(self, url: str, **options: Any) -> bytes:
        response = self._client.get(url, **options)
        response.raise_for_status()
        return response.content

    def stream(self, url: str) -> int:
        with self._client.get(url, stream=True) as response:
            return sum(map(len, response.iter_content(PIECE)))


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

    def get(self, url: str, **options: Any) -> bytes:
        with self._client.get(url, stream=True, **options) as response:
            response.raise_for_status()
            return self._keeper.keep(response.iter_content(PIECE))


class Ours(Base):
    def _session(self, folder: Path) -> requests.Session:
        from vllm_http_cache import Cache, FileStorage
        from vllm_http_cache.requests import CacheAdapter

        self._cache = Cache(FileStorage(folder))
        session = requests.Session()
        session.mount("http://", CacheAdapter(self._cache))
        return session

    def close(self) -> None:
        super().close()
        self._cache.close()


class CacheControl(Base):
    def _session(self, folder: Path) -> requests.Session:
        import cachecontrol
        from cachecontrol.caches import FileCache

        return cachecontrol.CacheControl(requests.Session(), FileCache(folder))


class SeparateBodies(Base):
    def _session(self, folder: Path) -> requests.Session:
        import cachecontrol
        from cachecontrol.caches import SeparateBodyFileCache

        return cachecontrol.CacheControl(requests.Session(), SeparateBodyFileCache(folder))


class Files(Base):
    def _session(self, folder: Path) -> requests.Session:
        from requests_cache import CachedSession

        name = folder / "responses"
        return CachedSession(name, backend="filesystem", serializer="pickle", expire_after=DAY)

    def validate(self, url: str) -> bytes:
        return self.get(url, refresh=True)


class SQLite(Files):
    def _session(self, folder: Path) -> requests.Session:
        from requests_cache import CachedSession

        return CachedSession(folder / "cache.sqlite", backend="sqlite", expire_after=DAY)


SUBJECTS: Makers = {
    "requests": {
        NONE: Plain,
        TO_FILE: ToFile,
        OURS: Ours,
        CC: CacheControl,
        CC_SEPARATE: SeparateBodies,
        RC_FILES: Files,
        RC_SQLITE: SQLite,
    }
}
