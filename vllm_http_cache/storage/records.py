"""Records as octets: eight of magic, eight of checksum, then MessagePack.

Decoding takes any octets and never raises: what is damaged, foreign, of another version or of another key is None, and
so is what cannot be an answer (RFC 9110 sections 5.1, 5.5 and 15): every client can hand out what is decoded.
Nothing that is read can execute, and memory is bounded by the size of the input, itself bounded by ``LARGEST``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
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

_of_tokens = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]*").fullmatch
_UNFIT = r"\0\r\n\u0100-\U0010ffff"  # for a value
_of_values = re.compile(f"[^{_UNFIT}]*").fullmatch


def encode(key: str, responses: Iterable[StoredResponse]) -> bytes:
    """Field lines whose name is no token are left out, and for CR, LF and NUL stands a space (RFC 9110 section 5.5).

    :raises ValueError: more than ``LARGEST`` octets, or a number of more than 64 bits.
    """
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
    body, lines, reason = stored.body, stored.fields.lines, stored.reason
    if not _are_fit(lines, reason):
        lines = tuple((name, _fit(value)) for name, value in lines if name and _of_tokens(name))
        reason = _fit(reason)
    return [
        stored.uri,
        stored.status,
        list(lines),
        list(stored.selecting),
        float(stored.request_time),
        float(stored.response_time),
        float(stored.confirmed),
        None if body is None else [body.name, body.length, body.digests],
        reason,
        stored.first,
    ]


def _unpack(packed: Any) -> StoredResponse:
    uri, status, fields, selecting, requested, responded, confirmed, body, reason, first = packed
    times, lines = (requested, responded, confirmed), _pairs(fields)
    if not all(type(time) is float and isfinite(time) for time in times):
        raise ValueError("a time that is none")
    if not 200 <= _number(status) <= 599 or status == 304 or not _are_fit(lines, _text(reason)):
        raise ValueError("a head that is no answer's")
    return StoredResponse(
        _text(uri),
        status,
        Fields(lines),
        tuple(_pairs(selecting)),
        *times,
        None if body is None else _body(*body),
        reason,
        _number(first),
    )


def _are_fit(lines: Sequence[tuple[str, str]], reason: str) -> bool:
    """Can every client hand these out? Names are tokens, values octets but for CR, LF and NUL."""
    names, values = [name for name, _ in lines], [value for _, value in lines]
    return "" not in names and bool(_of_tokens("".join(names)) and _of_values("".join([reason, *values])))


def _fit(value: str) -> str:
    return re.sub(f"[{_UNFIT}]", " ", value)


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
