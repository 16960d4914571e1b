"""Making room: reserve, and when there is none have the janitor fetch some; expiry goes with it."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from errno import ENOSPC
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from .access import Access
from .devices import shut
from .formats import remove_older
from .growing import withdraw_dead
from .janitor import Janitor
from .layout import FOLDERS, Home
from .ledger import ALL, HOME, Page
from .locks import lock
from .place import Place
from .slots import bury_dead
from .sweep import GRACE, Sweep, count

if TYPE_CHECKING:
    from .protocol import Observer

__all__ = ["SMALLEST", "Limits", "Room"]

SMALLEST = 128 * 1024  # octets: the folder and its files take up some before anything is stored
PATIENCE = 0.1  # seconds that a caller waits for room
OPERATORS_PATIENCE = 30.0  # seconds that an operator's command waits for whoever is tidying up
HIGH, LOW = 0.9, 0.8  # shares of the room for entries: above the one the janitor evicts, down to the other
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
        if self.max_size < SMALLEST:
            raise ValueError(f"max_size={self.max_size} is too small a limit to store anything: {SMALLEST} at least")

    @property
    def largest(self) -> int:
        """Octets of the largest body that is kept."""
        return self.max_size if self.max_entry_size is None else min(self.max_entry_size, self.max_size)


@dataclass(frozen=True, slots=True)
class Space:
    """What entries occupy, may occupy beside what is reserved, and what the device has left for them; octets."""

    entries: int
    room: int
    left: float  # inf where evicting makes more of it

    def has(self, amount: int) -> bool:
        return self.entries + amount <= self.room and amount <= self.left

    def could_have(self, amount: int) -> bool:
        """Whether there would be room if nothing else were stored."""
        return amount <= min(self.room, self.left)

    def surplus(self, wanted: int = 0, share: float = HIGH) -> int:
        """How much must go when entries take more than a *share* of the room beside *wanted* octets.

        Nothing where that would not help.
        """
        room = self.room - wanted
        return int(self.entries - LOW * room) if self.entries > share * room and room >= 0 else 0


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
        self._missed = 0  # the most that somebody asked for and did not get in time
        self._next_round = 0.0
        self._files_counted, self._files_found = -inf, 0
        self._suspects: deque[str] = deque(maxlen=1024)
        self._loose: deque[str] = deque(maxlen=1024)
        self._janitor = Janitor(self._tidy)

    def reserve(self, place: Place, amount: int, held: int = 0) -> bool:
        """Reserve octets, after a short wait if need be.

        :param held: octets that a body of unknown length has already. It may never end, and must not take everything's
            place: with *amount* it has half of what there is for all, at most.
        :raises OSError: the disk does.
        """
        if held:
            with place.ledger.locked() as page:
                if 2 * (held + amount) > self._space(place, page, reserved=0).room:
                    return False
        if self._try(place, amount):
            return True
        with place.ledger.locked() as page:  # some of what is reserved may be the dead's
            could_have = self._space(place, page, reserved=0).could_have(amount + 2 * place.home.slack)
            is_bound = amount + 2 * place.home.slack + page.account(HOME) > self._limits.max_size
        if not could_have:
            if not is_bound:
                what = "files free" if self._lacks_files(place) else "free space (MEDIA_CACHE_FREE_SPACE_FLOOR_MB)"
                self._warn("reserving room", OSError(ENOSPC, f"the device must keep some {what}"))
            return False
        deadline = time.monotonic() + PATIENCE
        request = object()
        self._waiting[request] = amount
        self._janitor.ask()
        try:
            waiting = True
            while waiting:
                waiting = self._janitor.pause(deadline)
                if self._try(place, amount, request):
                    return True
        finally:
            self._waiting.pop(request, None)
        if time.monotonic() >= deadline:
            self._missed = max(self._missed, amount)
        return False

    def keeps_floor(self, place: Place) -> bool:
        """Whether the device still has as much free as is to be left to others.

        :raises OSError: the disk does.
        """
        device = place.home.device()
        return device is None or device.free >= device.floor(self._limits.free_space_floor)

    def _lacks_files(self, place: Place) -> bool:
        device = place.home.device()
        return device is not None and device.free_files < device.floor_of_files

    def _space(
        self, place: Place, page: Page, *, reserved: int | None = None, floors_of_files: int = 1, roughly: bool = False
    ) -> Space:
        """:param roughly: what unfinished bodies have written need not be looked for; there may be more left."""
        reserved = page.reserved if reserved is None else reserved
        home = page.account(HOME)
        space = Space(page.used - home, self._limits.max_size - home - reserved, inf)
        device = place.home.device()
        if device is None:
            return space
        left = device.free - device.floor(self._limits.free_space_floor) - reserved
        few_files = device.free_files < floors_of_files * device.floor_of_files
        if left >= space.room - space.entries and not few_files:
            return space
        written = 0 if roughly else min(_unfinished(place.home), page.reserved)
        left += min(written, reserved)
        ours = 2 * (page.used + written) > device.size - device.free  # most of what is there
        if few_files:
            left = min(left, 0)
            ours = 2 * self._files(place.home) > device.files - device.free_files
        if ours:
            return Space(space.entries, min(space.room, space.entries + left), inf)
        return Space(space.entries, space.room, left)

    def _try(self, place: Place, amount: int, request: object = None) -> bool:
        if not place.join(self._limits.max_size):
            return False
        place.settle()
        with place.ledger.locked() as page:
            space = self._space(place, page, roughly=True)
            if not space.has(amount) or space.surplus(amount):
                space = self._space(place, page)
            granted = space.has(amount) and place.ledger.reserve(page, amount, self._limits.max_size)
            if granted:
                self._waiting.pop(request, None)  # before the janitor can count it twice
            due = self._sweep_is_due(page) or space.surplus(amount if granted else 0)
        if due or time.monotonic() >= self._next_round:
            self._next_round = time.monotonic() + ROUND
            self._janitor.ask()
        return granted

    def _files(self, home: Home) -> int:
        """How many files there are, or were a minute ago."""
        if time.monotonic() >= self._files_counted + ROUND:
            self._files_counted, self._files_found = time.monotonic(), 0
            for folder in FOLDERS:
                with suppress(OSError):  # then it does not count
                    self._files_found += len(home.names(folder))
        return self._files_found

    def tell(self, used: int) -> None:
        """Octets that are used, as the ledger has just said."""
        if self.observer is not None:
            self.observer.holds(octets=used)

    def suspect(self, name: str) -> None:
        """Have the janitor look at the record of a key, or at a body, that seems to be of no use any more."""
        self._suspects.append(name)
        self._janitor.ask()

    def look_later(self, bodies: Iterable[str]) -> None:
        """Have the janitor remove those of these bodies that no record names in time."""
        self._loose.extend(bodies)

    def _sweep_is_due(self, page: Page) -> bool:
        now = self._clock()
        return page.counted < ALL or not now < page.sweep <= now + 2 * INTERVAL

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
        with self._alone(place) as sweep:
            self._bury(place)
            yield None
            count(place.ledger)
            self._loose.extend(sweep.reclaim([self._loose.popleft() for _ in range(len(self._loose))]))
            yield from self._evict(place, sweep)
            first = self._take_turn(place)
            if first is not None:
                for _ in self._look_through(place, sweep, first):
                    yield from self._evict(place, sweep)
                    yield None

    @contextmanager
    def _alone(self, place: Place, patience: float = PATIENCE) -> Iterator[Sweep]:
        """:raises TimeoutError: another process is tidying up."""
        fd = place.home.open("sweep", os.O_RDWR | os.O_CREAT)

        def disk() -> float:
            os.utime(fd)
            return os.fstat(fd).st_mtime

        try:
            lock(fd, patience)
            yield Sweep(place.home, place.ledger, self._clock, disk, self._warn, self.observer)
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

    def _evict(self, place: Place, sweep: Sweep) -> Iterator[object]:
        share = HIGH

        def goal(page: Page) -> int:
            """Octets that may stay, for those who wait and can be served together to find room.

            When none is left, it is found for one of those who had no time to wait for it.
            """
            nonlocal share
            space = self._space(place, page, floors_of_files=1 if share == HIGH else 2)
            wanted = 0
            for amount in list(self._waiting.values()) or [self._missed]:
                if space.could_have(wanted + amount):
                    wanted += amount
            surplus = space.surplus(wanted, share)
            if surplus:  # then down to the lower share
                share = LOW
            return page.used - surplus

        yield from sweep.evict(goal)
        self._missed = 0

    def _take_turn(self, place: Place) -> int | None:
        """The number of the folder to look through first, when it is time to or others have not come to the end."""
        with place.ledger.locked() as page:
            first = page.looked
            if self._sweep_is_due(page):
                page.sweep = int(self._clock() + min(max(self._limits.ttl / 24, ROUND), INTERVAL))
                place.ledger.save(page)
            elif not first:
                return None
        return first

    def _look_through(self, place: Place, sweep: Sweep, first: int = 0) -> Iterator[object]:
        return sweep.look_through(self._limits.ttl, partial(self._drop, place), first)

    # The operator's.

    def trim(self, size: int) -> int:
        """Evict until no more than *size* octets are used; octets freed.

        :raises OSError: the disk does, or another process is tidying up.
        """
        place = self._access.reading()
        if place is None:
            return 0
        with self._alone(place, OPERATORS_PATIENCE) as sweep:
            return sum(sweep.evict(lambda _: size))

    def settle(self) -> None:
        """Wait until what has been asked for so far has been tidied up."""
        self._janitor.rest(OPERATORS_PATIENCE)

    def sweep(self) -> None:
        """Bury the dead and look through everything.

        :raises OSError: as :meth:`trim`.
        """
        place = self._access.reading()
        if place is not None:
            with self._alone(place, OPERATORS_PATIENCE) as sweep:
                self._bury(place)
                count(place.ledger)
                deque(self._look_through(place, sweep), maxlen=0)

    def close(self) -> None:
        self._janitor.close()


def _unfinished(home: Home) -> int:
    """Octets that unfinished bodies, for which room is reserved, occupy already."""
    folders = [f"writers/{name}" for name in home.names("writers") if name.endswith(".d")]
    return sum(home.blocks(f"{folder}/{name}") for folder in folders for name in home.names(folder))
