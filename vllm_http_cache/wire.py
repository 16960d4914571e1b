"""What a transport and a cache say to each other.

A transport hands the cache a :class:`~.rfc9111.message.Request` and a *send*: a function that puts a request on the
wire and returns a :class:`Reply` as soon as the head is here. The cache calls *send* as often as the exchange needs
it (never, once, or again after a validation that matched nothing), perhaps later and in the background, each time
with the request to send, whose fields replace those of the caller. It gives back a :class:`Fetched`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from .rfc9111.cachestatus import CacheStatus
from .rfc9111.message import Request, Response, StoredResponse

__all__ = [
    "A_CACHE",
    "AsyncBody",
    "AsyncSend",
    "AsyncSource",
    "Body",
    "Caller",
    "Fetched",
    "Reply",
    "Send",
    "Source",
    "UrlPolicy",
    "expect",
]

A_CACHE = "cache has to be a Cache (where open_cache() gives None, do without)"


def expect(given: object, method: str, otherwise: str) -> None:
    """Refuse now what would fail at the first request.

    :param method: what is asked of *given*, whatever it is.
    :param otherwise: what it has to be.
    :raises TypeError: it has no such method, or is a class.
    """
    if isinstance(given, type) or not callable(getattr(given, method, None)):
        raise TypeError(f"{otherwise}, not {given!r}")


class Source(Protocol):
    """A body on the wire, in the octets of its content coding. Used by one thread at a time, not always the same."""

    def read(self) -> bytes:
        """The next chunk, as it comes; empty when the framing says that the body is whole.

        :raises Exception: the client's own error when the body was cut short, timed out or reset.
        """

    def close(self) -> None:
        """The rest is not wanted: give the connection back or close it. Idempotent."""


class AsyncSource(Protocol):
    """The same for asynchronous clients; used by one task at a time, not always the one that sent the request."""

    async def read(self) -> bytes: ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Reply:
    """A response whose head is here.

    :param source: its body.
    :param native: the client's own response object, which the caller receives when the cache has no use for the body;
        ``source`` has not been read then.
    :param framed: False when the end of the body is known only by the connection's closing.
    :param legible: False when the client could not read all of the head: what it left out may forbid to store it.
    :param time_outs: errors that reading ``source`` raises when no octets come in time: to others who read along they
        are time-outs as well.
    """

    response: Response
    source: Any
    native: Any = None
    framed: bool = True
    legible: bool = True
    time_outs: tuple[type[Exception], ...] = (TimeoutError,)


UrlPolicy = Callable[[str], None]  # is given a target URI, and raises to refuse it
Send = Callable[[Request], Reply]
AsyncSend = Callable[[Request], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Caller:
    """How a caller wants to be treated while it depends on somebody else's download or on a stored body.

    :param timeout: seconds it waits for the next octets of a download that another caller leads; None: for ever.
    :param timed_out: makes the client's own time-out error.
    :param broken: makes the client's own error for a body that cannot be given to its end; its argument says why.
    """

    timeout: float | None = None
    timed_out: Callable[[], Exception] = TimeoutError
    broken: Callable[[str], Exception] = ConnectionError


class Body(Protocol):
    """What the caller reads. ``length`` is the number of octets to come, where it is known."""

    length: int | None

    def read(self) -> bytes:
        """The next chunk; empty at the end."""

    def close(self) -> None:
        """No more is wanted. Idempotent. Needed after the end as well."""


class AsyncBody(Protocol):
    length: int | None

    async def read(self) -> bytes: ...

    def ready(self) -> bytes | None:
        """The next chunk if it can be had without waiting (empty at the end), otherwise None."""

    async def aclose(self) -> None: ...


@dataclass(slots=True)
class Fetched:
    """A cache's answer to a transport.

    :param response: the head for the caller, Cache-Status included.
    :param body: the body for the caller: a :class:`Body` or, from ``afetch``, an :class:`AsyncBody`; from ``at_hand``
        its octets.
    :param native: set when the origin's own response goes through untouched: the transport hands this object out
        (with ``response.fields``' Cache-Status added) and leaves ``body`` alone.
    :param status: what its Cache-Status says.
    :param refuse: the consumer's veto. Call it when the octets turned out to be unusable (they do not decode): what is
        stored of this response is dropped and the next request asks the origin. Does nothing for what is not stored.
    :param stored: what is stored, or is being stored, of this response; None: nothing.
    """

    response: Response
    body: Any
    native: Any = None
    status: CacheStatus = CacheStatus()
    refuse: Callable[[], None] = lambda: None
    stored: StoredResponse | None = None
