"""How much room is taken: one page that every process keeps under one lock.

The page holds an account for each folder (what its files and the folder itself occupy) and, for each living writer,
what is reserved for files it has not finished. Room is reserved before a file is made and moves to an account when
the file reaches its folder, so that accounts plus reservations are never less than what ``du`` sees.

Before a folder is changed the page says so; a process that dies in the middle leaves that mark, and whoever has the
lock next counts this one folder anew. A page that is damaged or gone is made anew and all folders counted.

The page is written in one piece that lies within a page of memory, which a kill does not tear.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, overload

from xxhash import xxh3_64_intdigest

from .devices import Descriptor, is_full, is_no_file, shut
from .formats import measure_older, occupied_by_older
from .layout import FOLDERS, Home
from .locks import lock, try_lock, unlock

if TYPE_CHECKING:
    from .slots import Slot

__all__ = ["ALL", "HOME", "NOTE", "SLOTS", "Ledger", "Page"]

PATIENCE = 2.0  # seconds that the lock is waited for
IMPATIENCE = 0.02  # the same, for INTERVAL seconds after it was not released in time
INTERVAL = 10.0

SLOTS = 128
HOME = len(FOLDERS)  # the account of everything outside the folders
ALL = HOME + 1  # accounts

NOTE = struct.Struct("<QQ")  # what the file of a slot says: octets held, and the host's number or 0
_MOST = 2**48  # octets; more is damage, or nobody knows how many

_UNREADABLE = {errno.EACCES, errno.EPERM, errno.EIO}

_SIZE = 4096
_MAGIC = b"vhcledg1"
_CLEAN = -1
_ACCOUNTS = 64
_RESERVED = _ACCOUNTS + 8 * ALL
_LOOKED = _RESERVED + 8 * SLOTS
_ALL_ACCOUNTS = struct.Struct(f"<{ALL}Q")
_ALL_RESERVED = struct.Struct(f"<{SLOTS}Q")


class _Number:
    """A number at a fixed place of the page."""

    def __init__(self, code: str, offset: int) -> None:
        self._struct = struct.Struct(f"<{code}")
        self._offset = offset

    @overload
    def __get__(self, page: None, owner: type) -> _Number: ...
    @overload
    def __get__(self, page: Page, owner: type) -> int: ...
    def __get__(self, page: Page | None, owner: type) -> int | _Number:
        return self if page is None else int(self._struct.unpack_from(page.raw, self._offset)[0])

    def __set__(self, page: Page, value: int) -> None:
        self._struct.pack_into(page.raw, self._offset, value)


class Page:
    """The numbers. Amounts are octets."""

    checksum = _Number("Q", 0)
    used = _Number("Q", 16)  # the sum of all accounts, each _MOST at most
    reserved = _Number("Q", 24)  # the sum of all reservations, each _MOST at most
    changing = _Number("q", 32)  # the folder being changed
    counted = _Number("Q", 40)  # how many folders have been, one after another, since all had to be
    boot = _Number("Q", 48)  # the boot of the machine that has counted
    sweep = _Number("Q", 56)  # when to look through everything next, seconds since the epoch
    looked = _Number("Q", _LOOKED)  # folders that have been looked through, where not all have

    def __init__(self, raw: bytes = b"") -> None:
        self.raw = bytearray(raw)
        if not raw:
            self.raw = bytearray(_SIZE)
            self.raw[8:16] = _MAGIC
            self.changing = _CLEAN

    def valid(self) -> bool:
        return (
            len(self.raw) == _SIZE
            and self.raw[8:16] == _MAGIC
            and self.checksum == self._digest()
            and _CLEAN <= self.changing <= HOME
            and self.counted <= ALL
            and self.used == sum(_ALL_ACCOUNTS.unpack_from(self.raw, _ACCOUNTS)) <= _MOST * ALL
            and self.reserved == sum(_ALL_RESERVED.unpack_from(self.raw, _RESERVED)) <= _MOST * SLOTS
        )

    def sealed(self) -> bytearray:
        self.checksum = self._digest()
        return self.raw

    def _digest(self) -> int:
        return xxh3_64_intdigest(memoryview(self.raw)[8:])

    def account(self, folder: int) -> int:
        return int(_U64.unpack_from(self.raw, _ACCOUNTS + 8 * folder)[0])

    def set_account(self, folder: int, amount: int) -> None:
        amount = min(max(amount, 0), _MOST)
        self.used += amount - self.account(folder)
        _U64.pack_into(self.raw, _ACCOUNTS + 8 * folder, amount)

    def reservation(self, slot: int) -> int:
        return int(_U64.unpack_from(self.raw, _RESERVED + 8 * slot)[0])

    def set_reservation(self, slot: int, amount: int) -> None:
        amount = min(max(amount, 0), _MOST)
        before = self.reservation(slot)
        if amount != before:
            self.reserved += amount - before
            _U64.pack_into(self.raw, _RESERVED + 8 * slot, amount)


_U64 = struct.Struct("<Q")


class Ledger:
    """One process's hand on the page. Every method raises OSError when the disk does."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._mutex = threading.RLock()  # which knows its owner, who may be interrupted at any moment
        self._entered = False
        self._fd = -1
        self._status: os.stat_result | None = None
        self.slot: Slot | None = None
        self.held = 0  # octets reserved by this process; the page is told at each turn
        self._impatient_until = 0.0
        self._unsaved = False  # what was changed while there was no room to say so, or no ledger at its path
        self._saved = b""  # the page as this process has saved it last
        self._boot = 0 if home.remote else boot()
        self._boots = {self._boot}  # the numbers that the present boot of the machine is known by

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        shut(fd)

    __del__ = close

    @contextmanager
    def locked(self) -> Iterator[Page]:
        """The page, to be changed by :meth:`save` and :meth:`changing` only.

        :raises TimeoutError: another process kept it for too long.
        """
        if self._fd < 0:
            measure_older(self._home)
        patience = PATIENCE if time.monotonic() >= self._impatient_until else IMPATIENCE
        try:
            if not self._mutex.acquire(timeout=patience) or self._entered:  # by a signal's handler, once more
                raise TimeoutError(errno.ETIMEDOUT, "the ledger was not released in time")
            try:
                self._entered = True
                self._lock(patience)
                yield self._load()
            finally:
                self._entered = False
                unlock(self._fd)
        finally:
            try:  # and call nothing before, for that could be interrupted
                self._mutex.release()
            except RuntimeError:  # it was not acquired
                pass

    def glance(self) -> Page | None:
        """The page as it is, where nothing can be changed. None: it cannot be read, or is damaged."""
        try:
            file = Descriptor(self._home.open("ledger", os.O_RDONLY))
            page = Page(os.pread(file.number, _SIZE, 0) or b"\0")
        except OSError:
            return None
        return page if page.valid() else None

    def _lock(self, patience: float) -> None:
        for _ in range(8):
            if self._fd < 0:
                self._fd = self._home.open("ledger", os.O_RDWR | os.O_CREAT)
                self._status = os.fstat(self._fd)
            try:
                lock(self._fd, patience)
                if self._counts():
                    return
            except TimeoutError:  # its holder has stopped, it seems: not everybody need wait for it in turn
                self._impatient_until = time.monotonic() + INTERVAL
                raise
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
            self.close()  # somebody has moved or removed it; the one in its place counts
        raise FileNotFoundError(errno.ENOENT, "the ledger vanishes again and again")

    def _counts(self) -> bool:
        """Whether the open ledger is the one at its path.

        Asked after a page was saved, it tells that whoever makes the next one finds this writer's note as it was saved.
        """
        found = self._home.status("ledger")
        return found is not None and self._status is not None and os.path.samestat(self._status, found)

    def _load(self) -> Page:
        if self.slot is not None and not self.slot.stands():
            self.slot = None
        raw = os.pread(self._fd, _SIZE, 0) or b"\0"
        page = Page(raw)
        if raw != self._saved and not page.valid():
            page = self._begin()
        elif page.changing != _CLEAN:
            self.count(page, page.changing)
            page.changing = _CLEAN
            self.saved(page)
        if page.boot not in self._boots and self._boot:
            if self._is_present(page.boot):
                self._boots.add(page.boot)
            else:
                page.boot = self._boot
                page.counted = 0  # the machine may have gone down before the page or some files were on the disk
        if self._unsaved:
            before, page.counted = page.counted, 0
            self._unsaved = not self.saved(page)
            page.counted = before if self._unsaved else 0
        if self.slot is not None:
            page.set_reservation(self.slot.number, self.held)
        return page

    def _is_present(self, boot: int) -> bool:
        """Whether a living writer knows the present boot by this number: containers may each have one of their own.

        It has noted it while it had the ledger, as nobody locks the file of a writer otherwise.
        """
        for slot in range(SLOTS):
            note = self._note(slot)
            if note is not None and note[1] == boot:
                with suppress(FileNotFoundError):  # it has left just now
                    life = Descriptor(self._home.open(f"writers/{slot}", os.O_RDONLY))
                    if try_lock(life.number, shared=True) is False:
                        return True
        return False

    def _begin(self) -> Page:
        page = Page()
        page.boot = self._boot
        for slot in range(SLOTS):
            page.set_reservation(slot, max(self._noted(slot), sum(self._costs(f"writers/{slot}.d"))))
        if not set(FOLDERS).intersection(self._home.names(".")):
            self.count(page, HOME)
            page.counted = ALL
        os.ftruncate(self._fd, _SIZE)
        os.pwrite(self._fd, page.sealed(), 0)
        self.count(page, HOME)  # the page itself included
        self.save(page)
        return page

    def _noted(self, slot: int) -> int:
        """Octets that a writer, living or not, has noted as reserved.

        Where a note is missing nobody knows, and nothing is granted until the writer says, or is found dead.
        """
        note = self._note(slot)
        if note is not None:
            return min(note[0], _MOST)
        return _MOST if self._home.status(f"writers/{slot}.d") else 0

    def _note(self, slot: int) -> tuple[int, int] | None:
        try:
            file = Descriptor(self._home.open(f"writers/{slot}", os.O_RDONLY))
            held, host = NOTE.unpack(os.pread(file.number, NOTE.size, 0))
        except struct.error:
            return None
        except OSError as error:
            if is_no_file(error) or isinstance(error, PermissionError):
                return None
            raise
        return held, host

    def save(self, page: Page) -> None:
        if self.slot is not None:
            self.slot.note(self.held)
            page.set_reservation(self.slot.number, self.held)
        raw = bytes(page.sealed())
        os.pwrite(self._fd, raw, 0)
        self._saved = raw

    def saved(self, page: Page, *, need_not: bool = True) -> bool:
        """Whether there was room to save the page; with ``need_not=False`` it is an error that there was none."""
        try:
            self.save(page)
        except OSError as error:
            if not (need_not and is_full(error)):
                raise
            return False
        return True

    def look_soon(self, page: Page, when: float) -> None:
        """Something was left behind that only a look through everything finds."""
        page.sweep = min(page.sweep, int(when))
        self.save(page)

    def reserve(self, page: Page, amount: int, limit: int) -> bool:
        """Reserve *amount* octets for this process if all that is taken then stays within *limit*."""
        if self.slot is None or page.counted < ALL or page.used + page.reserved + amount > limit:
            return False
        self.held += amount
        try:
            self.save(page)
            granted = self._counts()
        except OSError:
            self.held -= amount
            raise
        if not granted:
            self.held -= amount
        return granted

    def release(self, page: Page, amount: int) -> None:
        """End a reservation of this process's. Never fails: the page is told at the next turn at the latest."""
        self.held -= amount
        with suppress(OSError):
            self.save(page)

    @contextmanager
    def changing(self, page: Page, folder: int, *, removing: bool = False) -> Iterator[list[int]]:
        """Change files of one folder; what they occupy more (or, negative, less) is appended to the list given.

        What lies outside the folders is counted anew instead.

        :param removing: it only becomes less, so it is done even if there is no room to say so; when there is, all is
            counted anew.
        """
        before = 0
        if folder == HOME:
            page.set_account(HOME, page.account(HOME) + self._home.slack)
        else:
            before = self._home.folder_blocks(FOLDERS[folder])
        page.changing = folder
        marked = self.saved(page, need_not=removing)
        amounts: list[int] = []
        yield amounts
        if folder == HOME:
            self.count(page, HOME)
        else:
            grown = self._home.blocks(FOLDERS[folder]) - before
            page.set_account(folder, page.account(folder) + sum(amounts) + grown)
        page.changing = _CLEAN
        if (not self.saved(page, need_not=removing) and not marked) or not self._counts():
            self._unsaved = True

    def count(self, page: Page, folder: int) -> None:
        """Set an account to what is there; that of a folder that cannot be read stays. The caller saves."""
        try:
            page.set_account(folder, self._count_home() if folder == HOME else self._count(FOLDERS[folder]))
        except OSError as error:
            if folder == HOME or error.errno not in _UNREADABLE:
                raise

    def _count(self, folder: str) -> int:
        return self._home.blocks(folder) + sum(self._costs(folder))

    def _count_home(self) -> int:
        home = self._home
        paths = [".", "growing", "writers", "ledger"]
        paths += [f"writers/{name}" for name in home.names("writers")]
        announced = sum(self._costs("growing"))  # by the living, who have reserved room, and by the dead, who have none
        return sum(map(home.blocks, paths)) + announced + home.parent_blocks() + occupied_by_older(home)

    def _costs(self, folder: str) -> Iterator[int]:
        for name in self._home.names(folder):
            status = self._home.status(f"{folder}/{name}")
            if status is not None and not stat.S_ISDIR(status.st_mode):
                yield self._home.cost(status)


def boot() -> int:
    """A number that changes with each boot of the machine; 0 where there is none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return xxh3_64_intdigest(file.read())
    except OSError:
        return 0
