"""How a caller comes to its place in a flight: through this process's queue, then against the other processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from .bodies import DownloadSupply, ForeignSupply
from .flights import Landing, Seat, Ticket
from .patience import CLAIM_SECONDS, head_patience, looks, patience
from .steps import Again, Alone, Failed, Joined

if TYPE_CHECKING:
    from .cache import Cache
    from .loops import Bell
    from .storage.protocol import Claim
    from .wire import Caller

__all__ = ["Boarding"]

B = TypeVar("B", bound="Bell")

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
        self._head_patience = head_patience(caller.timeout)
        self._ticket = Ticket(bell, patience(caller.timeout))
        self._began = cache.flights.clock()
        self._left = False
        self._is_silent = False  # the process that leads

    def enter(self) -> bool:
        """Whether to wait for the bell."""
        self._cache.flights.enter(self.flight, self._ticket)
        return self._ticket.outcome is None

    def bells(self, make: Callable[[], B]) -> Iterator[tuple[B, float]]:
        """Bells to wait for, and for how long: now and then it is seen whether anybody still leads."""
        for waited, seconds in looks(self._caller.timeout):
            is_late = waited >= self._head_patience
            if not self._cache.flights.still_waits(self._ticket, bell := make(), is_late=is_late):
                return
            yield bell, seconds

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
        if growing is None:
            return False
        remote = storage.remote
        self._is_silent = growing.silent() >= patience(self._caller.timeout, remote=remote)
        if self._is_silent:
            growing.close()
            return False
        self.outcome = Joined(growing.stored, ForeignSupply(growing, remote=remote))
        return True

    def _lead(self, seat: Seat) -> Iterator[float]:
        """Lead once no other process does, or in its stead, or join what another process is receiving."""
        clock, timeout = self._cache.flights.clock, self._caller.timeout
        pause, waited = FIRST_PAUSE, 0.0
        while (claim := seat.claim or self._claim(deputy=seat.is_late or waited >= self._head_patience)) is None:
            if self._join_another_process():
                seat.finish()
                return
            waited = clock() - self._began
            if timeout is not None and waited > timeout:
                self.outcome = self._timed_out()
                seat.abandon()
                return
            if waited > CLAIM_SECONDS:
                break
            yield pause
            pause = min(pause * 1.5, LONGEST_PAUSE)
        seat.claim = claim
        self.outcome = seat

    def _claim(self, *, deputy: bool) -> Claim | None:
        """The flight's claim, or that of a deputy of the process that has it."""
        storage, flight = self._cache.storage, self.flight
        claim = storage.claim(flight)
        if claim is None and (deputy or self._is_silent):
            claim = storage.claim(flight[::-1])  # to the storage another flight
        return claim
