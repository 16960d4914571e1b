"""Bodies as they are written: into a file of this writer's own, with room reserved before each octet.

A whole body is synced if need be, loses its write permission and moves to its place, in this order; from then on it
never changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from xxhash import xxh3_64

from ..rfc9111.message import BodyRef, StoredResponse
from .devices import Descriptor, write_all
from .growing import withdraw
from .layout import file_path
from .place import Place
from .readers import BLOCK, GrowingReader
from .records import encode_growing

__all__ = ["FileBodyWriter", "Terms"]

SMALLEST_STEP = 64 * 1024  # octets reserved at a time for a body of unknown length
LARGEST_STEP = 8 * BLOCK


@dataclass(frozen=True, slots=True)
class Terms:
    """What a writer may do, and whom it asks.

    ``reserve`` reserves octets for this process, beside those that a body of unknown length has, and says whether there
    was room; ``keeps_floor`` says whether the device has enough free now; ``warn`` reports what the disk does.
    """

    largest: int
    fsync: bool
    reserve: Callable[[int, int], bool]
    keeps_floor: Callable[[], bool]
    warn: Callable[[str, OSError], None]


class FileBodyWriter:
    """A body in the making."""

    @classmethod
    def begin(cls, place: Place, terms: Terms, key: str, length: int | None) -> FileBodyWriter | None:
        """None: there is no room.

        :raises OSError: the disk does not take it.
        """
        home = place.home
        held = home.room(min(SMALLEST_STEP, terms.largest) if length is None else length) + home.slack
        if not terms.reserve(held, 0):
            return None
        try:
            return cls(place, terms, key, length, held)
        except OSError:
            place.give_back("", held)
            raise

    def __init__(self, place: Place, terms: Terms, key: str, length: int | None, held: int) -> None:
        self._file: Descriptor | None = None
        self._place = place
        self._terms = terms
        self._key = key
        self._length = length
        self._held = held  # octets reserved for the body
        self._flight = ""  # under which it is announced
        self._announced = 0  # octets reserved for that
        self._block = xxh3_64()
        self._digests = bytearray()
        self._sound = True
        self._path, number = place.new_file()
        self._file = Descriptor(number)
        self.written = 0

    def write(self, *pieces: bytes) -> bool:
        if self._file is None or not self._sound or not self._place.alive:
            return False
        try:
            self._sound = self._room_for(self.written + sum(map(len, pieces))) and self._append(self._file, pieces)
        except OSError as error:
            self._terms.warn("writing a body", error)
            self._sound = False
        return self._sound

    def _room_for(self, size: int) -> bool:
        limit = self._terms.largest if self._length is None else self._length
        if size > limit:
            return False
        home = self._place.home
        if home.room(size) + home.slack <= self._held:
            return size // BLOCK == self.written // BLOCK or self._terms.keeps_floor()
        step = min(max(size, SMALLEST_STEP), LARGEST_STEP)
        for target in (min(size + step, limit), size):
            more = home.room(target) + home.slack - self._held
            if self._terms.reserve(more, self._held):
                self._held += more
                return True
        return False

    def _append(self, file: Descriptor, pieces: tuple[bytes, ...]) -> bool:
        offset = self.written
        for data in pieces:
            view = memoryview(data)
            while view:
                part = view[: BLOCK - offset % BLOCK]
                self._block.update(part)
                view = view[len(part) :]
                offset += len(part)
                if offset % BLOCK == 0:
                    self._end_block()
        write_all(file.number, pieces, self.written)
        self.written = offset
        return True

    def _end_block(self) -> None:
        self._digests += self._block.digest()
        self._block.reset()

    def follow(self) -> GrowingReader:
        return GrowingReader(self, self._file)

    def publish(self, flight: str, stored: StoredResponse) -> None:
        place = self._place
        if not self._sound or self._announced:
            return
        try:
            data = encode_growing(flight, self._path, stored)
            room = place.home.room(len(data)) + place.home.slack
            if self._terms.reserve(room, 0):
                self._announced = room
                before = place.home.blocks("growing")
                place.move_file(place.write_file(data), f"growing/{flight}")
                self._flight = flight
                if place.home.blocks("growing") != before:
                    place.count_home()
        except ValueError:
            pass  # too large to be shown
        except OSError as error:
            self._terms.warn("publishing a body", error)

    def beat(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.utime(self._file.number)

    def commit(self) -> BodyRef | None:
        ref = None
        if self._file is not None and self._sound and self._place.alive and self._length in (None, self.written):
            try:
                ref = self._commit(self._file.number)
            except OSError as error:
                self._terms.warn("keeping a body", error)
        self.abort()
        return ref

    def _commit(self, fd: int) -> BodyRef:
        home, ledger = self._place.home, self._place.ledger
        if self.written % BLOCK:
            self._end_block()
        if self._terms.fsync or home.remote:  # a network may say only now that it has no room
            os.fsync(fd)
        os.fchmod(fd, home.whole_mode)
        status = os.fstat(fd)
        name = f"{self._key}.{os.urandom(8).hex()}"
        if self._flight:
            withdraw(home, self._flight, self._path)
        self._place.measure()
        with ledger.locked() as page, ledger.changing(page, int(name[:2], 16)) as amounts:
            home.replace(self._path, file_path(name))
            amounts.append(home.cost(status))
            ledger.held -= self._held + self._announced
            self._held = self._announced = 0
        self._path = self._flight = ""
        return BodyRef(name, self.written, bytes(self._digests))

    def abort(self) -> None:
        self._sound = False
        file, self._file = self._file, None
        if file is None or not self._place.alive:
            return
        del file
        try:
            self._clear()
        except OSError as error:
            self._terms.warn("removing an unfinished body", error)

    def _clear(self) -> None:
        left = self._path, self._held + self._announced, self._flight
        self._path, self._held, self._announced, self._flight = "", 0, 0, ""
        if any(left):
            self._place.give_back(*left)

    def __del__(self) -> None:
        if self._file is not None:  # neither committed nor aborted; no lock may be taken here
            self._place.lost.append((self._path, self._held + self._announced, self._flight))
