"""Who leads, who follows: one request to the origin for all who ask for the same at the same time.

A flight has one leader and a queue of followers, each a task or a thread of any event loop of this process. Between
processes the leaders compete for the storage's claim. What became of the leader decides what the followers do:

- what it receives may be shared: they join its download while it lasts, and look up again after it;
- it turned out not shareable: all go alone, and for a while nobody queues for it again;
- the leader gave up before there was anything to share: exactly one follower leads in its place;
- its event loop has ended, or does not turn: likewise, by whoever notices it first.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any

from .steps import Again, Alone, Lead

if TYPE_CHECKING:
    from .downloads import Download
    from .loops import Bell
    from .rfc9111.message import StoredResponse
    from .storage.protocol import Claim

__all__ = ["Flights", "Landing", "Seat", "Ticket"]

UNSHAREABLE_SECONDS = 60.0
UNSHAREABLE_FLIGHTS = 4096


class Ticket:
    """A caller's way into a flight. A Seat as its ``outcome`` leads, a Landing may be joined, None waits for *bell*.

    After *patience* seconds it follows nobody whose event loop does not turn.

    It is the caller's own before it enters, so that one who is interrupted at any moment can give back what it got.
    """

    __slots__ = ("bell", "flight", "outcome", "patience")

    def __init__(self, bell: Bell, patience: float = inf) -> None:
        self.bell = bell
        self.patience = patience
        self.flight: _Flight | None = None  # in whose queue it is
        self.outcome: Seat | Landing | Again | Alone | None = None


class Landing:
    """A download that others may join."""

    __slots__ = ("download", "stored")

    def __init__(self, stored: StoredResponse, download: Download) -> None:
        self.stored = stored
        self.download = download


class _Flight:
    __slots__ = ("key", "landing", "queue", "seat")

    def __init__(self, key: str) -> None:
        self.key = key
        self.seat: Seat | None = None  # of who leads now
        self.queue: deque[Ticket] = deque()
        self.landing: Landing | None = None


class Seat(Lead):
    """The leader's. Exactly one of its ends counts: the first of finish, disperse and abandon."""

    __slots__ = ("_flight", "_flights", "bell", "claim", "is_late", "taken")

    def __init__(self, flights: Flights, flight: _Flight, bell: Bell) -> None:
        self._flights = flights
        self._flight = flight
        self.bell = bell
        self.taken = False
        self.claim: Claim | None = None
        self.is_late = False  # for a follower: a leader in another process should have given a head by now

    def land(self, stored: StoredResponse, download: Download) -> None:
        """The head is here and the body may be shared while it arrives; whoever drives the download finishes."""
        self._flights._land(self, Landing(stored, download))

    def finish(self) -> None:
        """The storage has what there is to have."""
        self._end(lambda: self._flights._release(self._flight, Again()))

    def disperse(self, *, remember: bool) -> None:
        """What came is for this caller only. *remember*: and so it will be for a while."""
        self._end(lambda: self._flights._disperse(self._flight, remember=remember))

    def abandon(self) -> None:
        """Nothing came of it."""
        self._end(lambda: self._flights._promote(self._flight))

    def _end(self, tell: Callable[[], None]) -> None:
        self._release_claim()  # before anybody is told, who will want it
        with self._flights._lock:
            if not self.taken:
                tell()
            self.taken = True
        self._release_claim()  # if it came meanwhile

    def _release_claim(self) -> None:
        with self._flights._lock:
            claim, self.claim = self.claim, None
        if claim is not None:
            claim.release()


class Flights:
    """The flights of one process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.reset()

    def reset(self) -> None:
        """Forget every flight (in a forked child: their leaders are the parent's)."""
        self._lock = threading.Lock()
        self._flights: dict[str, _Flight] = {}
        self._unshareable: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def enter(self, key: str, ticket: Ticket) -> None:
        """Lead, join, go alone, or wait: the ticket tells."""
        with self._lock:
            until = self._unshareable.get(key)
            if until is not None:
                if self.clock() < until:
                    ticket.outcome = Alone()
                    return
                del self._unshareable[key]
            flight = self._flights.get(key)
            if flight is None or _is_lost(flight, ticket.patience):
                self._lead(flight or _Flight(key), ticket)
                return
            landing = flight.landing
            if landing is not None and (landing.download.joinable() or landing.download.is_lost()):
                ticket.outcome = landing
                return
            ticket.flight = flight
            flight.queue.append(ticket)

    def _lead(self, flight: _Flight, ticket: Ticket) -> None:
        """Lead what nobody leads, or no more: those who wait go with the new leader."""
        lost, flight.landing = flight.seat, None
        flight.seat = ticket.outcome = Seat(self, flight, ticket.bell)
        self._flights[flight.key] = flight
        if lost is not None:
            lost.taken, flight.seat.claim, lost.claim = True, lost.claim, None

    def still_waits(self, ticket: Ticket, bell: Bell, *, is_late: bool = False) -> bool:
        """Whether to go on waiting, for *bell* from now on. Who finds that its leader is lost leads.

        :param is_late: see :class:`Seat`.
        """
        with self._lock:
            flight = ticket.flight
            if ticket.outcome is None and flight is not None:
                if _is_lost(flight, ticket.patience):
                    flight.queue.remove(ticket)
                    self._lead(flight, ticket)
                elif is_late and flight.seat is not None:
                    flight.seat.is_late = True
            ticket.bell = bell
            return ticket.outcome is None

    def collect(self, ticket: Ticket) -> Seat | Landing | Again | Alone | None:
        """What the ticket tells; None when nothing yet, and then it waits no longer."""
        with self._lock:
            if ticket.outcome is None and ticket.flight is not None:
                with suppress(ValueError):  # interrupted on its way into the queue
                    ticket.flight.queue.remove(ticket)
            return ticket.outcome

    def shareable(self, key: str) -> None:
        """What was not shareable has become so."""
        if self._unshareable:
            with self._lock:
                self._unshareable.pop(key, None)

    def _land(self, seat: Seat, landing: Landing) -> None:
        with self._lock:
            if not seat.taken:  # else another leads by now
                seat._flight.landing = landing
                self._tell_all(seat._flight, landing)

    # Called with the lock.

    def _release(self, flight: _Flight, outcome: Any) -> None:
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]
        self._tell_all(flight, outcome)

    def _disperse(self, flight: _Flight, *, remember: bool) -> None:
        if remember:
            if len(self._unshareable) >= UNSHAREABLE_FLIGHTS:
                self._unshareable.pop(next(iter(self._unshareable)))
            self._unshareable[flight.key] = self.clock() + UNSHAREABLE_SECONDS
        self._release(flight, Alone())

    def _promote(self, flight: _Flight) -> None:
        flight.landing = None
        while flight.queue:
            ticket = flight.queue.popleft()
            flight.seat = Seat(self, flight, ticket.bell)
            if self._tell(ticket, flight.seat):
                return
            ticket.outcome = Alone()  # nobody heard it: it is the next one's turn
        if self._flights.get(flight.key) is flight:
            del self._flights[flight.key]

    def _tell_all(self, flight: _Flight, outcome: Any) -> None:
        while flight.queue:
            self._tell(flight.queue.popleft(), outcome)

    def _tell(self, ticket: Ticket, outcome: Any) -> bool:
        """Whether it can be heard."""
        ticket.outcome = outcome
        return ticket.bell.ring()


def _is_lost(flight: _Flight, patience: float) -> bool:
    """Has the event loop of its leader ended, and the leader with it or never? Or has it not turned for so long?"""
    if flight.landing is not None:
        return flight.landing.download.is_silent(patience)
    return flight.seat is not None and (flight.seat.bell.is_lost() or flight.seat.bell.silent() >= patience)
