"""Caches in folders of any number of entries, with no origin behind them: what a hit and a store cost alone."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import httpx

from vllm_http_cache import Cache, CacheOptions, FileStorage
from vllm_http_cache.httpx import CacheTransport
from vllm_http_cache.rfc9111.message import Fields, Request, Response, StoredResponse
from vllm_http_cache.rfc9111.target import cache_key
from vllm_http_cache.storage.protocol import Record
from vllm_http_cache.wire import Reply

from . import Makers, Subject
from .names import OURS, OWN
from .under_vllm import connect, connect_recreated

SMALL = 1000  # octets of an entry that is only there
CONTENT = os.urandom(100_000)  # of one that is used
HOT = 100  # entries that are used again and again
EARLIER = 240.0  # seconds between the filling, as the cache's clock has it, and now


class Filled(Subject):
    """:param entries: that are in the folder before it is used."""

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._number = 0
        self._unused: list[str] = []
        self._hot: Iterator[str] = cycle([_url("hot", number) for number in range(HOT)])

    def open(self, folder: Path) -> None:
        self._fill(folder)
        for _ in range(HOT):
            self._store(next(self._hot), CONTENT)

    def get(self, url: str) -> bytes:
        """One of a hundred entries, in turn."""
        return self._read(next(self._hot))

    def first(self, url: str) -> bytes:
        """One that this process has not used before."""
        return self._read(self._next())

    def bare(self, url: str) -> bytes:
        """The same without a client."""
        raise NotImplementedError

    def opening(self, url: str) -> bytes:
        """Open the folder once more, and look for one entry."""
        raise NotImplementedError

    def store(self, url: str) -> bytes:
        """One more."""
        self._number += 1
        self._store(_url("new", self._number), CONTENT)
        return b""

    def _next(self) -> str:
        if not self._unused:
            self._unused = [_url("other", number) for number in range(self._entries)]
            random.shuffle(self._unused)
            self._forget()
        return self._unused.pop()

    def _forget(self) -> None:
        """As another process would begin."""

    def _fill(self, folder: Path) -> None:
        raise NotImplementedError

    def _read(self, url: str) -> bytes:
        raise NotImplementedError

    def _store(self, url: str, content: bytes) -> None:
        raise NotImplementedError


class Ours(Filled):
    """Hits by way of an httpx client, as in the other contests."""

    def _fill(self, folder: Path) -> None:
        """Through the storage's own contract, with a clock that lags: what is stored was last used a while ago."""
        storage = FileStorage(folder, clock=lambda: time.time() - EARLIER)
        for number in range(self._entries):
            uri = _url("other", number)
            key = cache_key(uri, CacheOptions())
            writer = storage.create_body(key, SMALL)
            assert writer is not None
            writer.write(CONTENT[:SMALL])
            then = time.time() - EARLIER
            stored = StoredResponse(uri, 200, _fields(SMALL), (), then, then, then, writer.commit(), "OK")
            assert storage.swap(key, None, Record((stored,)))
        storage.close()
        self._folder = folder
        self._begin()

    def _forget(self) -> None:
        self.close()
        self._begin()

    def _begin(self) -> None:
        self._cache = Cache(FileStorage(self._folder))
        nowhere = httpx.MockTransport(lambda _: httpx.Response(599))
        self._client = httpx.Client(transport=CacheTransport(nowhere, self._cache))

    def close(self) -> None:
        self._client.close()
        self._cache.close()

    def bare(self, url: str) -> bytes:
        return self._fetch(self._next(), b"")

    def opening(self, url: str) -> bytes:
        storage = FileStorage(self._folder)
        assert storage.read(cache_key(self._next(), CacheOptions())) is not None
        storage.close()
        return b""

    def _read(self, url: str) -> bytes:
        response = self._client.get(url)
        assert response.status_code == 200, "not a hit"
        return response.content

    def _store(self, url: str, content: bytes) -> None:
        self._fetch(url, content)

    def _fetch(self, url: str, content: bytes) -> bytes:
        def send(request: Request) -> Reply:
            assert content, "not a hit"
            return Reply(Response(200, _fields(len(content)), "OK"), _Source(content))

        body = self._cache.fetch(Request("GET", url), send).body
        data = b"".join(iter(body.read, b""))
        body.close()
        return data


class VllmsOwn(Filled):
    """Its functions, or the re-created ones."""

    def __init__(self, entries: int, recreated: bool) -> None:
        super().__init__(entries)
        self._connect = connect_recreated if recreated else connect

    def _fill(self, folder: Path) -> None:
        self._connector = self._connect(OWN, folder)
        path = getattr(self._connector, "_media_cache_path", None) or self._connector._path
        then = time.time() - EARLIER
        for number in range(self._entries):
            file = path(_url("other", number))
            file.write_bytes(CONTENT[:SMALL])
            os.utime(file, (then, then))

    def close(self) -> None:
        """Nothing is kept open."""

    def _read(self, url: str) -> bytes:
        data: bytes = self._connector._get_cached_bytes(url)
        return data

    def _store(self, url: str, content: bytes) -> None:
        self._connector._put_cached_bytes(url, content)


class _Source:
    """A :class:`~vllm_http_cache.wire.Source`: octets that are here already."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def read(self) -> bytes:
        content, self._content = self._content, b""
        return content

    def close(self) -> None:
        """Nothing is open."""


def _url(kind: str, number: int) -> str:
    return f"http://media.example/{kind}/{number}.bin"


def _fields(length: int) -> Fields:
    lines = {
        "Date": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime()),
        "Content-Type": "application/octet-stream",
        "Content-Length": str(length),
        "Cache-Control": "max-age=86400",
        "ETag": '"1"',
    }
    return Fields(lines.items())


SUBJECTS: Makers = {"folder": {OURS: Ours, OWN: VllmsOwn}}
