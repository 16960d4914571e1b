"""Making room: reserve, and when there is none have the janitor fetch some; expiry goes with it."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from errno import ENOSPC
from functools import partial
from typing import TYPE_CHECKING

from .access import Access
from .devices import shut
from .formats import remove_older
from .growing import withdraw_dead
from .janitor import Janitor
from .ledger import HOME, Page
from .locks import lock
from .place import Place
from .slots import bury_dead
from .sweep import GRACE, count, evict, look_through

if TYPE_CHECKING:
    from .protocol import Observer

__all__ = ["SMALLEST", "Limits", "Room"]

SMALLEST = 128 * 1024  # octets: the folder and its files take up some before anything is stored
PATIENCE = 0.1  # seconds that a caller waits for room
OPERATORS_PATIENCE = 30.0  # seconds that an operator's command waits for whoever is tidying up
HIGH, LOW = 0.9, 0.8  # shares of the bound: above the one the janitor sweeps, down to the other
ROUND = 60.0  # seconds between two looks for dead writers, at most
INTERVAL = 3600.0  # seconds between two looks through everything, at most


@dataclass(frozen=True, slots=True)
class Limits:
    """Octets and seconds, as :class:`.files.FileStorage` describes them."""

    max_size: int
    max_entry_size: int | None
    ttl: float
    free_space_floor: int | None

    def __post_init__(self) -> None:
        octets = (self.max_size, self.max_entry_size or 0, self.free_space_floor or 0)
        if not all(0 <= limit < 2**63 for limit in octets) or not self.ttl >= 0:
            raise ValueError("a limit is a number of octets below 2**63, or of seconds, 0 or more")

    @property
    def largest(self) -> int:
        """Octets of the largest body that is kept."""
        return self.max_size if self.max_entry_size is None else min(self.max_entry_size, self.max_size)


class Room:
    """:param drop: removes what is expired or damaged of a key or, by its name, a damaged body."""

    def __init__(
        self,
        access: Access,
        limits: Limits,
        clock: Callable[[], float],
        drop: Callable[[Place, str], None],
        warn: Callable[[str, OSError], None],
    ) -> None:
        self._access = access
        self._limits = limits
        self._clock = clock
        self._drop = drop
        self._warn = warn
        self.observer: Observer | None = None
        self._waiting: dict[object, int] = {}  # octets asked for by those who wait for room
        self._next_round = 0.0
        self._suspects: deque[str] = deque(maxlen=1024)
        self._janitor = Janitor(self._tidy)

    def reserve(self, place: Place, amount: int) -> bool:
        """Reserve octets, after a short wait if need be.

        :raises OSError: the disk does.
        """
        if self._try(place, amount):
            return True
        with place.ledger.locked() as page:
            if not self._fits(place, page, amount):
                return False
        deadline = time.monotonic() + PATIENCE
        request = object()
        self._waiting[request] = amount
        self._janitor.ask()
        try:
            while self._janitor.pause(deadline):
                if self._try(place, amount, request):
                    return True
        finally:
            self._waiting.pop(request, None)
        return False

    def _fits(self, place: Place, page: Page, amount: int) -> bool:
        """Whether there would be room, beside a record, if nothing else were stored."""
        return amount + page.account(HOME) + 2 * place.home.slack <= self._limits.max_size

    def _try(self, place: Place, amount: int, request: object = None) -> bool:
        if not place.join(self._limits.max_size):
            return False
        place.settle()
        device = place.home.device()
        if device is not None and device.free - amount < device.floor(self._limits.free_space_floor):
            floor = OSError(ENOSPC, "the device must keep some free space (MEDIA_CACHE_FREE_SPACE_FLOOR_MB)")
            self._warn("reserving room", floor)
            return False
        with place.ledger.locked() as page:
            granted = place.ledger.reserve(page, amount, self._limits.max_size)
            if granted:
                self._waiting.pop(request, None)  # before the janitor can count it twice
            due = self._sweep_is_due(page)
            full = page.used + page.reserved > HIGH * self._limits.max_size
            worth = page.used > LOW * self._limits.max_size
        if due or (full and worth) or time.monotonic() >= self._next_round:
            self._next_round = time.monotonic() + ROUND
            self._janitor.ask()
        return granted

    def tell(self, used: int) -> None:
        """Octets that are used, as the ledger has just said."""
        if self.observer is not None:
            self.observer.holds(octets=used)

    def suspect(self, name: str) -> None:
        """Have the janitor look at the record of a key, or at a body, that seems to be of no use any more."""
        self._suspects.append(name)
        self._janitor.ask()

    def _sweep_is_due(self, page: Page) -> bool:
        now = self._clock()
        return not page.counted or not now < page.sweep <= now + 2 * INTERVAL

    # The janitor's.

    def _tidy(self) -> Iterator[object]:
        place = self._access.reading()
        if place is None:
            return
        try:
            while self._suspects:
                yield self._drop(place, self._suspects.popleft())
            yield from self._tidy_alone(place)
        except TimeoutError:
            pass  # another process is at it
        except OSError as error:
            if place.alive and place.home.stands():
                self._warn("tidying up", error)

    def _tidy_alone(self, place: Place) -> Iterator[object]:
        with self._alone(place) as disk:
            self._bury(place)
            yield None
            count(place.ledger)
            yield from self._evict(place, disk)
            if self._take_turn(place):
                yield from self._look_through(place, disk)

    @contextmanager
    def _alone(self, place: Place, patience: float = PATIENCE) -> Iterator[float]:
        """Gives the time as the file system has it.

        :raises TimeoutError: another process is tidying up.
        """
        fd = place.home.open("sweep", os.O_RDWR | os.O_CREAT)
        try:
            lock(fd, patience)
            os.utime(fd)
            yield os.fstat(fd).st_mtime
        finally:
            shut(fd)

    def _bury(self, place: Place) -> None:
        gone = remove_older(place.home)
        dead = bury_dead(place.home, place.ledger)
        if withdraw_dead(place.home) or gone:
            place.count_home()
        if dead:
            with place.ledger.locked() as page:
                place.ledger.look_soon(page, self._clock() + 2 * GRACE)

    def _evict(self, place: Place, disk: float) -> Iterator[object]:
        def goal(page: Page) -> int:
            """Octets that may stay; what is used now when nothing need go, or when it would not help."""
            bound, home, waiting = self._limits.max_size, page.account(HOME), list(self._waiting.values())
            left = bound - page.reserved
            enough = page.used + sum(waiting) <= left - (1 - HIGH) * bound
            in_vain = left - max(waiting, default=0) < home
            return page.used if enough or in_vain else int(min(LOW * bound, max(left - sum(waiting), home)))

        return evict(place.home, place.ledger, goal, self._clock(), disk, self.observer)

    def _take_turn(self, place: Place) -> bool:
        """Whether it is time to look through everything; if so, it will not be for a while."""
        with place.ledger.locked() as page:
            if not self._sweep_is_due(page):
                return False
            page.sweep = int(self._clock() + min(max(self._limits.ttl / 24, ROUND), INTERVAL))
            place.ledger.save(page)
        return True

    def _look_through(self, place: Place, disk: float) -> Iterator[object]:
        drop = partial(self._drop, place)
        return look_through(place.home, place.ledger, self._clock(), disk, self._limits.ttl, drop, self.observer)

    # The operator's.

    def trim(self, size: int) -> int:
        """Evict until no more than *size* octets are used; octets freed.

        :raises OSError: the disk does, or another process is tidying up.
        """
        place = self._access.reading()
        if place is None:
            return 0
        with self._alone(place, OPERATORS_PATIENCE) as disk:
            return sum(evict(place.home, place.ledger, lambda _: size, self._clock(), disk, self.observer))

    def settle(self) -> None:
        """Wait until what has been asked for so far has been tidied up."""
        self._janitor.rest(OPERATORS_PATIENCE)

    def sweep(self) -> None:
        """Bury the dead and look through everything.

        :raises OSError: as :meth:`trim`.
        """
        place = self._access.reading()
        if place is not None:
            with self._alone(place, OPERATORS_PATIENCE) as disk:
                self._bury(place)
                count(place.ledger)
                deque(self._look_through(place, disk), maxlen=0)

    def close(self) -> None:
        self._janitor.close()
