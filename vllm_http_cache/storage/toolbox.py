"""What operators do to a storage: see what it holds, remove, check, shrink, put in.

All of it works beside any number of processes that use the same folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from errno import EROFS
from typing import NamedTuple
from urllib.parse import urlsplit

from ..rfc9111.message import BodyRef, StoredResponse
from .files import FileStorage
from .layout import FOLDERS, is_body, is_key
from .protocol import BodyDamaged, BodyReader, BodyUnreadable, Record, Stat, Storage
from .readers import BLOCK, open_reader

__all__ = [
    "Choice",
    "Usage",
    "Verified",
    "answers",
    "by_host",
    "has_newer",
    "is_sound",
    "older_than",
    "purge",
    "put",
    "put_body",
    "put_file",
    "settle",
    "sweep",
    "trim",
    "usage",
    "verify",
]

Choice = Callable[[Stat], bool]


@dataclass(frozen=True, slots=True)
class Usage:
    """Octets that a storage occupies, has reserved for what is being written, and may occupy; keys that it holds."""

    used: int
    reserved: int
    max_size: int
    keys: int


def usage(storage: FileStorage) -> Usage:
    """What the ledger says, and the number of records; no file of them is opened.

    :raises OSError: the folder cannot be read.
    """
    place = storage._access.reading()
    if place is None:
        return Usage(0, 0, storage.limits.max_size, 0)
    try:
        with place.ledger.locked() as page:
            used, reserved = page.used, page.reserved
    except OSError as error:
        found = place.ledger.glance() if error.errno == EROFS else None
        if found is None:
            raise
        used, reserved = found.used, found.reserved
    keys = sum(is_key(name) is not None for folder in FOLDERS for name in place.home.names(folder))
    return Usage(used, reserved, storage.limits.max_size, keys)


def trim(storage: FileStorage, size: int) -> int:
    """Remove the least recently used until no more than *size* octets are occupied; how many were freed.

    :raises OSError: the folder cannot be changed, or another process is sweeping it.
    """
    return storage._room.trim(size)


def sweep(storage: FileStorage) -> None:
    """Remove what is expired, damaged or left over now rather than when it is due.

    :raises OSError: as :func:`trim`.
    """
    storage._room.sweep()


def settle(storage: FileStorage) -> None:
    """Wait until what this process has begun to remove is gone; half a minute at most."""
    storage._room.settle()


def by_host(host: str) -> Choice:
    """Chooses the responses of a host, whatever scheme or port."""
    host = host.lower()
    return lambda stat: _host(stat.stored.uri) == host


def older_than(seconds: float, now: float) -> Choice:
    """Chooses the responses that the origin last sent or confirmed more than *seconds* before *now*."""
    return lambda stat: now - stat.stored.confirmed > seconds


def _host(uri: str) -> str | None:
    try:
        return urlsplit(uri).hostname
    except ValueError:
        return None


def purge(storage: FileStorage, choice: Choice) -> int:
    """Remove the stored responses that *choice* chooses; how many they were."""
    return sum(_remove(storage, stat.key, stat.stored) for stat in storage.scan() if choice(stat))


def _remove(storage: FileStorage, key: str, stored: StoredResponse) -> bool:
    while (record := storage.look(key)) is not None and stored in record.responses:
        kept = tuple(other for other in record.responses if other != stored)
        if storage.swap(key, record, Record(kept)):
            record = storage.look(key)
            return record is None or stored not in record.responses
    return False


class Verified(NamedTuple):
    """What has been read, and whether it is what was stored.

    :param stored: None: the record of *key* is damaged, and nobody knows what responses it held.
    """

    key: str
    stored: StoredResponse | None
    sound: bool


def verify(storage: FileStorage, *, drop: bool = False) -> Iterator[Verified]:
    """Read each record and each stored body; yields each stored response, and each record that is damaged.

    What cannot be read now is left out, with a warning; so is what others have removed meanwhile.

    :param drop: remove what is damaged.
    """
    for key in storage.keys():  # noqa: SIM118 - no mapping
        if storage.is_damaged(key):
            if drop:
                _drop_record(storage, key)
            yield Verified(key, None, False)
        for stored in (stat.stored for stat in storage.stat(key)):
            sound = None
            with storage._troubles.within("reading a body"):
                sound = stored.body is None or _is_as_stored(storage, stored.body)
            if sound or (sound is False and any(stored == still.stored for still in storage.stat(key))):
                if drop and not sound:
                    _remove(storage, key, stored)
                yield Verified(key, stored, sound)


def _drop_record(storage: FileStorage, key: str) -> None:
    """Remove a damaged record, and its bodies as far as they have not come just now: they may be another record's."""
    place = storage._access.reading()
    with storage._troubles.within("removing a record"):
        if place is not None:
            storage._room.look_later(name for name in place.home.names(key[:2]) if is_body(name) and name[:64] == key)
            storage._room.suspect(key)
            settle(storage)


def _is_as_stored(storage: FileStorage, ref: BodyRef) -> bool | None:
    """None: nobody knows.

    :raises OSError: the same.
    """
    place = storage._access.reading()
    if place is None:
        return None
    try:
        reader = open_reader(place.home, ref, wait=True, damaged=lambda _: None, warn=storage._troubles.warn)
        return _read_through(reader) == ref.length
    except BodyDamaged:
        return False
    except BodyUnreadable:
        return None


def is_sound(storage: Storage, ref: BodyRef) -> bool:
    """Whether every octet of a body is there, is what was stored, and can be read now."""
    try:
        reader = storage.open_body(ref)
        return reader is not None and _read_through(reader) == ref.length
    except BodyUnreadable:
        return False


def _read_through(reader: BodyReader) -> int:
    offset = 0
    try:
        while data := reader.read(offset, BLOCK):
            offset += len(data)
    finally:
        reader.close()
    return offset


def put_file(storage: Storage, key: str, stored: StoredResponse, path: str | os.PathLike[str]) -> bool:
    """Store a local file's octets as the body of *stored*; whether there was room.

    :raises OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        ref = put_body(storage, key, os.fstat(file.fileno()).st_size, iter(lambda: file.read(BLOCK), b""))
    return ref is not None and put(storage, key, replace(stored, body=ref))


def put_body(storage: Storage, key: str, length: int, chunks: Iterable[bytes]) -> BodyRef | None:
    """Store a body. None: there is no room, or the chunks are not *length* octets."""
    writer = storage.create_body(key, length)
    if writer is None:
        return None
    try:
        if all(map(writer.write, chunks)):
            return writer.commit()
    finally:
        writer.abort()
    return None


def put(storage: Storage, key: str, stored: StoredResponse, *, unless_newer: bool = False) -> bool:
    """Store a response in place of the one for the same requests, if any; whether it has been stored.

    :param unless_newer: leave one that was confirmed as late or later.
    """
    swapped = False
    while not swapped:
        record = storage.read(key)
        if unless_newer and _has_newer(record, stored):
            return False
        others = tuple(other for other in _responses(record) if answers(other) != answers(stored))
        swapped = storage.swap(key, record, Record((*others, stored)))
    record = storage.read(key)
    return record is not None and stored in record.responses


def has_newer(storage: Storage, key: str, stored: StoredResponse) -> bool:
    """Whether one for the same requests is there that was confirmed as late or later."""
    return _has_newer(storage.read(key), stored)


def _has_newer(record: Record | None, stored: StoredResponse) -> bool:
    return any(
        answers(other) == answers(stored) and other.confirmed >= stored.confirmed for other in _responses(record)
    )


def _responses(record: Record | None) -> tuple[StoredResponse, ...]:
    return record.responses if record else ()


def answers(stored: StoredResponse) -> tuple[object, ...]:
    """What requests it answers: a stored response takes the place of another for the same ones."""
    return stored.selecting, stored.first, stored.status == 206
