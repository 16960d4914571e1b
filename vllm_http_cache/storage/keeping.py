"""Replacing and removing records: under the ledger's lock, by rename, and bodies that lose their record with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from .devices import is_full
from .layout import file_path
from .ledger import Page
from .place import Place
from .protocol import Record
from .records import encode, names
from .shelf import Loaded, Shelf, marked
from .sweep import remove

__all__ = ["Keeping"]


class Keeping:
    """Every method raises OSError when the disk does.

    :param reserve: reserves octets and says whether there was room.
    :param visible: as much of a record file as may still be used.
    :param look_later: told the names of bodies that may never be named by a record.
    :param clock: seconds since the epoch.
    :param tell: told the octets that are used, after each change.
    """

    def __init__(
        self,
        shelf: Shelf,
        reserve: Callable[[Place, int], bool],
        visible: Callable[[Loaded], Record | None],
        look_later: Callable[[Iterable[str]], None],
        clock: Callable[[], float],
        tell: Callable[[int], None],
        *,
        fsync: bool,
    ) -> None:
        self._shelf = shelf
        self._reserve = reserve
        self._visible = visible
        self._look_later = look_later
        self._clock = clock
        self._tell = tell
        self._fsync = fsync

    def swap(self, place: Place, key: str, seen: Record | None, record: Record) -> bool:
        """As the storage's; what cannot be kept of a record is dropped with the bodies that only it names.

        One that only leaves out what must go takes the rest along then.
        """
        data, kept = _encode(key, record)
        new = names(record.responses) - names(seen.responses if seen else ())
        swapped = False
        try:
            swapped = self._swap(place, key, seen, kept, data)
        except OSError:
            with suppress(OSError):
                self._remove_unnamed(place, key, new)
                new = set()
            raise
        finally:
            if not swapped:  # it is tried once more, or not
                self._look_later(new)
        if swapped and len(kept.responses) < len(record.responses):
            self._remove_unnamed(place, key, new)
        return swapped

    def _swap(self, place: Place, key: str, seen: Record | None, record: Record, data: bytes | None) -> bool:
        if data is None:
            return self._swap_for_nothing(place, key, seen)
        room = place.home.room(len(data)) + place.home.slack
        try:
            if self._reserve(place, room):
                return self._write(place, key, seen, record, data, room)
        except OSError as error:
            if not is_full(error) or not _only_leaves_out(seen, record):
                raise
        if _only_leaves_out(seen, record):
            return self._swap_for_nothing(place, key, seen)
        self._remove_unnamed(place, key, names(record.responses) - names(seen.responses if seen else ()))
        return True

    def _remove_unnamed(self, place: Place, key: str, bodies: set[str]) -> None:
        with place.ledger.locked() as page:
            _remove(place, page, int(key[:2], 16), bodies - _bodies(self._shelf.get(place.home, key)))
        self._tell(page.used)

    def _write(self, place: Place, key: str, seen: Record | None, record: Record, data: bytes, room: int) -> bool:
        path, swapped = "", False
        try:
            path = place.write_file(data, fsync=self._fsync, time=marked(self._clock()))
            place.measure()
            swapped = self._rename(place, key, seen, record, path, room)
        finally:
            if not swapped:
                place.give_back(path, room)
        if swapped and self._fsync:
            place.home.fsync_folder(key[:2])
        return swapped

    def _rename(self, place: Place, key: str, seen: Record | None, record: Record, path: str, room: int) -> bool:
        home, target, folder = place.home, file_path(key), int(key[:2], 16)
        with place.ledger.locked() as page:
            current = self._shelf.get(home, key)
            if not self._is_seen(current, seen):
                return False
            with place.ledger.changing(page, folder) as amounts:
                amounts.append(-_cost(place, target))
                home.replace(path, target)
                amounts.append(_cost(place, target))
                released = _bodies(current) - names(record.responses)
                amounts.extend(-remove(home, file_path(name)) for name in released)
            place.ledger.release(page, room)
        self._tell(page.used)
        return True

    def _swap_for_nothing(self, place: Place, key: str, seen: Record | None) -> bool:
        with place.ledger.locked() as page:
            current = self._shelf.get(place.home, key)
            if not self._is_seen(current, seen):
                return False
            _remove(place, page, int(key[:2], 16), (key, *_bodies(current)))
        self._tell(page.used)
        return True

    def forget(self, place: Place, key: str) -> None:
        with place.ledger.locked() as page:
            current = self._shelf.get(place.home, key)
            if current is not None:
                _remove(place, page, int(key[:2], 16), (key, *_bodies(current)))
        self._tell(page.used)

    def drop(self, place: Place, name: str) -> str | None:
        """Remove what is expired or damaged of a key's record; of a body's, the response whose body it is as well.

        Why something has been removed, as an observer is told it; None: nothing has.
        """
        key = name[:64]
        current = self._shelf.get(place.home, key)
        if current is None:
            return None
        record = self._visible(current) or Record(())
        kept = tuple(stored for stored in record.responses if stored.body is None or stored.body.name != name)
        if current.record is not None and kept == current.record.responses:
            return None
        if not self.swap(place, key, current.record, Record(kept)) or self._is_there(place, key, current):
            return None
        return "damaged" if current.record is None or kept != record.responses else "age"

    def _is_there(self, place: Place, key: str, seen: Loaded) -> bool:
        """Whether it has not gone after all: a folder with something in it stays."""
        found = self._shelf.get(place.home, key)
        return found is not None and found.generation == seen.generation

    def _is_seen(self, current: Loaded | None, seen: Record | None) -> bool:
        if seen is None:
            return current is None or self._visible(current) is None
        return current is not None and current.generation == seen.generation


def _only_leaves_out(seen: Record | None, record: Record) -> bool:
    before = seen.responses if seen else ()
    return len(record.responses) < len(before) and all(stored in before for stored in record.responses)


def _remove(place: Place, page: Page, folder: int, doomed: Iterable[str]) -> None:
    with place.ledger.changing(page, folder, removing=True) as amounts:
        amounts.extend(-remove(place.home, file_path(name)) for name in doomed)


def _cost(place: Place, path: str) -> int:
    status = place.home.status(path)
    return place.home.cost(status) if status else 0


def _bodies(loaded: Loaded | None) -> set[str]:
    return names(loaded.record.responses) if loaded and loaded.record else set()


def _encode(key: str, record: Record) -> tuple[bytes | None, Record]:
    """The record as octets, and as far as it fits in: those confirmed longest ago stay out. None: nothing is left."""
    kept = record.responses
    while kept:
        try:
            return encode(key, kept), Record(kept)
        except ValueError:
            oldest = min(kept, key=lambda stored: stored.confirmed)
            kept = tuple(stored for stored in kept if stored is not oldest)
    return None, Record(())
