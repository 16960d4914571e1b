"""What must go: the least recently used, the expired, the orphaned, the damaged.

One process sweeps at a time, a folder at a time, so that the ledger is never kept for long. Nothing is removed on the
strength of an earlier look: each file is looked at again when the ledger is locked.
"""

from __future__ import annotations

import stat
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from typing import TYPE_CHECKING

from .layout import FOLDERS, Home, file_path, is_body, is_key
from .ledger import HOME, Ledger, Page
from .records import names
from .shelf import Shelf

if TYPE_CHECKING:
    from .protocol import Observer

__all__ = ["GRACE", "SKEW", "count", "evict", "look_through", "remove"]

GRACE = 60.0  # seconds between a body's commit and its record, at most
TURN = 0.01  # seconds for which the ledger is kept, about
_STILL_OPEN = (".nfs", ".smb", ".fuse_hidden")  # what network file systems call a removed file until it is closed
SKEW = 60.0  # seconds by which a clock may be ahead


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


def evict(
    home: Home,
    ledger: Ledger,
    goal: Callable[[Page], int],
    now: float,
    disk: float,
    observer: Observer | None = None,
) -> Iterator[int]:
    """Remove the least recently used until no more than *goal* is used; yields octets freed, folder by folder.

    :param now: seconds since the epoch.
    :param disk: the same as the file system has it, whose clock may be another.
    """
    with ledger.locked() as page:
        excess = page.used - goal(page)
    if excess <= 0:
        return
    victims: dict[str, dict[str, int]] = defaultdict(dict)
    by_use = [_by_use(home, folder, now, disk) for folder in FOLDERS]
    keys = sum(map(len, by_use))
    for used, key, size in merge(*by_use):  # sorting all at once would keep the interpreter to itself
        if excess <= 0:
            break
        excess -= size
        victims[key[:2]][key] = used
    for folder, chosen in victims.items():
        files = _by_key(folder, home.names(folder))
        while chosen:
            gone = 0
            with ledger.locked() as page, ledger.changing(page, int(folder, 16), removing=True) as amounts:
                start = time.monotonic()
                while chosen:
                    key, used = chosen.popitem()
                    entry = _entry(home, key, files.get(key, ()))
                    if entry.names and used == _last_used(entry, now) and _may_go(entry, disk):
                        amounts.extend(-remove(home, file_path(name)) for name in entry.names)
                        gone += 1
                    if time.monotonic() - start >= TURN:
                        break
                home.remove_folder(folder)
            if observer is not None and gone:
                keys -= gone
                observer.evicted("size", gone)
                observer.holds(octets=page.used, keys=keys)
            yield -sum(amounts)
            _rest(start)


@dataclass(slots=True)
class Entry:
    """A key's files, as they are at the moment."""

    names: list[str] = field(default_factory=list)
    size: int = 0
    used: int | None = None  # as the record file has it, nanoseconds since the epoch; None: there is none
    newest: float = 0.0  # when the last of its bodies was committed


def _by_use(home: Home, folder: str, now: float, disk: float) -> list[tuple[int, str, int]]:
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


def _may_go(entry: Entry, disk: float) -> bool:
    return entry.used is not None or _settled(entry.newest, disk)


def _settled(changed: float, disk: float) -> bool:
    """Whether a body committed then has a record by now, or never gets one."""
    return not disk - GRACE <= changed <= disk + SKEW


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


def look_through(
    home: Home,
    ledger: Ledger,
    now: float,
    disk: float,
    ttl: float,
    drop: Callable[[str], None],
    observer: Observer | None = None,
) -> Iterator[None]:
    """Read every record and remove what is expired, damaged or without one; then count each folder anew.

    :param now: and *disk*: as for :func:`evict`.
    :param drop: removes what is expired or damaged of a key.
    """
    shelf = Shelf()
    keys = 0
    for number, folder in enumerate(FOLDERS):
        start = time.monotonic()
        listed = home.names(folder)
        named: set[str] = set()
        keys += sum(map(bool, map(is_key, listed)))
        for key in filter(is_key, listed):
            try:
                loaded = shelf.get(home, key)
            except OSError:
                continue  # cannot be read now
            if loaded is not None and (record := loaded.record) is not None:
                named |= names(record.responses)
            if loaded is not None and (record is None or loaded.visible(now - ttl, now + SKEW) is not record):
                drop(key)
        loose = [name for name in listed if name not in named and _is_loose(home, shelf, folder, name, disk)]
        with ledger.locked() as page:
            if loose:
                with ledger.changing(page, number, removing=True) as amounts:
                    again = [name for name in loose if _is_loose(home, shelf, folder, name, disk)]
                    amounts.extend(-remove(home, f"{folder}/{name}") for name in again)
            if not home.remove_folder(folder) or page.account(number):
                ledger.count(page, number)
                ledger.saved(page)
        yield
        _rest(start)
    with ledger.locked() as page:
        ledger.count(page, HOME)
        ledger.saved(page)
        used = page.used
    if observer is not None:
        observer.holds(octets=used, keys=keys)


def _is_loose(home: Home, shelf: Shelf, folder: str, name: str, disk: float) -> bool:
    """Whether a file belongs to no key, or to one whose record does not name it."""
    if is_key(name) and name[:2] == folder:
        return False
    status = home.status(f"{folder}/{name}")
    if status is None or not _settled(status.st_ctime, disk) or name.startswith(_STILL_OPEN):
        return False
    if not is_body(name) or name[:2] != folder:
        return True
    try:
        loaded = shelf.get(home, name[:64])
    except OSError:
        return False  # nobody knows
    return loaded is None or loaded.record is None or name not in names(loaded.record.responses)
