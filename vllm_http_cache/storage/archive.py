"""Exporting and importing a storage as a tar stream.

For each key: ``<key>/record``, in the format of a record file, then each body as ``<key>/<body's name>``. An import
trusts nothing in it: only this much of the tar format is read, names must have this form, sizes are bounded, records
are decoded as from a damaged disk, and bodies are digested anew and compared.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import IO, Protocol

from xxhash import xxh3_64_digest

from ..rfc9111.message import BodyRef, StoredResponse
from .layout import is_body, is_key
from .protocol import BodyDamaged, BodyReader, Storage
from .readers import BLOCK
from .records import LARGEST, decode, encode
from .sweep import SKEW
from .toolbox import is_sound, put, put_body

__all__ = ["Imported", "Source", "export_tar", "import_tar"]

_UNIT = 512
_LARGEST_MEMBER = 8**11 - 1  # what the octal field of a tar header can say


def export_tar(storage: Storage, file: IO[bytes]) -> int:
    """Write every stored response whose body is sound; how many they were. *file* need not be seekable.

    :raises OSError: *file* cannot be written.
    """
    count = 0
    keys = dict.fromkeys(stat.key for stat in storage.scan())
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.USTAR_FORMAT) as tar:
        for key in keys:
            record = storage.read(key)
            sound = [stored for stored in (record.responses if record else ()) if _can_go(storage, stored)]
            if sound:
                data = encode(key, sound)
                tar.addfile(_member(f"{key}/record", len(data)), io.BytesIO(data))
                for ref in {stored.body for stored in sound if stored.body}:
                    tar.addfile(_member(f"{key}/{ref.name}", ref.length), _Body(storage.open_body(ref)))
                count += len(sound)
    return count


def _can_go(storage: Storage, stored: StoredResponse) -> bool:
    return stored.body is None or (stored.body.length <= _LARGEST_MEMBER and is_sound(storage, stored.body))


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = 0o600
    return member


class _Body(io.RawIOBase):
    """A body as a file. What has gone since it was checked is filled with zeros, which the import's digests refuse."""

    def __init__(self, reader: BodyReader | None) -> None:
        self._reader = reader
        self._offset = 0

    def read(self, size: int = -1) -> bytes:
        data = b""
        while len(data) < size:
            data += self._next(size - len(data))
        return data

    def _next(self, size: int) -> bytes:
        data = b""
        if self._reader is not None:
            try:
                data = self._reader.read(self._offset, size)
            except BodyDamaged:
                self._reader = None
        self._offset += len(data)
        return data or bytes(size)


class Source(Protocol):
    """Something to read octets from; it may give fewer than asked for, none only at its end."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(slots=True)
class Imported:
    """Stored responses that an import has stored, and those that it has not: damaged, expired, older, or no room."""

    stored: int = 0
    refused: int = 0


@dataclass(slots=True)
class _Pending:
    key: str
    responses: tuple[StoredResponse, ...]
    bodies: dict[str, BodyRef] = field(default_factory=dict)


def import_tar(storage: Storage, file: Source, now: float) -> Imported:
    """Store what an export has written, as far as it is sound, not expired, and newer than what is stored.

    :param now: seconds since the epoch.
    :raises OSError: *file* cannot be read.
    """
    result = Imported()
    pending = _Pending("", ())
    for key, name, size, chunks in _members(file):
        if name == "record":
            _settle(storage, pending, result)
            data = b"".join(chunks) if size <= LARGEST else b""
            pending = _Pending(key, decode(data, key) or ())
            result.refused += not pending.responses
        elif key == pending.key:
            _import_body(storage, pending, name, size, chunks, now)
    _settle(storage, pending, result)
    return result


def _import_body(
    storage: Storage, pending: _Pending, name: str, size: int, chunks: Iterator[bytes], now: float
) -> None:
    for stored in pending.responses:
        ref = stored.body
        current = now - storage.ttl <= stored.confirmed <= now + SKEW
        if ref is not None and (ref.name, ref.length) == (name, size) and current and name not in pending.bodies:
            kept = put_body(storage, pending.key, size, _checked(chunks, ref.digests))
            if kept is not None:
                pending.bodies[name] = kept


def _checked(chunks: Iterator[bytes], digests: bytes) -> Iterator[bytes]:
    """The chunks as far as their digests are right."""
    for index, chunk in enumerate(chunks):
        if xxh3_64_digest(chunk) != digests[8 * index : 8 * index + 8]:
            return
        yield chunk


def _settle(storage: Storage, pending: _Pending, result: Imported) -> None:
    """Store the responses of a key whose members have all been read."""
    for stored in pending.responses:
        ref = stored.body and pending.bodies.get(stored.body.name)
        if (ref or stored.body is None) and put(storage, pending.key, replace(stored, body=ref), unless_newer=True):
            result.stored += 1
        else:
            result.refused += 1


def _members(file: Source) -> Iterator[tuple[str, str, int, Iterator[bytes]]]:
    """Key, name, size and octets of each member that an export could have written."""
    while True:
        header = _read(file, _UNIT)
        try:
            member = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
        except (tarfile.HeaderError, ValueError):
            return  # the end, or nothing that could be followed further
        if member.size < 0:
            return
        key, _, name = member.name.partition("/")
        chunks = _chunks(file, member.size)
        if member.isreg() and is_key(key) and (name == "record" or (is_body(name) and name[:64] == key)):
            yield key, name, member.size, chunks
        for _ in chunks:
            pass
        _read(file, -member.size % _UNIT)


def _chunks(file: Source, size: int) -> Iterator[bytes]:
    """Blocks of *size* octets in all; fewer when the file ends."""
    while size > 0:
        data = _read(file, min(size, BLOCK))
        if not data:
            return
        size -= len(data)
        yield data


def _read(file: Source, size: int) -> bytes:
    """*size* octets, fewer at the end: a pipe gives what it has."""
    data = file.read(size)
    while 0 < len(data) < size and (more := file.read(size - len(data))):
        data += more
    return data
