"""In place of the methods of vLLM's connection that reach for the network."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Generator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ..rfc9111.memo import memo
from .hops import Hop, first_hop, parsed

if TYPE_CHECKING:
    from .answers import AsyncAnswer
    from .attempt import Attempt
    from .opening import Opening

__all__ = ["MARK", "Seam"]

MARK = "vllm_http_cache"  # the attribute of a connection that holds its seam


class Seam:
    """What replaces the methods of one ``HTTPConnection``, on the instance, which is bound all over vLLM.

    Where there is no cache, or vLLM asks for something that we do not know, its own methods answer.
    """

    def __init__(self, connection: Any, opening: Opening) -> None:
        self._connection = connection
        self._opening = opening
        self._get_response = connection.get_response
        self._get_async_response = connection.get_async_response
        self._get_sync_client = connection.get_sync_client
        self._get_async_client = connection.get_async_client

    def take(self) -> None:
        setattr(self._connection, MARK, self)
        for name in ("get_response", "get_async_response", "get_sync_client", "get_async_client"):
            setattr(self._connection, name, getattr(self, name))

    def at_hand(self, attempt: Attempt, largest: int | None, *, wait: bool = True) -> bytes | None:
        """The content of a fresh hit, where nothing in vLLM's fetching could object to it; None: it has to see.

        A way round for speed: what lies between the connector and its connection takes longer than a hit.

        :param largest: octets that the caller takes; more than a MiB (which is all this gives) vLLM always does.
        """
        media = self._opening.media
        if media is None:
            return None
        try:
            attempt.check(attempt.url)
            hop = self._hop(_dialled(attempt.url), None)
            fetched = media.cache.at_hand(hop.request, math.inf if largest is None else largest, wait=wait)
        except Exception:  # the long way round gives the reason
            return None
        if fetched is None or not fetched.body:
            return None
        content: bytes = fetched.body
        attempt.begin(fetched)
        attempt.delivered, attempt.whole = len(content), True
        return content

    def get_response(
        self,
        url: str,
        *,
        stream: bool = False,
        timeout: float | None = None,
        extra_headers: Mapping[str, str] | None = None,
        allow_redirects: bool = True,
        **unknown: Any,
    ) -> Any:
        media = self._opening()
        if media is None or unknown:
            known = {"timeout": timeout, "extra_headers": extra_headers, "allow_redirects": allow_redirects}
            return self._get_response(url, stream=stream, **known, **unknown)
        hop = self._hop(url, extra_headers)
        answer = media.get(url, hop, timeout=timeout, allow_redirects=allow_redirects)
        if not stream:
            _ = answer.content
        return answer

    async def get_async_response(
        self,
        url: str,
        *,
        timeout: float | None = None,
        extra_headers: Mapping[str, str] | None = None,
        allow_redirects: bool = True,
        **unknown: Any,
    ) -> Any:
        media = await self._opening.soon()
        if media is None or unknown:
            known = {"timeout": timeout, "extra_headers": extra_headers, "allow_redirects": allow_redirects}
            return await self._get_async_response(url, **known, **unknown)
        hop = self._hop(url, extra_headers)
        return _Context(partial(media.aget, url, hop, timeout=timeout, allow_redirects=allow_redirects))

    def get_sync_client(self) -> Any:
        media = self._opening()
        return self._get_sync_client() if media is None else media.clients.sync()

    async def get_async_client(self) -> Any:
        media = await self._opening.soon()
        return await self._get_async_client() if media is None else await media.clients.of_loop()

    def _hop(self, url: str, extra_headers: Mapping[str, str] | None) -> Hop:
        try:
            return first_hop(url, self._connection._headers(**(extra_headers or {})))
        except ValueError:
            self._connection._validate_http_url(url)  # vLLM's own words, where it objects too
            raise


@memo(4096)
def _dialled(url: str) -> str:
    """What vLLM's connector makes of a URL before it hands it to its connection."""
    return parsed(url).url


class _Context:
    """What aiohttp's ``get`` returns: to be awaited, or entered."""

    def __init__(self, get: Callable[[], Coroutine[Any, Any, AsyncAnswer]]) -> None:
        self._get = get

    def __await__(self) -> Generator[Any, Any, AsyncAnswer]:
        return self._get().__await__()

    async def __aenter__(self) -> AsyncAnswer:
        self._answer = await self._get()
        return self._answer

    async def __aexit__(self, *_: object) -> None:
        await self._answer.aclose()
