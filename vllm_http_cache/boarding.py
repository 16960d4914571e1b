"""How a caller comes to its place in a flight: through this process's queue, then against the other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from .bodies import DownloadSupply, ForeignSupply
from .downloads import LOOK
from .flights import Landing, Seat, Ticket
from .patience import patience
from .steps import Again, Alone, Failed, Joined

if TYPE_CHECKING:
    from .cache import Cache
    from .loops import Bell
    from .wire import Caller

__all__ = ["Boarding"]

B = TypeVar("B", bound="Bell")

CLAIM_SECONDS = 30.0  # how long a caller without a time-out of its own waits for a leader in another process
FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.05  # seconds between two tries for a claim


class Boarding:
    """:meth:`enter`, wait for :meth:`bells` if it says so, and pause as iteration says; then ``outcome`` is there.

    A caller who is interrupted, wherever, has to :meth:`leave`.
    """

    def __init__(self, cache: Cache, caller: Caller, flight: str, bell: Bell) -> None:
        self.flight = flight
        self.outcome: Seat | Joined | Again | Alone | Failed = Alone()
        self._cache = cache
        self._caller = caller
        self._patience = patience(caller.timeout)
        self._ticket = Ticket(bell, self._patience)
        self._began = cache.flights.clock()
        self._left = False

    def enter(self) -> bool:
        """Whether to wait for the bell."""
        self._cache.flights.enter(self.flight, self._ticket)
        return self._ticket.outcome is None

    def bells(self, make: Callable[[], B]) -> Iterator[tuple[B, float]]:
        """Bells to wait for, and for how long: now and then it is seen whether anybody still leads."""
        left, flights = self._caller.timeout, self._cache.flights
        look = min(LOOK, self._patience / 4)
        while flights.still_waits(self._ticket, bell := make()):
            yield bell, look if left is None else min(left, look)
            if left is not None and (left := left - look) <= 0:
                return

    def seat(self) -> Seat | None:
        """The seat, if this caller leads; it must be given up by whoever does not use it."""
        came = self._cache.flights.collect(self._ticket)
        return came if isinstance(came, Seat) else None

    def leave(self) -> None:
        """Give back what this caller has got."""
        self._left = True
        if (seat := self.seat()) is not None:
            seat.abandon()
        if isinstance(self.outcome, Joined):
            self.outcome.body.close()

    def __iter__(self) -> Iterator[float]:
        """Seconds to pause before looking again."""
        yield from self._board()
        if self._left:  # while a thread was at it
            self.leave()

    def _board(self) -> Iterator[float]:
        came = self._cache.flights.collect(self._ticket)
        if came is None:
            self.outcome = self._timed_out()
        elif isinstance(came, Landing):
            reader = came.download.attach()
            self.outcome = Joined(came.stored, DownloadSupply(came.download, reader)) if reader else Again()
            came.download.bury()
        elif isinstance(came, Seat):
            yield from self._lead(came)
        else:
            self.outcome = came
            if isinstance(came, Again):  # perhaps its leader has joined another process, and so may we
                self._join_another_process()

    def _timed_out(self) -> Failed:
        return Failed(self._caller.timed_out(), self._cache.clock())

    def _join_another_process(self) -> bool:
        storage = self._cache.storage
        growing = storage.growing(self.flight)
        if growing is not None:
            supply = ForeignSupply(growing, remote=storage.remote)
            self.outcome = Joined(growing.stored, supply)
        return growing is not None

    def _lead(self, seat: Seat) -> Iterator[float]:
        """Lead once no other process does, or join what another process is receiving."""
        storage, clock, timeout = self._cache.storage, self._cache.flights.clock, self._caller.timeout
        pause = FIRST_PAUSE
        while (claim := seat.claim or storage.claim(self.flight)) is None:
            if self._join_another_process():
                seat.finish()
                return
            if clock() - self._began > (CLAIM_SECONDS if timeout is None else timeout):
                if timeout is not None:
                    self.outcome = self._timed_out()
                    seat.abandon()
                else:  # the others have waited as long
                    seat.disperse(remember=False)
                return
            yield pause
            pause = min(pause * 1.5, LONGEST_PAUSE)
        seat.claim = claim
        self.outcome = seat
