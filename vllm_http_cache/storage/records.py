"""Records as octets: eight of magic, eight of checksum, then MessagePack.

Decoding takes any octets and never raises: what is damaged, foreign, of another version or of another key is None.
Nothing that is read can execute, and memory is bounded by the size of the input, itself bounded by ``LARGEST``.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any

import msgpack
from xxhash import xxh3_64_digest

from ..rfc9111.message import BodyRef, Fields, StoredResponse
from .layout import is_body, is_temporary

__all__ = ["LARGEST", "decode", "decode_growing", "encode", "encode_growing", "names"]

LARGEST = 1024 * 1024  # octets

_RECORD = b"vhcrec\x00\x01"
_GROWING = b"vhcgro\x00\x01"
_HEAD = 16


def encode(key: str, responses: Iterable[StoredResponse]) -> bytes:
    """:raises ValueError: more than ``LARGEST`` octets, or a number of more than 64 bits."""
    return _seal(_RECORD, [key, [_pack(stored) for stored in responses]])


def decode(data: bytes, key: str) -> tuple[StoredResponse, ...] | None:
    """The stored responses of *key*."""
    try:
        found, packed = _open(_RECORD, data)
        if found != key or type(packed) is not list:
            return None
        responses = tuple(_unpack(item) for item in packed)
    except Exception:
        return None
    if any(name[:64] != key for name in names(responses)):
        return None
    return responses


def encode_growing(flight: str, path: str, stored: StoredResponse) -> bytes:
    """What other processes must know of a growing body: where it lies and the response it belongs to.

    :raises ValueError: as :func:`encode`.
    """
    return _seal(_GROWING, [flight, path, _pack(stored)])


def decode_growing(data: bytes, flight: str) -> tuple[str, StoredResponse] | None:
    """The path and the response."""
    try:
        found, path, packed = _open(_GROWING, data)
        stored = _unpack(packed)
    except Exception:
        return None
    return (path, stored) if found == flight and type(path) is str and is_temporary(path) else None


def names(responses: Iterable[StoredResponse]) -> set[str]:
    """The names of their bodies."""
    return {stored.body.name for stored in responses if stored.body is not None}


def _seal(magic: bytes, value: Any) -> bytes:
    try:
        payload: bytes = msgpack.packb(value, unicode_errors="surrogatepass")
    except OverflowError as error:
        raise ValueError("a number of more than 64 bits") from error
    if len(payload) > LARGEST - _HEAD:
        raise ValueError(f"a record of {len(payload)} octets")
    return magic + xxh3_64_digest(payload) + payload


def _open(magic: bytes, data: bytes) -> list[Any]:
    payload = data[_HEAD:]
    if len(data) > LARGEST or data[:8] != magic or data[8:_HEAD] != xxh3_64_digest(payload):
        raise ValueError("not a record of this format")
    value: list[Any] = msgpack.unpackb(payload, raw=False, unicode_errors="surrogatepass")
    return value


def _pack(stored: StoredResponse) -> list[Any]:
    body = stored.body
    return [
        stored.uri,
        stored.status,
        list(stored.fields.lines),
        list(stored.selecting),
        float(stored.request_time),
        float(stored.response_time),
        float(stored.confirmed),
        None if body is None else [body.name, body.length, body.digests],
        stored.reason,
        stored.first,
    ]


def _unpack(packed: Any) -> StoredResponse:
    uri, status, fields, selecting, requested, responded, confirmed, body, reason, first = packed
    times = (requested, responded, confirmed)
    if not all(type(time) is float and isfinite(time) for time in times):
        raise ValueError("a time that is none")
    return StoredResponse(
        _text(uri),
        _number(status),
        Fields(_pairs(fields)),
        tuple(_pairs(selecting)),
        *times,
        None if body is None else _body(*body),
        _text(reason),
        _number(first),
    )


def _body(name: Any, length: Any, digests: Any) -> BodyRef:
    if not is_body(_text(name)) or type(digests) is not bytes:
        raise ValueError("a body that cannot be one")
    return BodyRef(name, _number(length), digests)


def _pairs(value: Any) -> list[tuple[str, str]]:
    return [(_text(name), _text(content)) for name, content in value]


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError("text that is none")
    return value


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("a number that is none")
    return value
