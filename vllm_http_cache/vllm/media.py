"""Fetches what vLLM asks its connection for: each hop of a chain of redirects through the cache."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import aiohttp
import requests

from ..wire import Caller, Fetched
from .answers import Answer, AsyncAnswer, adrain, drain, request_info
from .attempt import ATTEMPT, Attempt, not_cached, was_forbidden, was_stored
from .hops import Hop, is_redirect
from .seeds import Seeds
from .sessions import Sessions, asend, send

if TYPE_CHECKING:
    from ..cache import Cache
    from ..rfc9111.message import Request
    from ..settings import Settings
    from ..wire import Reply

__all__ = ["Media"]

MAX_REDIRECTS = 30  # followed, as requests has it
MAX_REDIRECTS_ASYNC = 9  # as aiohttp has it
GRACE = 1.0  # seconds for a stale answer when the time for the origin's is up


class Media:
    """vLLM's media by way of *cache*.

    :param settings: those that the cache was opened with.
    """

    def __init__(self, cache: Cache, settings: Settings) -> None:
        self.cache = cache
        self.seeds = Seeds.of(settings)
        self.network = Sessions()
        self.clients = Sessions(cache)  # for those who want to ask one themselves

    def get(self, url: str, hop: Hop, *, timeout: float | None = None, allow_redirects: bool = True) -> Answer:
        """What requests' ``get`` of *url* gives, streaming; *hop* leads there. *timeout* in seconds, for each wait.

        :raises requests.RequestException: as without the cache. :raises ValueError: no HTTP URL, or an ambiguous one.
        :raises VLLMUnprocessableEntityError: media may not come from there.
        :raises GracefulHTTPError: nothing is stored, and the network may not be asked.
        """
        leg = _Leg(self, ATTEMPT.get() or Attempt(url), hop, timeout)
        caller = Caller(timeout, requests.ReadTimeout, requests.exceptions.ChunkedEncodingError)
        while True:
            leg.check()
            fetched = self.cache.fetch(leg.hop.request, leg.send, caller)
            if was_forbidden(fetched):
                fetched = leg.instead(leg.seed(leg.hop.request))
            _keep_no_failure(fetched)
            if not (allow_redirects and is_redirect(fetched.response)):
                return Answer(leg.hop, fetched, leg.attempt)
            drain(fetched)
            if leg.redirects == MAX_REDIRECTS:
                raise requests.TooManyRedirects(f"Exceeded {MAX_REDIRECTS} redirects.")
            leg = leg.following(fetched)

    async def aget(
        self, url: str, hop: Hop, *, timeout: float | None = None, allow_redirects: bool = True
    ) -> AsyncAnswer:
        """What aiohttp's ``get`` gives. *timeout* in seconds, for all of it, content included.

        :raises aiohttp.ClientError: as without the cache. :raises TimeoutError: not in time.
        :raises Exception: otherwise as :meth:`get`.
        """
        clock = asyncio.get_running_loop().time
        allowance = _Allowance(clock() + timeout) if timeout else None
        leg = _Leg(self, ATTEMPT.get() or Attempt(url), hop, timeout, allowance)
        while True:
            leg.check()
            async with allowance.granted() if allowance else nullcontext():
                left = allowance.left() if allowance else None
                caller = Caller(left, TimeoutError, aiohttp.ClientPayloadError)
                fetched = await self.cache.afetch(leg.hop.request, leg.asend, caller)
                if was_forbidden(fetched):
                    fetched = leg.instead(await leg.aseed(leg.hop.request))
            _keep_no_failure(fetched)
            deadline = allowance.deadline if allowance else None
            if not (allow_redirects and is_redirect(fetched.response)):
                if deadline is not None and clock() > deadline:
                    deadline += GRACE
                return AsyncAnswer(leg.hop, fetched, leg.attempt, deadline)
            await adrain(fetched, deadline)
            if leg.redirects == MAX_REDIRECTS_ASYNC:
                raise aiohttp.TooManyRedirects(request_info(leg.hop), ())
            leg = leg.following(fetched)


def _keep_no_failure(fetched: Fetched) -> None:
    """What the origin says for how long it will fail is not kept: vLLM asks again, and is to be answered anew."""
    if fetched.response.status >= 500:
        fetched.refuse()
        fetched.status = replace(fetched.status, stored=False)


class _Allowance:
    """The time that vLLM gives a task for all hops and the content: until *deadline*, on the loop's clock.

    What it waits for the answer to somebody else's request comes on top, once it turns out that it needs its own.
    """

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self._loop = asyncio.get_running_loop()
        self._waiting: tuple[float, asyncio.Timeout] | None = None  # since when, and what will end it

    def left(self) -> float:
        return max(self.deadline - self._loop.time(), 0.0)

    @asynccontextmanager
    async def granted(self) -> AsyncIterator[None]:
        """For one hop, and a little longer: for what is stored to answer when the origin has not."""
        try:
            async with asyncio.timeout_at(self.deadline + GRACE) as limit:
                self._waiting = self._loop.time(), limit
                yield
        finally:
            self._waiting = None

    def sends(self) -> float:
        """A request of its own goes out now; by when its answer must be here."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            begun, limit = waiting
            self.deadline += self._loop.time() - begun
            with suppress(RuntimeError):  # it has ended just now
                limit.reschedule(self.deadline + GRACE)
        return self.deadline


@dataclass(frozen=True, slots=True)
class _Leg:
    """One hop on its way. Its *send* may be called long after the next hop has begun."""

    media: Media
    attempt: Attempt
    hop: Hop
    timeout: float | None
    allowance: _Allowance | None = None
    redirects: int = 0
    led_by: Fetched | None = None

    def check(self) -> None:
        """Hold it to the policy. What redirects where it must not is of no use.

        :raises VLLMUnprocessableEntityError: media may not come from there.
        """
        try:
            self.attempt.check(self.hop.url)
        except Exception:
            if self.led_by is not None and not was_stored(self.led_by):
                self.led_by.refuse()
            raise

    def following(self, fetched: Fetched) -> _Leg:
        """:raises ValueError: the redirect leads to no HTTP URL, or to an ambiguous one."""
        return replace(self, hop=self.hop.following(fetched.response), redirects=self.redirects + 1, led_by=fetched)

    def send(self, sent: Request) -> Reply:
        return self.seed(sent) or send(self.media.network, self.hop, sent, self.timeout)

    async def asend(self, sent: Request) -> Reply:
        seed = await self.aseed(sent)
        deadline = self.allowance.sends() if self.allowance else None
        return seed or await asend(self.media.network, self.hop, sent, self.timeout, deadline)

    def seed(self, sent: Request) -> Reply | None:
        if self.led_by is not None or self.attempt.again:
            return None
        reply = self.media.seeds.reply(self.attempt.url, sent)
        self.attempt.seeded = reply is not None
        return reply

    async def aseed(self, sent: Request) -> Reply | None:
        if self.led_by is not None or self.attempt.again:
            return None
        reply = await self.media.seeds.areply(self.attempt.url, sent)
        self.attempt.seeded = reply is not None
        return reply

    def instead(self, reply: Reply | None) -> Fetched:
        """A seed's answer where the network may not be asked.

        :raises GracefulHTTPError: there is none.
        """
        if reply is None:
            raise not_cached(self.hop.request.uri)
        return Fetched(reply.response, reply.source)
