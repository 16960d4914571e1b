"""`CachedSession` for those who come from aiohttp-client-cache: change the import, and give it one of our caches.

    from vllm_http_cache.aiohttp_client_cache import CachedSession

    async with CachedSession(cache=Cache(FileStorage("cache"))) as session: ...

Of that library it is the face alone: what is stored and served is decided by HTTP (RFC 9111), nothing is pickled.
Supported, on the session or on its ``cache``: ``has_url``, ``delete_url``, ``get_urls``, ``clear``,
``delete_expired_responses``, ``disabled``, ``close``; of a request ``refresh``; of a response ``from_cache``.
Everything else of a backend raises :class:`AttributeError`, ``expire_after`` :class:`NotImplementedError`.
"""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator
from contextvars import ContextVar
from itertools import islice
from typing import Any, NoReturn, cast

from aiohttp import ClientSession, hdrs
from aiohttp.typedefs import StrOrURL
from yarl import URL

try:
    from aiohttp_client_cache.response import CachedResponse, set_response_defaults
    from aiohttp_client_cache.session import CachedSession as TheirSession
except ImportError as error:
    raise ImportError(
        "vllm_http_cache.aiohttp_client_cache needs that library: pip install vllm-http-cache[aiohttp-client-cache]"
    ) from error

from .aiohttp import ATTRIBUTE, CacheMiddleware
from .cache import Cache
from .loops import in_thread
from .rfc9111.freshness import fresh_until
from .rfc9111.target import cache_key
from .wire import Fetched, UrlPolicy

__all__ = ["CachedSession"]

BATCH = 256  # stored responses listed at once


class _Backend:
    """What that library's users call ``session.cache``, on a cache of ours."""

    def __init__(self, cache: Cache, middleware: CacheMiddleware) -> None:
        self.middleware = middleware
        self._cache = cache
        self._disabled = ContextVar("_disabled", default=False)

    @property
    def disabled(self) -> bool:
        """Whether requests of this context go by the cache."""
        return self._disabled.get()

    @disabled.setter
    def disabled(self, value: bool) -> None:
        self._disabled.set(value)

    async def has_url(self, url: StrOrURL, method: str = "GET", **_: object) -> bool:
        """Whether anything is stored for *url*, fresh or stale; of a redirect, under the URL it came from."""
        return (
            method.upper() in ("GET", "HEAD") and await in_thread(self._cache.storage.read, self._key(url)) is not None
        )

    async def delete_url(self, url: StrOrURL, method: str = "GET", **_: object) -> None:
        """Drop what is stored for *url*."""
        if method.upper() in ("GET", "HEAD"):
            await in_thread(self._cache.forget_key, self._key(url))

    async def get_urls(self) -> AsyncIterator[str]:
        """The URLs of what is stored, each once, in no order."""
        seen = set()
        listing = self._cache.storage.scan()
        while stats := await in_thread(lambda: list(islice(listing, BATCH))):
            for stat in stats:
                if stat.stored.uri not in seen:
                    seen.add(stat.stored.uri)
                    yield stat.stored.uri

    async def clear(self) -> None:
        """Drop everything."""
        await in_thread(self._forget, True)

    async def delete_expired_responses(self) -> None:
        """Drop what is stale, though the origin might still have confirmed it; URLs with a fresh variant stay."""
        await in_thread(self._forget, False)

    async def close(self) -> None:
        """Does nothing: a cache is closed by whoever made it."""

    async def _close_if_enabled(self) -> None:
        """As :meth:`close`; the session's own calls it."""

    def _key(self, url: StrOrURL) -> str:
        return cache_key(str(URL(url)), self._cache.options)

    def _forget(self, fresh_too: bool) -> None:
        storage, options, now = self._cache.storage, self._cache.options, self._cache.clock()
        keys, fresh = set(), set()
        for stat in storage.scan():
            keys.add(stat.key)
            if not fresh_too and fresh_until(stat.stored, options) > now:
                fresh.add(stat.key)
        for key in keys - fresh:
            self._cache.forget_key(key)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"CachedSession.cache.{name}: vllm-http-cache has no such part; see {__name__}")


with warnings.catch_warnings():  # aiohttp discourages subclasses; that library's is one, too
    warnings.simplefilter("ignore", DeprecationWarning)

    class CachedSession(TheirSession):
        """A session on *cache*, with the calls of :class:`aiohttp_client_cache.CachedSession`.

        :param cache: not closed with the session.
        :param url_policy: as for :class:`~.aiohttp.CacheMiddleware`.
        :param session: as for :class:`aiohttp.ClientSession`. Middlewares see answers from the cache, too.
        :raises TypeError: *cache* is a backend of aiohttp-client-cache, or no cache at all.
        """

        cache: Any

        def __init__(
            self, base_url: StrOrURL | None = None, *, cache: Cache, url_policy: UrlPolicy | None = None, **session: Any
        ) -> None:
            if not isinstance(cache, Cache):
                raise TypeError(f"cache is to be a vllm_http_cache.Cache, not {type(cache).__qualname__}")
            backend: Any = _Backend(cache, CacheMiddleware(cache, url_policy=url_policy))
            super().__init__(base_url, cache=backend, **session)

        async def _request(  # type: ignore[override]
            self, method: str, str_or_url: StrOrURL, expire_after: Any = None, refresh: bool = False, **request: Any
        ) -> CachedResponse:
            """As :meth:`aiohttp.ClientSession._request`.

            :param refresh: have the origin confirm what is stored (the request directive no-cache, RFC 9111 5.2.1.4).
            :raises NotImplementedError: *expire_after* is given.
            """
            if expire_after is not None:
                raise NotImplementedError(
                    "expire_after: the origin says how long its responses live, FileStorage(ttl=...) caps it"
                )
            if refresh:
                request["headers"] = self._prepare_headers(request.get("headers"))
                request["headers"][hdrs.CACHE_CONTROL] = "no-cache"
            if not self.cache.disabled:
                own = request.get("middlewares")
                request["middlewares"] = (*(self._middlewares if own is None else own), self.cache.middleware)
            response = set_response_defaults(await ClientSession._request(self, method, str_or_url, **request))
            fetched = getattr(response, ATTRIBUTE, None)
            response.from_cache = isinstance(fetched, Fetched) and fetched.status.hit
            return cast("CachedResponse", response)
