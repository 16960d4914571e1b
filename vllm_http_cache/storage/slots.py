"""Which process is writing, and whether it still lives.

A writer holds the lock of ``writers/<n>`` for as long as it lives; the system takes it back when the process dies, on
whatever host, in whatever container. What a writer has not finished lies in ``writers/<n>.d``.
"""

from __future__ import annotations

import os
import random
import time
from errno import EUSERS

from .devices import shut
from .growing import withdraw_dead
from .layout import Home
from .ledger import HOME, SLOTS, Ledger, Page
from .locks import try_lock

IDLE = 3600.0  # seconds

__all__ = ["Slot", "bury_dead", "join", "leave"]


class Slot:
    """This process's place among the writers."""

    def __init__(self, home: Home, number: int, life: int) -> None:
        self._home = home
        self._life = life
        self.number = number
        self.folder = f"writers/{number}.d"
        self._blocks = home.blocks(self.folder)

    def new_path(self) -> str:
        return f"{self.folder}/{os.urandom(8).hex()}"

    def has_grown(self) -> bool:
        """Whether this writer's folder occupies more than at the last call."""
        before, self._blocks = self._blocks, self._home.blocks(self.folder)
        return self._blocks != before

    def close(self) -> None:
        life, self._life = self._life, -1
        shut(life)

    __del__ = close


def join(home: Home, ledger: Ledger, limit: int) -> Slot | None:
    """Become a writer. None: there is no room for one more.

    :raises OSError: the disk does not take it.
    """
    home.make_folder("writers")
    home.make_folder("growing")
    start = random.randrange(SLOTS)  # noqa: S311
    for number in (*range(start, SLOTS), *range(start)):
        life = home.open(f"writers/{number}", os.O_RDWR | os.O_CREAT)
        try:
            if not _is_dead(home, number, life):
                continue
            with ledger.locked() as page:
                _bury(home, ledger, page, number)
                if page.used + page.reserved + home.slack > limit:
                    return None
                with ledger.changing(page, HOME):
                    home.make_folder(f"writers/{number}.d")
            slot = Slot(home, number, life)
            life = -1
            return slot
        finally:
            shut(life)
    raise OSError(EUSERS, f"there are {SLOTS} writers already")


def bury_dead(home: Home, ledger: Ledger) -> bool:
    """Remove what dead writers have left behind and give back the room they held; whether there were any."""
    with ledger.locked() as page:
        numbers = {number for number in range(SLOTS) if page.reservation(number)}
    folders = (name.removesuffix(".d") for name in home.names("writers") if name.endswith(".d"))
    numbers.update(int(name) for name in folders if name.isdecimal() and int(name) < SLOTS)
    found = False
    for number in numbers - {ledger.slot}:
        life = home.open(f"writers/{number}", os.O_RDWR | os.O_CREAT)
        try:
            if _is_dead(home, number, life):
                with ledger.locked() as page:
                    _bury(home, ledger, page, number)
                found = True
        finally:
            shut(life)
    return found


def _is_dead(home: Home, number: int, life: int) -> bool:
    """Whether writer *number* lives no more. Without locks, one that has not written for an hour does not."""
    locked = try_lock(life)
    if locked is not None:
        return locked
    folder = f"writers/{number}.d"
    statuses = [home.status(folder), *(home.status(f"{folder}/{name}") for name in home.names(folder))]
    return all(status is None or abs(time.time() - status.st_mtime) > IDLE for status in statuses)


def leave(home: Home, ledger: Ledger, slot: Slot) -> None:
    """Stop being a writer; what is unfinished is gone."""
    with ledger.locked() as page:
        ledger.slot, ledger.held = None, 0
        _bury(home, ledger, page, slot.number)
    withdraw_dead(home)


def _bury(home: Home, ledger: Ledger, page: Page, number: int) -> None:
    folder = f"writers/{number}.d"
    for name in home.names(folder):
        home.unlink(f"{folder}/{name}")
    page.set_reservation(number, 0)
    with ledger.changing(page, HOME):
        home.remove_folder(folder)
