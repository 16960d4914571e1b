"""Which process is writing, and whether it still lives.

A writer holds the lock of ``writers/<n>`` for as long as it lives; the system takes it back when the process dies, on
whatever host, in whatever container. The file says what the writer has reserved, for a ledger that is made anew, and
on which host it runs, because on some network file systems a lock is seen on one host only. What a writer has not
finished lies in ``writers/<n>.d``.

A number is taken, and a dead writer buried, while the ledger is locked: a lock that somebody else has is a writer's who
has noted what it holds. Only the lock of the file that is at its path counts. When others have removed the file, its
writer puts another in its place at its next turn; until then only silence tells that it is dead.
"""

from __future__ import annotations

import os
import random
import stat
import time
from contextlib import suppress
from errno import EUSERS

from .devices import Descriptor
from .growing import withdraw_dead
from .layout import Home
from .ledger import HOME, NOTE, SLOTS, Ledger, Page, boot
from .locks import try_lock

IDLE = 3600.0  # seconds

__all__ = ["Slot", "bury_dead", "has_died", "join", "leave"]


class Slot:
    """This process's place among the writers."""

    def __init__(self, home: Home, number: int, life: Descriptor) -> None:
        self._home = home
        self._life: Descriptor | None = life
        self._host = boot()
        self._noted = -1
        self.number = number
        self.folder = f"writers/{number}.d"
        self._blocks = home.blocks(self.folder)

    def stands(self) -> bool:
        """Whether its number is still its own, or again, now that the ledger is locked."""
        life = self._life
        return life is not None and (self._home.is_at(f"writers/{self.number}", life.number) or self._stands_again())

    def _stands_again(self) -> bool:
        """Somebody has removed the locked file: lock another in its place, unless another writer has."""
        if self._home.remote or self._home.status(self.folder) is None:
            return False
        life = _open(self._home, self.number)
        if not try_lock(life.number):
            return False
        self._life, self._noted = life, -1
        return True

    def note(self, held: int) -> None:
        """Write down how many octets this writer has reserved.

        :raises OSError: it has not been, and they are more than before.
        """
        life = self._life
        if held == self._noted or life is None:
            return
        try:
            os.pwrite(life.number, NOTE.pack(held, self._host), 0)
        except OSError:
            if held > self._noted:
                raise
        else:
            self._noted = held

    def new_path(self) -> str:
        return f"{self.folder}/{os.urandom(8).hex()}"

    def has_grown(self) -> bool:
        """Whether this writer's folder occupies more than at the last call."""
        before, self._blocks = self._blocks, self._home.blocks(self.folder)
        return self._blocks != before

    def bury(self, ledger: Ledger, page: Page) -> None:
        """Remove what this writer has not finished, unless its number has become somebody else's."""
        life = self._life
        if life is not None and self.stands():
            _bury(self._home, ledger, page, self.number, life)

    def close(self) -> None:
        """Another thread that writes to the file does so before it is closed."""
        self._life = None

    def forked(self) -> None:
        life, self._life = self._life, None
        if life is not None:
            life.close()


def join(home: Home, ledger: Ledger, limit: int) -> Slot | None:
    """Become a writer. None: there is no room for one more.

    :raises OSError: the disk does not take it.
    """
    home.make_folder("writers")
    home.make_folder("growing")
    start = random.randrange(SLOTS)  # noqa: S311
    with ledger.locked() as page:
        for number in (*range(start, SLOTS), *range(start)):
            life = _take(home, number)
            if life is None:
                continue
            _bury(home, ledger, page, number, life)
            if page.used + page.reserved + home.slack > limit:
                return None
            with ledger.changing(page, HOME):
                home.make_folder(f"writers/{number}.d")
                slot = Slot(home, number, life)
                slot.note(ledger.held)
                ledger.slot = slot
            return slot
    raise OSError(EUSERS, f"there are {SLOTS} writers already")


def bury_dead(home: Home, ledger: Ledger) -> bool:
    """Remove what dead writers have left behind and give back the room they held; whether there were any."""
    with ledger.locked() as page:
        numbers = {number for number in range(SLOTS) if page.reservation(number)}
    folders = (name.removesuffix(".d") for name in home.names("writers") if name.endswith(".d"))
    numbers.update(int(name) for name in folders if name.isdecimal() and int(name) < SLOTS)
    found = False
    for number in numbers - {ledger.slot.number if ledger.slot else None}:
        with ledger.locked() as page:
            life = _take(home, number)
            if life is not None:
                _bury(home, ledger, page, number, life)
                found = True
    return found


def has_died(home: Home, path: str) -> bool:
    """Whether the writer of the unfinished file at *path* lives no more, as far as its lock tells.

    :raises OSError: the disk does.
    """
    number = int(path.split("/")[1].removesuffix(".d"))
    try:
        life = Descriptor(home.open(f"writers/{number}", os.O_RDWR if home.remote else os.O_RDONLY))
    except FileNotFoundError:
        return True
    return _is_dead(home, number, life, shared=True)


def _take(home: Home, number: int) -> Descriptor | None:
    """The file of a writer who lives no more, locked. None: it lives, as far as anybody knows."""
    status = home.status(f"writers/{number}")
    if (status is None and not _is_idle(home, number)) or (status is not None and stat.S_ISDIR(status.st_mode)):
        return None
    life = _open(home, number)
    return life if _is_dead(home, number, life) else None


def _open(home: Home, number: int) -> Descriptor:
    return Descriptor(home.open(f"writers/{number}", os.O_RDWR | os.O_CREAT))


def _is_dead(home: Home, number: int, life: Descriptor, *, shared: bool = False) -> bool:
    """Whether writer *number* lives no more. Where locks do not tell, one that has not written for an hour does not."""
    locked = try_lock(life.number, shared=shared)
    if locked is False or not home.is_at(f"writers/{number}", life.number):
        return False
    return bool(locked and _is_seen_here(home, life)) or _is_idle(home, number)


def _is_seen_here(home: Home, life: Descriptor) -> bool:
    """Whether a lock of the writer who has, or had, this file would be seen on this host."""
    note = os.pread(life.number, NOTE.size, 0)
    return not home.remote or (len(note) == NOTE.size and 0 < NOTE.unpack(note)[1] == boot())


def _is_idle(home: Home, number: int) -> bool:
    folder = f"writers/{number}.d"
    statuses = [home.status(folder), *(home.status(f"{folder}/{name}") for name in home.names(folder))]
    return all(status is None or abs(time.time() - status.st_mtime) > IDLE for status in statuses)


def leave(home: Home, ledger: Ledger, slot: Slot) -> None:
    """Stop being a writer; what is unfinished is gone."""
    with ledger.locked() as page:
        ledger.slot, ledger.held = None, 0
        slot.bury(ledger, page)
    withdraw_dead(home)


def _bury(home: Home, ledger: Ledger, page: Page, number: int, life: Descriptor) -> None:
    folder = f"writers/{number}.d"
    for name in home.names(folder):
        home.unlink(f"{folder}/{name}")
    page.set_reservation(number, 0)
    with ledger.changing(page, HOME, removing=True):
        home.unlink(folder)
        with suppress(OSError):
            os.ftruncate(life.number, 0)
