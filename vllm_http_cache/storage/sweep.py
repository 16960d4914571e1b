"""What must go: the least recently used, the expired, the orphaned, the damaged.

One process sweeps at a time, a folder at a time, so that the ledger is never kept for long. Nothing is removed on the
strength of an earlier look: each file is looked at again when the ledger is locked.
"""

from __future__ import annotations

import stat
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import merge
from typing import TYPE_CHECKING, NamedTuple

from .layout import FOLDERS, Home, file_path, is_body, is_key
from .ledger import ALL, HOME, Ledger, Page
from .records import names
from .shelf import Shelf

if TYPE_CHECKING:
    from .protocol import Observer

__all__ = ["GRACE", "SKEW", "Sweep", "count", "remove"]

GRACE = 60.0  # seconds between a body's commit and its record, at most
TURN = 0.01  # seconds for which the ledger is kept, about
_STILL_OPEN = (".nfs", ".smb", ".fuse_hidden")  # what network file systems call a removed file until it is closed
SKEW = 60.0  # seconds by which a clock may be ahead


def count(ledger: Ledger) -> None:
    """Count the folders that the page says have not been; from the first on if that has to be meanwhile."""
    counted = False
    while not counted:
        with ledger.locked() as page:
            if page.counted < ALL:
                ledger.count(page, page.counted)
                page.counted += 1
                ledger.save(page)
            counted = page.counted == ALL


class _Turn(NamedTuple):
    """Octets freed, keys gone, octets still used, and when it began (monotonic seconds)."""

    freed: int
    gone: int
    used: int
    start: float


@dataclass(frozen=True, slots=True)
class Sweep:
    """One process's turn to sweep.

    :param clock: seconds since the epoch.
    :param disk: the same as the file system has it, whose clock may be another.
    :param warn: told of a folder that cannot be read or changed, which is left alone.
    """

    home: Home
    ledger: Ledger
    clock: Callable[[], float]
    disk: Callable[[], float]
    warn: Callable[[str, OSError], None]
    observer: Observer | None = None

    def evict(self, goal: Callable[[Page], int]) -> Iterator[int]:
        """Remove the least recently used until no more than *goal* is used; yields octets freed, turn by turn.

        :param goal: asked again before each turn.
        """
        with self.ledger.locked() as page:
            excess = page.used - goal(page)
        if excess <= 0:
            return
        found = self._by_use()
        keys = sum(map(len, found))
        by_use = merge(*found)  # sorting all at once would keep the interpreter to itself
        while victims := _choose(by_use, excess):
            for folder, chosen in victims.items():
                with self._confined(folder):
                    files = _by_key(folder, self.home.names(folder))
                    while chosen:
                        turn = self._evict_some(folder, chosen, files, goal)
                        if turn is None:
                            return
                        excess -= turn.freed  # the page cannot always be told
                        keys -= turn.gone
                        if self.observer is not None and turn.gone:
                            self.observer.evicted("size", turn.gone)
                            self.observer.holds(octets=turn.used, keys=keys)
                        yield turn.freed
                        _rest(turn.start)

    def _evict_some(
        self, folder: str, chosen: dict[str, int], files: dict[str, list[str]], goal: Callable[[Page], int]
    ) -> _Turn | None:
        """None: no more need go."""
        home, ledger, gone = self.home, self.ledger, 0
        with ledger.locked() as page:
            if page.used <= goal(page):
                return None
            with ledger.changing(page, int(folder, 16), removing=True) as amounts:
                start = time.monotonic()
                while chosen:
                    key, used = chosen.popitem()
                    entry = _entry(home, key, files.get(key, ()))
                    if entry.names and used == _last_used(entry, self.clock()) and _may_go(entry, self.disk):
                        amounts.extend(-remove(home, file_path(name)) for name in entry.names)
                        gone += 1
                    if time.monotonic() - start >= TURN:
                        break
                home.remove_folder(folder)
        return _Turn(-sum(amounts), gone, page.used, start)

    def _by_use(self) -> list[list[tuple[int, str, int]]]:
        """As the function, of each folder."""
        found: list[list[tuple[int, str, int]]] = []
        for folder in FOLDERS:
            with self._confined(folder):
                found.append(_by_use(self.home, folder, self.clock(), self.disk))
        return found

    @contextmanager
    def _confined(self, folder: str) -> Iterator[None]:
        """What fails in a folder ends what is done there, and nothing else."""
        try:
            yield
        except TimeoutError:
            raise  # it is the ledger that is not to be had
        except OSError as error:
            self.warn(f"sweeping folder {folder}", error)

    def look_through(self, ttl: float, drop: Callable[[str], None], first: int = 0) -> Iterator[None]:
        """Read the records of all folders from number *first* on, and remove what is expired, damaged or without one.

        Each folder is counted anew then, and noted.

        :param ttl: seconds.
        :param drop: removes what is expired or damaged of a key.
        """
        shelf = Shelf()
        keys = 0
        for number in range(first, HOME):
            start = time.monotonic()
            with self._confined(FOLDERS[number]):
                keys += self._look_into(shelf, number, ttl, drop)
            yield
            _rest(start)
        with self.ledger.locked() as page:
            page.looked = 0
            self.ledger.count(page, HOME)
            self.ledger.saved(page)
            used = page.used
        if self.observer is not None:
            self.observer.holds(octets=used, keys=None if first else keys)

    def _look_into(self, shelf: Shelf, number: int, ttl: float, drop: Callable[[str], None]) -> int:
        """How many keys there were."""
        home, ledger, folder, now = self.home, self.ledger, FOLDERS[number], self.clock()
        listed = home.names(folder)
        keys = [name for name in listed if is_key(name)]
        named: set[str] = set()
        for key in keys:
            try:
                loaded = shelf.get(home, key)
            except OSError:
                continue  # cannot be read now
            if loaded is not None and (record := loaded.record) is not None:
                named |= names(record.responses)
            if loaded is not None and (record is None or loaded.visible(now - ttl, now + SKEW) is not record):
                drop(key)
        loose = [name for name in listed if name not in named and self._is_loose(shelf, folder, name)]
        with ledger.locked() as page:
            page.looked = number + 1
            self._remove_loose(page, shelf, folder, loose)
            if not home.remove_folder(folder) or page.account(number):
                ledger.count(page, number)
                ledger.saved(page)
        return len(keys)

    def reclaim(self, bodies: Iterable[str]) -> list[str]:
        """Remove those of these bodies that no record names; those that may yet get one are given back."""
        shelf, waiting = Shelf(), []
        for name in bodies:
            folder = name[:2]
            with self._confined(folder):
                status = self.home.status(file_path(name))
                if status is not None and not _settled(status.st_ctime, self.disk):
                    waiting.append(name)
                elif status is not None:
                    with self.ledger.locked() as page:
                        self._remove_loose(page, shelf, folder, (name,))
        return waiting

    def _remove_loose(self, page: Page, shelf: Shelf, folder: str, listed: Iterable[str]) -> None:
        loose = [name for name in listed if self._is_loose(shelf, folder, name)]
        if loose:
            with self.ledger.changing(page, int(folder, 16), removing=True) as amounts:
                amounts.extend(-remove(self.home, f"{folder}/{name}") for name in loose)

    def _is_loose(self, shelf: Shelf, folder: str, name: str) -> bool:
        """Whether a file belongs to no key, or to one whose record does not name it."""
        if is_key(name) and name[:2] == folder:
            return False
        status = self.home.status(f"{folder}/{name}")
        if status is None or not _settled(status.st_ctime, self.disk) or name.startswith(_STILL_OPEN):
            return False
        if not is_body(name) or name[:2] != folder:
            return True
        try:
            loaded = shelf.get(self.home, name[:64])
        except OSError:
            return False  # nobody knows
        return loaded is None or loaded.record is None or name not in names(loaded.record.responses)


def _choose(by_use: Iterator[tuple[int, str, int]], excess: int) -> dict[str, dict[str, int]]:
    """The next that must go, for *excess* octets to be freed: by folder, each key's last use."""
    victims: dict[str, dict[str, int]] = defaultdict(dict)
    while excess > 0 and (found := next(by_use, None)) is not None:
        used, key, size = found
        victims[key[:2]][key] = used
        excess -= size
    return victims


@dataclass(slots=True)
class Entry:
    """A key's files, as they are at the moment."""

    names: list[str] = field(default_factory=list)
    size: int = 0
    used: int | None = None  # as the record file has it, nanoseconds since the epoch; None: there is none
    newest: float = 0.0  # when the last of its bodies was committed


def _by_use(home: Home, folder: str, now: float, disk: Callable[[], float]) -> list[tuple[int, str, int]]:
    """When each entry of a folder that may go was used last, its key and its size; least recently used first."""
    found = ((key, _entry(home, key, files)) for key, files in _by_key(folder, home.names(folder)).items())
    return sorted((_last_used(entry, now), key, entry.size) for key, entry in found if _may_go(entry, disk))


def _by_key(folder: str, listed: list[str]) -> dict[str, list[str]]:
    """The names of bodies, and whatever else is named like them, by key; of a record alone there are none."""
    files: dict[str, list[str]] = {}
    for name in listed:
        if is_key(name[:64]) and name[:2] == folder:
            others = files.setdefault(name[:64], [])
            if name != name[:64]:
                others.append(name)
    return files


def _entry(home: Home, key: str, others: Iterable[str]) -> Entry:
    entry = Entry()
    for name in (key, *others):
        status = home.status(file_path(name))
        if status is not None:
            entry.names.append(name)
            entry.size += home.cost(status)
            if name == key:
                entry.used = status.st_mtime_ns
            else:
                entry.newest = max(entry.newest, status.st_ctime)
    return entry


def _last_used(entry: Entry, now: float) -> int:
    """A time of use in the future is none."""
    return entry.used if entry.used is not None and entry.used <= (now + SKEW) * 1e9 else 0


def _may_go(entry: Entry, disk: Callable[[], float]) -> bool:
    return entry.used is not None or _settled(entry.newest, disk)


def _settled(changed: float, disk: Callable[[], float]) -> bool:
    """Whether a body committed then has a record by now, or never gets one."""
    now = disk()
    return not now - GRACE <= changed <= now + SKEW


def _rest(start: float) -> None:
    """Let others have the ledger, and the interpreter, for as long as they were kept from it."""
    kept = time.monotonic() - start
    if kept > 0.001:
        time.sleep(min(kept, TURN))


def remove(home: Home, path: str) -> int:
    """Remove a file, if it is there; the octets it was charged with."""
    status = home.status(path)
    if status is None or stat.S_ISDIR(status.st_mode):
        return 0
    home.unlink(path)
    return home.cost(status)
