"""vLLM's media connector: bare, with its built-in cache, and with our plugin.

Where vLLM is not installed, what of it stands between a URL and its octets is re-created in ``recreated.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from . import AsyncSubject, Keeper, Makers, Subject
from .names import NONE, OURS, OWN, TO_FILE

__all__ = ["SUBJECTS", "connect", "connect_recreated"]

PIECE = 64 * 1024  # octets
TIMEOUT = 60  # seconds
VARIABLE = "VLLM_MEDIA_CACHE"
Ways = tuple[Callable[[str, Path], Any], Callable[[Any], None]]  # to connect, and to disconnect
METHODS = ("get_response", "get_async_response", "get_sync_client", "get_async_client", "vllm_http_cache")


def connect(cache: str, folder: Path) -> Any:
    """A ``MediaConnector`` with the plugin registered, or absent."""
    from vllm.multimodal.media import MediaConnector

    _set(cache, folder)
    if cache == OURS:
        from vllm_http_cache.vllm import register

        register()
    return MediaConnector()


def disconnect(connector: Any) -> None:
    """Take the plugin out again, if it is there."""
    from vllm import envs

    connection = connector.connection
    seam = vars(connection).get("vllm_http_cache")
    if seam is None:
        return
    seam._opening().cache.close()
    for name in METHODS:
        vars(connection).pop(name)
    vars(envs).pop(VARIABLE)
    for name in ("load_from_url", "load_from_url_async"):
        setattr(type(connector), name, getattr(type(connector), name).__wrapped__)


def connect_recreated(cache: str, folder: Path) -> Any:
    from .recreated import MediaConnector

    _set(cache, folder)
    if cache != OURS:
        return MediaConnector(folder if cache == OWN else None)
    from vllm_http_cache.vllm.connection import Seam
    from vllm_http_cache.vllm.connector import wrapped_load, wrapped_load_async
    from vllm_http_cache.vllm.opening import Opening

    class WithPlugin(MediaConnector):
        load_from_url = wrapped_load(MediaConnector.load_from_url)
        load_from_url_async = wrapped_load_async(MediaConnector.load_from_url_async)

    made = WithPlugin(None)
    made.seam = Seam(made.connection, Opening())
    made.seam.take()
    return made


def disconnect_recreated(connector: Any) -> None:
    if connector.seam is not None:
        connector.seam._opening().cache.close()


def _set(cache: str, folder: Path) -> None:
    os.environ.pop(VARIABLE, None)
    if cache != NONE:
        os.environ[VARIABLE] = str(folder)


class NoMedia:
    """A ``MediaIO`` that makes nothing of the octets."""

    def get_max_bytes(self) -> None:
        return None

    def load_bytes(self, data: bytes) -> bytes:
        return data


class Sync(Subject):
    def __init__(self, ways: Ways, cache: str) -> None:
        self._connect, self._disconnect = ways
        self._cache = cache
        self._tag = ""

    def open(self, folder: Path) -> None:
        self._connector = self._connect(self._cache, folder)

    def close(self) -> None:
        self._disconnect(self._connector)
        session = self._connector.connection._sync_client
        if session is not None:
            session.close()

    def get(self, url: str) -> bytes:
        data: bytes = self._connector.load_from_url(url, NoMedia(), fetch_timeout=TIMEOUT)
        return data

    def validate(self, url: str) -> bytes:
        if self._cache != NONE:
            return self.get(url)
        connection = self._connector.connection
        if not self._tag:
            self._tag = connection.get_response(url).headers["ETag"]
        with connection.get_response(url, stream=True, extra_headers={"If-None-Match": self._tag}) as response:
            assert response.status_code == 304
            content: bytes = response.content
            return content


class Async(AsyncSubject):
    def __init__(self, ways: Ways, cache: str) -> None:
        self._connect, self._disconnect = ways
        self._cache = cache
        self._tag = ""

    async def open(self, folder: Path) -> None:
        self._connector = self._connect(self._cache, folder)

    async def close(self) -> None:
        self._disconnect(self._connector)
        connection = self._connector.connection
        session, connection._async_client = connection._async_client, None
        if session is not None:
            await session.close()

    async def get(self, url: str) -> bytes:
        data: bytes = await self._connector.load_from_url_async(url, NoMedia(), fetch_timeout=TIMEOUT)
        return data

    async def validate(self, url: str) -> bytes:
        if self._cache != NONE:
            return await self.get(url)
        connection = self._connector.connection
        if not self._tag:
            async with await connection.get_async_response(url) as response:
                self._tag = response.headers["ETag"]
        async with await connection.get_async_response(url, extra_headers={"If-None-Match": self._tag}) as response:
            assert response.status == 304
            content: bytes = await response.read()
            return content


class ToFile(Sync):
    def open(self, folder: Path) -> None:
        super().open(folder)
        self._keeper = Keeper(folder)

    def get(self, url: str) -> bytes:
        with self._connector.connection.get_response(url, stream=True, timeout=TIMEOUT) as response:
            response.raise_for_status()
            return self._keeper.keep(response.iter_content(PIECE))


class AsyncToFile(Async):
    async def open(self, folder: Path) -> None:
        await super().open(folder)
        self._keeper = Keeper(folder)

    async def get(self, url: str) -> bytes:
        async with await self._connector.connection.get_async_response(url, timeout=TIMEOUT) as response:
            response.raise_for_status()
            return await self._keeper.akeep(response.content.iter_chunked(PIECE))


def _caches(subject: Any, to_file: Any, ways: Ways) -> dict[str, Any]:
    caches = {cache: partial(subject, ways, cache) for cache in (NONE, OURS, OWN)}
    return {**caches, TO_FILE: partial(to_file, ways, NONE)}


REAL: Ways = connect, disconnect
RECREATED: Ways = connect_recreated, disconnect_recreated
SUBJECTS: Makers = {
    "vllm": _caches(Sync, ToFile, REAL),
    "vllm async": _caches(Async, AsyncToFile, REAL),
    "vllm re-created": _caches(Sync, ToFile, RECREATED),
    "vllm re-created async": _caches(Async, AsyncToFile, RECREATED),
}
