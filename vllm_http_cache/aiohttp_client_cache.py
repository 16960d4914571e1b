"""`CachedSession` for those who come from aiohttp-client-cache: change the import, and give it one of our caches.

    from vllm_http_cache.aiohttp_client_cache import CachedSession

    async with CachedSession(cache=Cache(FileStorage("cache"))) as session: ...

Of that library it is the face alone: what is stored and served is decided by HTTP (RFC 9111), nothing is pickled.
Supported, on the session or on its ``cache``: ``has_url``, ``delete_url``, ``get_urls``, ``clear``,
``delete_expired_responses``, ``disabled``, ``close``; of a request ``refresh``; of a response and of the hops in its
``history`` ``from_cache``, ``created_at``, ``expires``, ``is_expired``.
Everything else of a backend raises :class:`AttributeError`, ``expire_after`` :class:`NotImplementedError`.

What differs for the caller:

- An answer from the cache is an :class:`aiohttp.ClientResponse` that streams, not a read copy: there is no ``reset()``,
  and of one that is left (``async with``) before its content was read, ``read()``, ``text()`` and ``json()`` raise
  :class:`aiohttp.ClientConnectionError`. Read before, they answer after it as well. Nor need a response that is left
  unread be stored.
- ``created_at`` is when the origin sent or last confirmed the response, ``expires`` when it becomes stale,
  ``is_expired`` holds for the moment of the answer. Of what the origin sent, or confirmed just now with a 304,
  they are None, None and False, and ``from_cache`` is False.
- ``has_url`` and ``delete_url`` know a request by method, URL and ``params``. What is stored for a URL answers GET and
  HEAD, and its variants (``Vary``) go together. Each hop of a chain of redirects is stored, deleted and
  ``from_cache`` by itself.
- ``clear``, ``get_urls`` and ``delete_expired_responses`` raise :class:`NotImplementedError` over a storage that cannot
  list what it holds (:class:`~vllm_http_cache.storage.hishel.HishelStorage`).
- Within ``disabled()`` GET and HEAD go by the cache. What other methods change is invalidated there, too.
"""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn, cast

from aiohttp import ClientRequest, ClientSession, hdrs
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
from .rfc9111.target import InvalidTarget, lookup_key
from .wire import Fetched, UrlPolicy

if TYPE_CHECKING:
    from yarl import Query

__all__ = ["CachedSession"]

BATCH = 256  # stored responses listed at once
ANSWERED = ("GET", "HEAD")  # by what is stored
LATEST = 253402300799.0  # seconds since the epoch: the last that a datetime can say


class _Middleware(CacheMiddleware):
    """Each hop's, in the context of its request."""

    def __init__(self, cache: Cache, url_policy: UrlPolicy | None) -> None:
        super().__init__(cache, url_policy=url_policy)
        self.disabled = ContextVar("disabled", default=False)

    def _goes_by(self, request: ClientRequest) -> bool:
        return (self.disabled.get() and request.method in ANSWERED) or super()._goes_by(request)


class _Backend:
    """What that library's users call ``session.cache``, on a cache of ours."""

    def __init__(self, cache: Cache, url_policy: UrlPolicy | None) -> None:
        self.middleware = _Middleware(cache, url_policy)
        self._cache = cache
        self._disabled = self.middleware.disabled

    @property
    def disabled(self) -> bool:
        """Whether requests of this context go by the cache."""
        return self._disabled.get()

    @disabled.setter
    def disabled(self, value: bool) -> None:
        self._disabled.set(value)

    async def has_url(self, url: StrOrURL, method: str = "GET", *, params: Query = None, **request: object) -> bool:
        """Whether anything is stored for *url*, fresh or stale; of a redirect, under the URL it came from.

        Nothing is for a URL that no request can have, such as a relative one.

        :param params: as of a request.
        :raises NotImplementedError: anything else of a request is given.
        """
        key = self._key(url, method, params, request)
        return key is not None and await in_thread(self._cache.read, key) is not None

    async def delete_url(self, url: StrOrURL, method: str = "GET", *, params: Query = None, **request: object) -> None:
        """Drop what is stored for *url*; the rest as for :meth:`has_url`."""
        key = self._key(url, method, params, request)
        if key is not None:
            await in_thread(self._cache.forget_key, key)

    async def get_urls(self) -> AsyncIterator[URL]:
        """The URLs of what is stored, each once, in no order.

        :raises NotImplementedError: the storage cannot list what it holds.
        """
        seen = set()
        listing = self._cache.scan()
        while stats := await in_thread(lambda: list(islice(listing, BATCH))):
            for stat in stats:
                if stat.stored.uri not in seen:
                    seen.add(stat.stored.uri)
                    yield URL(stat.stored.uri, encoded=True)

    async def clear(self) -> None:
        """Drop everything, and keep nothing of what is arriving.

        :raises NotImplementedError: the storage cannot list what it holds.
        """
        await in_thread(self._cache.clear)

    async def delete_expired_responses(self) -> None:
        """Drop what is stale, though the origin might still have confirmed it; URLs with a fresh variant stay.

        :raises NotImplementedError: the storage cannot list what it holds.
        """
        await in_thread(self._forget_stale)

    async def close(self) -> None:
        """Does nothing: a cache is closed by whoever made it."""

    async def _close_if_enabled(self) -> None:
        """As :meth:`close`; the session's own calls it."""

    def _key(self, url: StrOrURL, method: str, params: Query, request: dict[str, object]) -> str | None:
        """Where such a request would be looked up. None: nowhere."""
        if request:
            raise NotImplementedError(f"{', '.join(request)}: of a request, method, URL and params alone are looked at")
        url = URL(url)
        if params:
            url = url.extend_query(params)
        try:
            return lookup_key(str(url), self._cache.options) if method.upper() in ANSWERED else None
        except InvalidTarget:
            return None

    def _forget_stale(self) -> None:
        options, now = self._cache.options, self._cache.clock()
        keys, fresh = set(), set()
        for stat in self._cache.scan():
            keys.add(stat.key)
            if fresh_until(stat.stored, options) > now:
                fresh.add(stat.key)
        for key in keys - fresh:
            self._cache.storage.forget(key)  # what is arriving is fresh

    def told(self, response: Any) -> None:
        """Say of *response* where it is from, as that library does."""
        set_response_defaults(response)
        fetched = getattr(response, ATTRIBUTE, None)
        if isinstance(fetched, Fetched) and fetched.status.hit and fetched.stored is not None:
            until = fresh_until(fetched.stored, self._cache.options)
            response.from_cache, response.is_expired = True, until <= self._cache.clock()
            response.created_at, response.expires = _naive(fetched.stored.confirmed), _naive(until)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"CachedSession.cache.{name}: vllm-http-cache has no such part; see {__name__}")


def _naive(seconds: float) -> datetime:
    """Seconds since the epoch as that library has times: in UTC, and without saying so."""
    return datetime.fromtimestamp(min(max(seconds, 0.0), LATEST), UTC).replace(tzinfo=None)


def _refuse(expire_after: object) -> None:
    if expire_after is not None:
        raise NotImplementedError(
            "expire_after: the origin says how long its responses live, FileStorage(ttl=...) caps it"
        )


with warnings.catch_warnings():  # aiohttp discourages subclasses; that library's is one, too
    warnings.simplefilter("ignore", DeprecationWarning)

    class CachedSession(TheirSession):
        """A session on *cache*, with the calls of :class:`aiohttp_client_cache.CachedSession`.

        :param cache: not closed with the session.
        :param url_policy: as for :class:`~.aiohttp.CacheMiddleware`.
        :param session: as for :class:`aiohttp.ClientSession`. Middlewares see answers from the cache, too.
        :raises NotImplementedError: *expire_after* is given.
        :raises TypeError: *cache* is a backend of aiohttp-client-cache, or no cache at all; or an argument is none of
            :class:`aiohttp.ClientSession`.
        """

        cache: Any

        def __init__(
            self,
            base_url: StrOrURL | None = None,
            *,
            cache: Cache,
            url_policy: UrlPolicy | None = None,
            expire_after: Any = None,
            **session: Any,
        ) -> None:
            if not isinstance(cache, Cache):
                raise TypeError(f"cache is to be a vllm_http_cache.Cache, not {type(cache).__qualname__}")
            _refuse(expire_after)
            self.cache = _Backend(cache, url_policy)
            ClientSession.__init__(self, base_url, **session)  # their own drops what it does not know

        async def has_url(self, url: StrOrURL, method: str = "GET", **request: Any) -> bool:
            """As ``cache.has_url``, for a *url* as requests of this session have it."""
            return cast("bool", await self.cache.has_url(self._build_url(url), method, **request))

        async def delete_url(self, url: StrOrURL, method: str = "GET", **request: Any) -> None:
            """As ``cache.delete_url``, for a *url* as requests of this session have it."""
            await self.cache.delete_url(self._build_url(url), method, **request)

        @asynccontextmanager
        async def disabled(self) -> AsyncIterator[None]:
            """Requests of this context go by the cache meanwhile."""
            token = self.cache._disabled.set(True)
            try:
                yield
            finally:
                self.cache._disabled.reset(token)

        async def _request(  # type: ignore[override]
            self, method: str, str_or_url: StrOrURL, expire_after: Any = None, refresh: bool = False, **request: Any
        ) -> CachedResponse:
            """As :meth:`aiohttp.ClientSession._request`.

            :param refresh: have the origin confirm what is stored (the request directive no-cache, RFC 9111 5.2.1.4).
            :raises NotImplementedError: *expire_after* is given.
            """
            _refuse(expire_after)
            if refresh:
                request["headers"] = self._prepare_headers(request.get("headers"))
                request["headers"][hdrs.CACHE_CONTROL] = "no-cache"
            own = request.get("middlewares")
            request["middlewares"] = (*(self._middlewares if own is None else own), self.cache.middleware)
            response = await ClientSession._request(self, method, str_or_url, **request)
            for hop in (*response.history, response):
                self.cache.told(hop)
            return cast("CachedResponse", response)
