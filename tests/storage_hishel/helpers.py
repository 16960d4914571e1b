"""What the tests of our storage over hishel's share: storing and reading in one call."""

from __future__ import annotations

from typing import Any

from tests.storage.helpers import MIB, key, response, write_body
from vllm_http_cache.rfc9111.message import BodyRef, StoredResponse
from vllm_http_cache.storage.protocol import Record, Storage

KEY = key("contract")


def read_body(storage: Storage, ref: BodyRef) -> bytes | None:
    """None: gone."""
    reader = storage.open_body(ref)
    if reader is None:
        return None
    data = b""
    while part := reader.read(len(data), MIB):
        data += part
    reader.close()
    return data


def store(storage: Storage, data: bytes, name: str = KEY, **how: Any) -> StoredResponse:
    """Add a response to what is stored for a key."""
    ref = write_body(storage, name, data)
    assert ref
    stored = response(ref, **how)
    seen = storage.read(name)
    assert storage.swap(name, seen, Record((stored, *(seen.responses if seen else ()))))
    return stored


def found(storage: Storage, name: str = KEY) -> set[StoredResponse]:
    record = storage.read(name)
    return set(record.responses) if record else set()


def body(storage: Storage, stored: StoredResponse) -> bytes | None:
    assert stored.body
    return read_body(storage, stored.body)
