"""A storage of files in one folder, for many processes: bounded in size and age, safe to kill at any moment."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from weakref import WeakSet

from ..rfc9111.message import BodyRef
from .access import Access
from .bodies import FileBodyWriter, Terms
from .claims import NoClaim
from .growing import find
from .keeping import Keeping
from .layout import FOLDERS, Home, is_key
from .place import Place
from .protocol import BodyReader, BodyWriter, Claim, Growing, Observer, Record, Stat
from .readers import open_reader
from .room import Limits, Room
from .shelf import Loaded, Shelf
from .slots import has_died
from .sweep import SKEW
from .troubles import Troubles

__all__ = ["FileStorage"]


class FileStorage:
    """Keeps responses in the subfolder ``.vllm-http-cache`` of *path*; touches nothing else there.

    Nothing is made or opened before the first use. No method raises what the disk does: see :mod:`.protocol`.

    :param max_size: octets that the subfolder may occupy, as ``du`` sees it, 128 KiB at least; the least recently used
        goes first.
    :param max_entry_size: octets of the largest body that is kept; None: whatever fits. One whose length is not known
        before its end is kept up to half of all the room.
    :param ttl: seconds after the origin last sent or confirmed a response, when it goes; ``inf`` keeps.
    :param free_space_floor: octets of the device that are left free for others; None: its twentieth, 64 MiB at most.
        Of the files that it can hold a twentieth is left to others, 16 384 at most.
    :param fsync: have the disk confirm each body and record, so that they survive a power failure.
    :param group: share the folder with all members of its group.
    :param clock: seconds since the epoch.
    :raises ValueError: the path is empty, or a limit is negative, not a number, too large, or too small for anything.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_size: int = 5 * 1024**3,
        max_entry_size: int | None = None,
        ttl: float = 86_400.0,
        free_space_floor: int | None = None,
        fsync: bool = False,
        group: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not os.fspath(path):
            raise ValueError("an empty path names no folder")
        self.path = os.path.abspath(path)
        self.limits = Limits(max_size, max_entry_size, ttl, free_space_floor)
        self._fsync = fsync
        self._clock = clock
        self._troubles = Troubles(self.path)
        self._access = Access(self.path, group=group, troubles=self._troubles)
        self._observer: Observer | None = None
        self._begin()
        _storages.add(self)

    def _begin(self) -> None:
        self._shelf = Shelf()
        self._room = Room(self._access, self.limits, self._clock, self._drop, self._troubles.warn)
        self.observe(self._observer)
        room = self._room
        self._keeping = Keeping(
            self._shelf, room.reserve, self._visible, room.look_later, self._clock, room.tell, fsync=self._fsync
        )

    def observe(self, observer: Observer | None) -> None:
        """Tell *observer*, and nobody else, from now on what happens here."""
        self._observer = self._room.observer = self._troubles.observer = observer

    def open(self) -> bool:
        """Make and open the folder now rather than at the first use; whether it can be used."""
        with self._troubles.within("opening the folder"):
            return self._access.writing() is not None
        return False

    @property
    def ttl(self) -> float:
        return self.limits.ttl

    @property
    def remote(self) -> bool:
        place = self._access.place
        return place is None or place.home.remote  # nobody knows before the folder is open

    def read(self, key: str, *, wait: bool = True) -> Record | None:
        place = self._access.place or self._access.reading(wait=wait)
        if place is None:
            return None
        try:
            loaded = self._shelf.get(place.home, key, wait=wait)
        except OSError as error:
            self._failed("reading a record", error, wait=wait)
            return None
        if loaded is None:
            self._access.check()
            return None
        now = self._clock()
        record = loaded.visible(now - self.limits.ttl, now + SKEW)
        if record is None:
            self._room.suspect(key)
        else:
            self._shelf.note_use(place.home, key, loaded, now)
        return record

    def _visible(self, loaded: Loaded) -> Record | None:
        now = self._clock()
        return loaded.visible(now - self.limits.ttl, now + SKEW)

    def swap(self, key: str, seen: Record | None, record: Record) -> bool:
        with self._troubles.within("keeping a record"):
            place = self._access.writing()
            return place is None or self._keeping.swap(place, key, seen, record)
        return True

    def forget(self, key: str) -> None:
        with self._troubles.within("removing a record"):
            place = self._access.reading()
            if place is not None:
                self._keeping.forget(place, key)

    def create_body(self, key: str, length: int | None) -> BodyWriter | None:
        if is_key(key) is None:
            raise ValueError(f"{key!r} is not a key")
        largest = self.limits.largest
        if length is not None and length > largest:
            return None
        with self._troubles.within("beginning a body"):
            place = self._access.writing()
            if place is not None:
                room = self._room
                reserve, keeps_floor = partial(room.reserve, place), partial(room.keeps_floor, place)
                terms = Terms(largest, self._fsync, reserve, keeps_floor, self._troubles.warn)
                return FileBodyWriter.begin(place, terms, key, length)
        return None

    def open_body(self, ref: BodyRef, *, wait: bool = True) -> BodyReader | None:
        place = self._access.place or self._access.reading(wait=wait)
        if place is None:
            return None
        try:
            return open_reader(place.home, ref, wait=wait, damaged=self._room.suspect, warn=self._troubles.warn)
        except OSError as error:
            self._failed("opening a body", error, wait=wait)
            return None

    def _failed(self, doing: str, error: OSError, *, wait: bool) -> None:
        if isinstance(error, BlockingIOError) and not wait:
            raise error
        self._troubles.warn(doing, error)
        self._access.check()

    def claim(self, flight: str) -> Claim | None:
        with self._troubles.within("claiming a flight"):
            place = self._access.writing()
            if place is not None:
                claim = place.claims.take(flight)
                if claim is not None:  # what is announced now is a dead leader's
                    with self._troubles.within("withdrawing a dead leader's body"):
                        place.home.unlink(f"growing/{flight}")
                return claim
        return NoClaim()

    def growing(self, flight: str) -> Growing | None:
        with self._troubles.within("finding a growing body"):
            place = self._access.reading()
            if place is not None:
                return find(place.home, flight, partial(self._is_orphaned, place, flight))
        return None

    def _is_orphaned(self, place: Place, flight: str, path: str) -> bool:
        """Whether the writer of a growing body has died. Another host's lock may not be seen here; its claim may."""
        try:
            if has_died(place.home, path):
                return True
            claim = place.claims.take(flight) if place.home.remote and place.alive else None
        except OSError:  # nobody can tell: rather one request more than to wait for ever
            return True
        if claim is not None:
            claim.release()
        return claim is not None

    def keys(self) -> Iterator[str]:
        """Of all records, damaged ones among them."""
        for folder in FOLDERS:
            place = self._access.reading()
            if place is None:
                return
            keys: list[str] = []
            with self._troubles.within("listing"):
                keys += filter(is_key, place.home.names(folder))
            yield from keys

    def scan(self) -> Iterator[Stat]:
        for key in self.keys():
            yield from self.stat(key)

    def is_damaged(self, key: str) -> bool:
        """Whether there is a record of *key* that tells nothing."""
        found = self._lying(key)
        return found is not None and found[1].record is None

    def look(self, key: str) -> Record | None:
        """The record of *key* as it lies there, the ttl notwithstanding. Unlike :meth:`read`, this is not a use."""
        found = self._lying(key)
        return found and found[1].record

    def stat(self, key: str) -> list[Stat]:
        """What :meth:`look` finds, as :meth:`scan` lists it."""
        found = self._lying(key)
        return list(_stats(found[0].home, key, found[1])) if found else []

    def _lying(self, key: str) -> tuple[Place, Loaded] | None:
        place = self._access.reading()
        with self._troubles.within("reading a record"):
            loaded = Shelf().get(place.home, key) if place else None
            return (place, loaded) if place and loaded else None
        return None

    def close(self) -> None:
        self._room.close()
        self._access.close()

    def _drop(self, place: Place, name: str) -> None:
        why = self._keeping.drop(place, name)
        if why is not None and self._observer is not None:
            self._observer.evicted(why)

    def _forked(self) -> None:
        self._access.forked()
        self._begin()


def _stats(home: Home, key: str, loaded: Loaded) -> Iterator[Stat]:
    size = home.room(loaded.generation[2])  # goes with the first response
    for stored in loaded.record.responses if loaded.record else ():
        size += home.room(stored.body.length) if stored.body else 0
        yield Stat(key, stored, size, loaded.used)
        size = 0


_storages: WeakSet[FileStorage] = WeakSet()


def _forked() -> None:
    for storage in list(_storages):
        storage._forked()


os.register_at_fork(after_in_child=_forked)
