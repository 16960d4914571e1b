"""What one process keeps open of one cache folder. A folder that vanishes, and a fork, need a new one."""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import suppress
from errno import ENOENT

from .claims import Claims
from .growing import withdraw
from .layout import Home
from .ledger import HOME, Ledger
from .slots import join, leave

__all__ = ["Place"]


class Place:
    def __init__(self, home: Home) -> None:
        self.home = home
        self.ledger = Ledger(home)
        self.claims = Claims(home)
        self.alive = True
        self.lost: deque[tuple[str, int, str]] = deque()  # what :meth:`give_back` takes, of writers that nobody ended
        self._joining = threading.Lock()

    def join(self, limit: int) -> bool:
        """Be a writer. False: there is no room for one more, or this process has left.

        :raises OSError: the disk does not take it.
        """
        if self.ledger.slot is None:
            with self._joining:
                if self.alive and self.ledger.slot is None:
                    self.ledger.slot = join(self.home, self.ledger, limit)
        return self.ledger.slot is not None

    def new_file(self) -> tuple[str, int]:
        """The path and the descriptor of a new file of this writer's; room for it has been reserved.

        :raises OSError: it cannot be made.
        """
        slot = self.ledger.slot
        if slot is None:
            raise FileNotFoundError(ENOENT, "no longer a writer")
        path = slot.new_path()
        try:
            return path, self.home.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except FileNotFoundError:  # somebody has removed its folder
            if self.ledger.slot is slot:
                self.ledger.slot = None
            raise

    def write_file(self, data: bytes, *, fsync: bool = False, time: int | None = None) -> str:
        """Write a new file and close it. *time* is that of its modification, in nanoseconds.

        :raises OSError: nothing is left of it.
        """
        path, fd = self.new_file()
        try:
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                if time is not None:
                    os.utime(fd, ns=(time, time))
                if fsync:
                    os.fsync(fd)
            finally:
                os.close(fd)
        except OSError:
            self.home.unlink(path)
            raise
        return path

    def move_file(self, path: str, target: str) -> None:
        """:raises OSError: it is neither here nor there."""
        try:
            self.home.replace(path, target)
        except OSError:
            self.home.unlink(path)
            raise

    def give_back(self, path: str, amount: int, flight: str = "") -> None:
        """Remove an unfinished file, if *path* is not empty, and its announcement, if any; and end their reservation.

        :raises OSError: the disk does; it is done again at :meth:`settle`.
        """
        try:
            if flight:
                with suppress(OSError):  # otherwise it goes with those of the dead
                    withdraw(self.home, flight, path)
            if path:
                self.home.unlink(path)
            with self.ledger.locked() as page:
                self.ledger.release(page, amount)
        except OSError:
            self.lost.append((path, amount, flight))
            raise

    def settle(self) -> None:
        """Give back what was left over."""
        while self.lost:
            try:
                left = self.lost.popleft()
            except IndexError:  # another thread was faster
                return
            self.give_back(*left)

    def measure(self) -> None:
        """Charge what this writer's folder has grown by."""
        slot = self.ledger.slot
        if slot is not None and slot.has_grown():
            self.count_home()

    def count_home(self) -> None:
        """Count what lies outside the folders anew."""
        with self.ledger.locked() as page:
            self.ledger.count(page, HOME)
            self.ledger.save(page)

    def close(self) -> None:
        """Stop being a writer; what this process has not finished goes.

        :raises OSError: the disk does; the rest is left to other writers, or to the next one.
        """
        with self._joining:  # lest another thread, still under way, becomes one again
            slot, alive, self.alive = self.ledger.slot, self.alive, False
        try:
            if alive and slot is not None:
                leave(self.home, self.ledger, slot)
        finally:
            self.ledger.slot = None
            self.claims.close()
            if slot is not None:
                slot.close()

    def forked(self) -> None:
        """In a forked child: let go of what is the parent's, its locks above all, and leave the disk as it is."""
        self.alive = False
        self.claims.forked()
        if self.ledger.slot is not None:
            self.ledger.slot.forked()
        self.ledger.close()
        self.home.close()
