"""As much of vLLM 0.33's media connector as stands between a URL and its octets, for where vLLM is not installed.

The disk operations of its built-in cache and its thread hops are what they are there; validation of arguments, retries
and logging are left out. Results with it are labelled as re-created.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import requests
from urllib3.util import parse_url

__all__ = ["MediaConnector"]

PIECE = 64 * 1024  # octets
MAX_SIZE = 5 * 1024**3  # octets
TTL = 86_400  # seconds
THREADS = ThreadPoolExecutor(max_workers=8)


class HTTPConnection:
    def __init__(self) -> None:
        self._sync_client: requests.Session | None = None
        self._async_client: aiohttp.ClientSession | None = None

    def get_sync_client(self) -> requests.Session:
        self._sync_client = self._sync_client or requests.Session()
        return self._sync_client

    async def get_async_client(self) -> aiohttp.ClientSession:
        self._async_client = self._async_client or aiohttp.ClientSession(trust_env=True)
        return self._async_client

    def _headers(self, **extras: str) -> dict[str, str]:
        return {"User-Agent": "vLLM/0.33.0", **extras}

    def get_response(self, url: str, *, extra_headers: dict[str, str] | None = None, **options: Any) -> Any:
        return self.get_sync_client().get(url, headers=self._headers(**(extra_headers or {})), **options)

    async def get_async_response(self, url: str, *, extra_headers: dict[str, str] | None = None, **options: Any) -> Any:
        client = await self.get_async_client()
        return client.get(url, headers=self._headers(**(extra_headers or {})), **options)

    def get_bytes(self, url: str, *, timeout: float | None) -> bytes:
        with self.get_response(url, stream=True, timeout=timeout, allow_redirects=True) as response:
            response.raise_for_status()
            return b"".join(list(response.iter_content(PIECE)))

    async def async_get_bytes(self, url: str, *, timeout: float | None) -> bytes:
        async with await self.get_async_response(url, timeout=timeout, allow_redirects=True) as response:
            response.raise_for_status()
            return b"".join([piece async for piece in response.content.iter_chunked(PIECE)])


class MediaConnector:
    """:param folder: of the built-in cache; None: it is off."""

    seam: Any = None  # our plugin's, where it is

    def __init__(self, folder: Path | None) -> None:
        self.connection = HTTPConnection()
        self._folder = folder

    def load_from_url(self, url: str, media_io: Any, *, fetch_timeout: float | None = None) -> Any:
        parse_url(url)
        cached = self._get_cached_bytes(url)
        if cached is not None:
            return media_io.load_bytes(cached)
        data = self.connection.get_bytes(url, timeout=fetch_timeout)
        self._put_cached_bytes(url, data)
        return media_io.load_bytes(data)

    async def load_from_url_async(self, url: str, media_io: Any, *, fetch_timeout: float | None = None) -> Any:
        loop = asyncio.get_running_loop()
        parse_url(url)
        cached = await loop.run_in_executor(THREADS, self._get_cached_bytes, url)
        if cached is None:
            cached = await self.connection.async_get_bytes(url, timeout=fetch_timeout)
            await loop.run_in_executor(THREADS, self._put_cached_bytes, url, cached)
        return await loop.run_in_executor(THREADS, media_io.load_bytes, cached)

    def _path(self, url: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{hashlib.sha256(url.encode()).hexdigest()[:20]}{Path(url.split('?', 1)[0]).suffix}"

    def _get_cached_bytes(self, url: str) -> bytes | None:
        if self._folder is None:
            return None
        path = self._path(url)
        try:
            age = time.time() - path.stat().st_mtime
        except OSError:
            return None
        if age > TTL:
            path.unlink(missing_ok=True)
            return None
        path.touch()
        return path.read_bytes()

    def _put_cached_bytes(self, url: str, data: bytes) -> None:
        if self._folder is None:
            return
        with tempfile.NamedTemporaryFile(mode="wb", dir=self._folder, delete=False) as file:
            file.write(data)
        path = self._path(url)
        os.rename(file.name, str(path))
        self._maybe_evict(path)

    def _maybe_evict(self, exclude: Path) -> None:
        assert self._folder is not None
        entries, expired, total = [], [], 0
        now = time.time()
        for path in self._folder.iterdir():
            if path.name.startswith("."):
                continue
            with contextlib.suppress(OSError):
                status = path.stat()
                if now - status.st_mtime > TTL:
                    expired.append(path)
                    continue
                total += status.st_size
                if path.name != exclude.name:
                    entries.append((status.st_mtime, status.st_size, path))
        entries.sort(key=lambda entry: entry[0], reverse=True)
        while total > MAX_SIZE and entries:
            _, size, path = entries.pop()
            expired.append(path)
            total -= size
        for path in expired:
            path.unlink(missing_ok=True)
