"""What must go: the least recently used, the expired, the orphaned, the damaged.

One process sweeps at a time, a folder at a time, so that the ledger is never kept for long. Nothing is removed on the
strength of an earlier look: each file is looked at again when the ledger is locked.
"""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from .layout import FOLDERS, Home, file_path, is_body, is_key
from .ledger import HOME, Ledger, Page
from .records import names
from .shelf import Loaded, Shelf

__all__ = ["GRACE", "SKEW", "count", "evict", "look_through", "remove"]

GRACE = 60.0  # seconds between a body's commit and its record, at most
SKEW = 60.0  # seconds by which a clock may be ahead


@dataclass(slots=True)
class Entry:
    """A key's files, as they were when looked at."""

    key: str
    record: os.stat_result | None = None
    bodies: list[str] = field(default_factory=list)
    size: int = 0
    newest: float = 0.0  # when the last of its bodies was committed

    def last_used(self, now: float) -> float:
        """A time of use in the future is none."""
        if self.record is None or self.record.st_atime > now + SKEW:
            return 0.0
        return self.record.st_atime


def count(ledger: Ledger) -> None:
    """Count all folders, if the page says that they have not been."""
    with ledger.locked() as page:
        if page.counted:
            return
    for folder in range(HOME + 1):
        with ledger.locked() as page:
            ledger.count(page, folder)
            page.counted = folder == HOME
            ledger.save(page)


def evict(home: Home, ledger: Ledger, goal: Callable[[Page], int], now: float, disk: float) -> Iterator[int]:
    """Remove the least recently used until no more than *goal* is used; yields octets freed, folder by folder.

    :param now: seconds since the epoch.
    :param disk: the same as the file system has it, whose clock may be another.
    """
    with ledger.locked() as page:
        excess = page.used - goal(page)
    if excess <= 0:
        return
    entries = [entry for folder in FOLDERS for entry in _entries(home, folder)]
    entries.sort(key=lambda entry: (entry.last_used(now), entry.key))
    victims: dict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        if excess <= 0:
            break
        if entry.record is not None or _settled(entry.newest, disk):
            excess -= entry.size
            victims[int(entry.key[:2], 16)].append(entry)
    for folder, chosen in victims.items():
        with ledger.locked() as page, ledger.changing(page, folder) as amounts:
            amounts.extend(-_remove_entry(home, entry) for entry in chosen)
            home.remove_folder(FOLDERS[folder])
        yield -sum(amounts)


def _entries(home: Home, folder: str) -> list[Entry]:
    entries: dict[str, Entry] = {}
    for name in home.names(folder):
        key = name[:64]
        status = home.status(f"{folder}/{name}")
        if status is None or is_key(key) is None or key[:2] != folder:
            continue
        entry = entries.setdefault(key, Entry(key))
        entry.size += home.cost(status)
        if name == key:
            entry.record = status
        else:
            entry.bodies.append(name)
            entry.newest = max(entry.newest, status.st_ctime)
    return list(entries.values())


def _settled(changed: float, disk: float) -> bool:
    """Whether a body committed then has a record by now, or never gets one."""
    return not disk - GRACE <= changed <= disk + SKEW


def _remove_entry(home: Home, entry: Entry) -> int:
    status = home.status(file_path(entry.key))
    if entry.record is None:
        if status is not None:
            return 0
    elif status is None or _mark(status) != _mark(entry.record):
        return 0  # replaced, or used again
    return sum(remove(home, file_path(name)) for name in (entry.key, *entry.bodies))


def _mark(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_mtime_ns, status.st_atime_ns


def remove(home: Home, path: str) -> int:
    """Remove a file, if it is there; the octets it was charged with."""
    status = home.status(path)
    if status is None or stat.S_ISDIR(status.st_mode):
        return 0
    home.unlink(path)
    return home.cost(status)


def look_through(
    home: Home, ledger: Ledger, now: float, disk: float, ttl: float, drop: Callable[[str], None]
) -> Iterator[None]:
    """Read every record and remove what is expired, damaged or without one; then count each folder anew.

    :param now: and *disk*: as for :func:`evict`.
    :param drop: removes what is expired or damaged of a key.
    """
    shelf = Shelf()
    for number, folder in enumerate(FOLDERS):
        listed = home.names(folder)
        named: set[str] = set()
        for key in filter(is_key, listed):
            loaded = _load(shelf, home, key)
            if loaded is not None and (record := loaded.record) is not None:
                named |= names(record.responses)
            if loaded is not None and (record is None or loaded.visible(now - ttl, now + SKEW) is not record):
                drop(key)
        loose = [name for name in listed if name not in named and _is_loose(home, shelf, folder, name, disk)]
        with ledger.locked() as page:
            if loose:
                with ledger.changing(page, number) as amounts:
                    again = [name for name in loose if _is_loose(home, shelf, folder, name, disk)]
                    amounts.extend(-remove(home, f"{folder}/{name}") for name in again)
            if listed:
                home.remove_folder(folder)
            if listed or page.account(number):
                ledger.count(page, number)
                ledger.save(page)
        yield


def _load(shelf: Shelf, home: Home, key: str) -> Loaded | None:
    try:
        return shelf.get(home, key)
    except OSError:
        return None  # cannot be read now


def _is_loose(home: Home, shelf: Shelf, folder: str, name: str, disk: float) -> bool:
    """Whether a file belongs to no key, or to one whose record does not name it."""
    if is_key(name) and name[:2] == folder:
        return False
    status = home.status(f"{folder}/{name}")
    if status is None or not _settled(status.st_ctime, disk):
        return False
    loaded = _load(shelf, home, name[:64]) if is_body(name) and name[:2] == folder else None
    return loaded is None or loaded.record is None or name not in names(loaded.record.responses)
