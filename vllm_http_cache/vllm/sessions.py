"""The clients under the cache, and those that others get from vLLM's connection."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator
from http.cookiejar import DefaultCookiePolicy
from typing import TYPE_CHECKING, Any

import aiohttp
import requests
from requests.exceptions import ChunkedEncodingError, SSLError
from urllib3.exceptions import ProtocolError, ReadTimeoutError
from urllib3.exceptions import SSLError as TransportSSLError
from yarl import URL

from ..aiohttp import CacheMiddleware, field_lines, octets
from ..requests import CacheAdapter, reading, received
from ..rfc9111.framing import is_framed
from ..rfc9111.message import Response
from ..wire import Reply

if TYPE_CHECKING:
    from ..cache import Cache
    from ..rfc9111.message import Request
    from .hops import Hop

__all__ = ["Sessions", "asend", "send"]


class Sessions:
    """A requests session for the process and an aiohttp session for each event loop, made at first use.

    They keep no cookies, which would be one user's for all, and see the proxies, certificates and netrc of the
    environment as vLLM's own do. An aiohttp session closes with its loop.

    :param cache: what their requests go through; None: nothing.
    """

    def __init__(self, cache: Cache | None = None) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._sync: requests.Session | None = None
        self._async: dict[asyncio.AbstractEventLoop, tuple[aiohttp.ClientSession, AsyncGenerator[None]]] = {}

    def sync(self) -> requests.Session:
        with self._lock:
            self._forget_parents()
            if self._sync is None:
                self._sync = requests.Session()
                self._sync.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
                if self._cache is not None:
                    self._sync.mount("http://", CacheAdapter(self._cache))
                    self._sync.mount("https://", CacheAdapter(self._cache))
            return self._sync

    async def of_loop(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        with self._lock:
            self._forget_parents()
            session, _ = self._async.get(loop, (None, None))
        if session is None or session.closed:
            session = self._new()
            keeper = self._keep(session, loop)
            await anext(keeper)
            with self._lock:
                for dead in [loop for loop in self._async if loop.is_closed()]:
                    del self._async[dead]
                self._async[loop] = session, keeper
        return session

    def _new(self) -> aiohttp.ClientSession:
        if self._cache is None:
            return aiohttp.ClientSession(
                cookie_jar=aiohttp.DummyCookieJar(), trust_env=True, auto_decompress=False, requote_redirect_url=False
            )
        return aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=True,
            requote_redirect_url=False,
            middlewares=[CacheMiddleware(self._cache)],
        )

    async def _keep(self, session: aiohttp.ClientSession, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None]:
        """A loop that ends closes the generators that began in it, and so this session."""
        try:
            yield
        finally:
            self._async.pop(loop, None)
            await session.close()
            await asyncio.sleep(0)  # for its transports, which close in the loop's next round

    def _forget_parents(self) -> None:
        """In a forked child: connections are the parent's."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._sync = None
            self._async.clear()


def send(sessions: Sessions, hop: Hop, sent: Request, timeout: float | None) -> Reply:
    """Send *sent* to *hop*'s URL; *timeout* in seconds, for connecting and for each read.

    :raises requests.RequestException: there is no answer.
    """
    session = sessions.sync()
    prepared = session.prepare_request(requests.Request("GET", hop.url, headers=hop.outgoing(sent)))
    prepared.url = hop.url  # not as requests quotes it
    settings: Any = session.merge_environment_settings(hop.url, {}, True, None, None)
    response = session.get_adapter(hop.url).send(prepared, timeout=timeout, **settings)
    head, legible = received(response)
    return Reply(
        head,
        _Source(response),
        framed=is_framed("GET", head),
        legible=legible,
        time_outs=(_ReadTimedOut,),
    )


async def asend(sessions: Sessions, hop: Hop, sent: Request, timeout: float | None, deadline: float | None) -> Reply:
    """The same for a task; *timeout* for each read, and *deadline* on the loop's clock for the head.

    :raises aiohttp.ClientError: there is no answer. :raises TimeoutError: not in time.
    """
    session = await sessions.of_loop()
    async with asyncio.timeout_at(deadline):
        response = await session.get(
            URL(hop.url, encoded=True),
            headers=hop.outgoing(sent),
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_read=timeout),
        )
    head = Response(response.status, field_lines(response), octets(response.reason or ""))
    return Reply(head, _AsyncSource(response), framed=is_framed("GET", head))


class _ReadTimedOut(requests.ConnectionError):
    """As requests has it for a content: it is no ``Timeout``."""


class _Source:
    """A :class:`~..wire.Source` and, where the cache has no use for it, a :class:`~..wire.Body`."""

    length = None

    def __init__(self, response: requests.Response) -> None:
        self._response = response
        self._read = reading(response.raw)

    def read(self) -> bytes:
        try:
            return self._read()
        except ProtocolError as error:
            raise ChunkedEncodingError(error) from error
        except ReadTimeoutError as error:
            raise _ReadTimedOut(error) from error
        except TransportSSLError as error:
            raise SSLError(error) from error

    def close(self) -> None:
        self._response.close()


class _AsyncSource:
    """The same for tasks."""

    length = None

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    def ready(self) -> bytes | None:
        return None

    async def read(self) -> bytes:
        return await self._response.content.readany()

    async def aclose(self) -> None:
        self._response.release()
