"""What an exchange asks of its driver, and what the driver sends back. Values; each step says what answers it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .rfc9111.cachestatus import CacheStatus
from .rfc9111.judging import Changes
from .rfc9111.message import Request, Response, StoredResponse

__all__ = [
    "UNTOLD",
    "Again",
    "Alone",
    "Answer",
    "Arrived",
    "Change",
    "Discard",
    "Enter",
    "Failed",
    "Forget",
    "Forward",
    "Joined",
    "Later",
    "Lead",
    "Leave",
    "LookUp",
    "Open",
    "Store",
]

UNTOLD = CacheStatus()


@dataclass(frozen=True, slots=True)
class LookUp:
    """-> (stored responses of the key, now)"""

    key: str


@dataclass(frozen=True, slots=True)
class Open:
    """-> the stored body, or None: it cannot be had, and :class:`LookUp` gives its entry no more"""

    key: str
    stored: StoredResponse


@dataclass(frozen=True, slots=True)
class Enter:
    """Single flight. -> Lead | Joined | Again | Alone | Failed: the wait was longer than the caller's"""

    flight: str


@dataclass(frozen=True, slots=True)
class Forward:
    """``validates``: what comes tells whether a stored response is still good. -> Arrived | Failed"""

    request: Request
    validates: bool = False


@dataclass(frozen=True, slots=True)
class Store:
    """Keep the arriving body as *stored*, after the stored part's octets where it completes one.

    -> (the body to hand out, whether it is being stored), or None: the part cannot be had
    """

    key: str
    stored: StoredResponse
    arrived: Arrived
    shareable: bool
    part: StoredResponse | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """Replace stored responses by others, or by None. -> None"""

    key: str
    changes: Changes


@dataclass(frozen=True, slots=True)
class Forget:
    """-> None"""

    key: str


@dataclass(frozen=True, slots=True)
class Discard:
    """The arrived body is of no use to anybody. -> None"""

    arrived: Arrived


@dataclass(frozen=True, slots=True)
class Leave:
    """The body joined is of no use to this caller. -> None"""

    body: Any


@dataclass(frozen=True, slots=True)
class Later:
    """Run :func:`revalidate` of the request in the background. -> None"""

    request: Request


# What the driver sends back, and how an exchange ends.


@dataclass(frozen=True, slots=True)
class Arrived:
    """A response whose head is here; its body is still on the wire, in ``source``. See :class:`.wire.Reply`."""

    response: Response
    source: Any
    request_time: float
    response_time: float
    framed: bool = True
    legible: bool = True
    native: Any = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The origin gave no response; ``error`` is the client's own, ``time`` when it was seen."""

    error: Exception
    time: float
    status: CacheStatus = UNTOLD


class Lead:
    """Go first; others of the same flight wait for you."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Joined:
    """Somebody leads, and what it receives may be shared."""

    stored: StoredResponse
    body: Any


@dataclass(frozen=True, slots=True)
class Again:
    """Somebody led and is done: look up once more."""


@dataclass(frozen=True, slots=True)
class Alone:
    """Go without waiting for anybody."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the caller gets: a head with its Age and Cache-Status (``status``), and the octets ``span`` of ``body``.

    ``span`` is a first and a past-the-end offset; None is all of it. ``stored`` is the stored response that answers,
    if one does. ``arrived`` is set when the origin's response goes through untouched. ``shareable``: others who asked
    for the same may look it up now, and will find it fresh.
    """

    response: Response
    status: CacheStatus = UNTOLD
    body: Any = None
    span: tuple[int, int] | None = None
    stored: StoredResponse | None = None
    arrived: Arrived | None = None
    shareable: bool = False
