"""Exporting and importing a storage as a tar stream.

For each key: ``<key>/record``, in the format of a record file, then each body as ``<key>/<body's name>``. An import
trusts nothing in it: only this much of the tar format is read, names must have this form, sizes are bounded, records
are decoded as from a damaged disk, and bodies are digested anew and compared.
"""

from __future__ import annotations

import io
import tarfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from typing import IO, Protocol

from xxhash import xxh3_64_digest

from ..rfc9111.message import MAX_VARIANTS, BodyRef, StoredResponse
from .files import FileStorage
from .layout import is_body, is_key
from .protocol import BodyReader, BodyUnreadable, Storage
from .readers import BLOCK
from .records import LARGEST, decode, encode
from .sweep import SKEW
from .toolbox import answers, has_newer, is_sound, put, put_body, settle

__all__ = ["Imported", "Source", "export_tar", "import_tar"]

_UNIT = 512
_END = bytes(_UNIT)
_PADDING = 20 * _UNIT  # what follows the end, at most
_LARGEST_MEMBER = 8**11 - 1  # what the octal field of a tar header can say


def export_tar(storage: Storage, file: IO[bytes]) -> int:
    """Write every stored response whose body is sound; how many they were. *file* need not be seekable.

    :raises OSError: *file* cannot be written.
    """
    count = 0
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.USTAR_FORMAT) as tar:
        for key, stats in groupby(storage.scan(), key=attrgetter("key")):
            sound = [stat.stored for stat in stats if _can_go(storage, stat.stored)]
            if sound:
                data = encode(key, sound)
                tar.addfile(_member(f"{key}/record", len(data)), io.BytesIO(data))
                for ref in {stored.body for stored in sound if stored.body}:
                    tar.addfile(_member(f"{key}/{ref.name}", ref.length), _Body(storage, ref))
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

    def __init__(self, storage: Storage, ref: BodyRef) -> None:
        self._reader: BodyReader | None = None
        self._offset = 0
        with suppress(BodyUnreadable):
            self._reader = storage.open_body(ref)

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
            except BodyUnreadable:
                self._reader = None
        self._offset += len(data)
        return data or bytes(size)


class Source(Protocol):
    """Something to read octets from; it may give fewer than asked for, none only at its end."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(slots=True)
class Imported:
    """What became of the stored responses in an export.

    :param stored: how many have been stored, and are there at the end.
    :param evicted: how many have been stored, and had to make room for others.
    :param refused: how many have not, by reason: ``already there`` (as late or later), ``expired``, ``damaged``,
        ``no room``, ``too many of one URL``.
    :param complaint: what is wrong with the stream as a whole; empty when nothing is.
    """

    stored: int = 0
    evicted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    complaint: str = ""
    _put_in: dict[str, list[object]] = field(default_factory=dict, repr=False)  # by key, the requests it is for


@dataclass(slots=True)
class _Pending:
    """The responses of one key that are wanted and wait for their bodies."""

    key: str = ""
    responses: list[StoredResponse] = field(default_factory=list)


def import_tar(storage: FileStorage, file: Source, now: float) -> Imported:
    """Store what an export has written, as far as it is sound, not expired, and newer than what is stored.

    :param now: seconds since the epoch.
    :raises OSError: *file* cannot be read.
    """
    result = Imported()
    pending = _Pending()
    for key, name, size, chunks in _members(file, result):
        if name == "record":
            _give_up(pending, result)
            pending = _Pending(key, _wanted(storage, key, size, chunks, now, result))
        elif key == pending.key:
            _import_body(storage, pending, name, size, chunks, result)
    _give_up(pending, result)
    _count_evicted(storage, result)
    return result


def _wanted(
    storage: Storage, key: str, size: int, chunks: Iterator[bytes], now: float, result: Imported
) -> list[StoredResponse]:
    """The responses of a record that have a place here and a body to come; the others are stored, or counted."""
    wanted = []
    responses = (decode(b"".join(chunks), key) if size <= LARGEST else None) or ()
    if not responses:
        result.refused["damaged"] += 1
    latest = sorted(responses, key=attrgetter("confirmed"), reverse=True)[:MAX_VARIANTS]
    if len(responses) > len(latest):
        result.refused["too many of one URL"] += len(responses) - len(latest)
    for stored in latest:
        if not now - storage.ttl <= stored.confirmed <= now + SKEW:
            result.refused["expired"] += 1
        elif has_newer(storage, key, stored):
            result.refused["already there"] += 1
        elif stored.body is None:
            _put(storage, key, stored, result)
        else:
            wanted.append(stored)
    return wanted


def _import_body(
    storage: Storage, pending: _Pending, name: str, size: int, chunks: Iterator[bytes], result: Imported
) -> None:
    """Store a body and, before a sweep can take it for one that nobody names, the responses whose body it is."""
    ours = [
        stored for stored in pending.responses if stored.body and (stored.body.name, stored.body.length) == (name, size)
    ]
    if not ours or ours[0].body is None:
        return
    pending.responses = [stored for stored in pending.responses if stored not in ours]
    checked = _Checked(chunks, ours[0].body)
    kept = put_body(storage, pending.key, size, checked)
    for stored in ours:
        if kept is None:
            result.refused["damaged" if checked.damaged else "no room"] += 1
        else:
            _put(storage, pending.key, replace(stored, body=kept), result)


class _Checked:
    """The chunks of a body as far as their digests are right."""

    def __init__(self, chunks: Iterator[bytes], ref: BodyRef) -> None:
        self._chunks = chunks
        self._ref = ref
        self.damaged = False

    def __iter__(self) -> Iterator[bytes]:
        length = 0
        for index, chunk in enumerate(self._chunks):
            if xxh3_64_digest(chunk) != self._ref.digests[8 * index : 8 * index + 8]:
                break
            length += len(chunk)
            yield chunk
        self.damaged = length != self._ref.length


def _put(storage: Storage, key: str, stored: StoredResponse, result: Imported) -> None:
    if put(storage, key, stored, unless_newer=True):
        result.stored += 1
        result._put_in.setdefault(key, []).append(answers(stored))
    else:
        result.refused["already there" if has_newer(storage, key, stored) else "no room"] += 1


def _count_evicted(storage: FileStorage, result: Imported) -> None:
    settle(storage)
    for key, put_in in result._put_in.items():
        record = storage.look(key)
        there = set(map(answers, record.responses)) if record else set()
        result.evicted += sum(each not in there for each in put_in)
    result.stored -= result.evicted


def _give_up(pending: _Pending, result: Imported) -> None:
    """Count those whose bodies have not come."""
    if pending.responses:
        result.refused["damaged"] += len(pending.responses)


def _members(file: Source, result: Imported) -> Iterator[tuple[str, str, int, Iterator[bytes]]]:
    """Key, name, size and octets of each member that an export could have written."""
    begun = known = False
    while (header := _read(file, _UNIT)) != _END:
        begun = True
        try:
            member = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
        except (tarfile.HeaderError, ValueError):
            member = None
        if member is None or member.size < 0:
            cut = len(header) < _UNIT
            result.complaint = "it has been cut" if cut else "it is damaged, and cannot be read to its end"
            break
        key, _, name = member.name.partition("/")
        chunks = _chunks(file, member.size)
        if member.isreg() and is_key(key) and (name == "record" or (is_body(name) and name[:64] == key)):
            known = True
            yield key, name, member.size, chunks
        for _ in chunks:
            pass
        _read(file, -member.size % _UNIT)
    else:
        if _read(file, _PADDING).strip(b"\0"):
            result.complaint = "it is damaged, and cannot be read to its end"
    if begun and not known:
        result.complaint = "it is not what `vllm-http-cache export` has written"


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
