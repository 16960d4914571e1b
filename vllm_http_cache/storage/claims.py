"""Claims on flights among processes: locks that the system takes back when the process dies.

On Linux they are open-file-description locks on single octets of one empty file, at an offset that the flight gives.
Elsewhere a fixed set of locked files serves; two flights that share one are then taken for the same.
"""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import threading
from collections import deque
from contextlib import suppress
from errno import ESTALE
from typing import TYPE_CHECKING

from .devices import shut
from .layout import Home
from .locks import try_lock

if TYPE_CHECKING:
    from .protocol import Claim

__all__ = ["Claims", "NoClaim"]

_FILES = 64
_SINGLE_OCTETS = sys.platform == "linux" and struct.calcsize("P") == 8


class NoClaim:
    """Stands in where claims cannot be made: everybody gets one."""

    def release(self) -> None:
        pass


class _OctetClaim:
    def __init__(self, claims: Claims, offset: int) -> None:
        self._claims: Claims | None = claims
        self._offset = offset

    def release(self) -> None:
        claims, self._claims = self._claims, None
        if claims is not None:
            claims._unlock(self._offset)

    def forget(self) -> None:
        """It could not be had."""
        self._claims = None

    def __del__(self) -> None:
        if self._claims is not None:  # its holder was interrupted; no lock may be taken here
            self._claims.lost.append(self._offset)


class _FileClaim:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        shut(fd)

    __del__ = release


class Claims:
    """The claims of one process."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._fd = -1
        self._closed = False
        self.lost: deque[int] = deque()  # what is held by claims that nobody has released
        self._held: set[int] = set()  # the system lets one process take the same octet again
        self._lock = threading.Lock()

    def take(self, flight: str) -> Claim | None:
        """Claim a flight; None: somebody has it.

        :raises OSError: there are no locks here.
        """
        number = int(flight[:16], 16) >> 2
        if not _SINGLE_OCTETS:
            return self._take_file(number % _FILES)
        while self.lost:
            with suppress(IndexError):  # another thread was faster
                self._unlock(self.lost.popleft())
        with self._lock:
            if self._closed:
                return NoClaim()
            if not self._stands():
                self._open()
            if number in self._held:
                return None
            claim = _OctetClaim(self, number)
            try:
                self._held.add(number)
                self._set(fcntl.F_WRLCK, number)
            except OSError as error:
                self._held.discard(number)
                claim.forget()
                if isinstance(error, BlockingIOError):
                    return None
                raise
        return claim

    def _stands(self) -> bool:
        """Whether the open file is the one that other processes lock."""
        try:
            return self._fd >= 0 and self._home.is_at("claims", self._fd)
        except OSError as error:
            if error.errno != ESTALE:
                raise
            return False

    def _open(self) -> None:
        """Open the file that is there now; what is claimed in the one that was there is claimed in it too."""
        fd = self._home.open("claims", os.O_RDWR | os.O_CREAT)
        before, self._fd = self._fd, fd
        shut(before)
        for number in self._held:
            with suppress(OSError):
                self._set(fcntl.F_WRLCK, number)

    def _take_file(self, number: int) -> _FileClaim | None:
        self._home.make_folder("claims.d")
        fd = self._home.open(f"claims.d/{number}", os.O_RDWR | os.O_CREAT)
        if try_lock(fd) is False:
            shut(fd)
            return None
        return _FileClaim(fd)

    def _set(self, kind: int, offset: int) -> None:
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, offset, 1, 0))

    def _unlock(self, offset: int) -> None:
        with self._lock:
            self._held.discard(offset)
            if self._fd >= 0:  # else the claim has gone with it
                try:
                    self._set(fcntl.F_UNLCK, offset)
                except OSError:
                    self._release()  # rather none than one for ever

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._release()

    def forked(self) -> None:
        """Let the parent have its claims."""
        self._lock = threading.Lock()
        self._release()

    def _release(self) -> None:
        fd, self._fd = self._fd, -1
        self._held.clear()
        shut(fd)

    __del__ = _release
