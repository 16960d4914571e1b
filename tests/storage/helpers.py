"""What the tests of the storage share: keys, responses, storing and reading in one call, and an outside observer."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from vllm_http_cache.rfc9111.message import BodyRef, Fields, StoredResponse
from vllm_http_cache.storage.files import FileStorage
from vllm_http_cache.storage.protocol import BodyUnreadable, Record, Storage
from vllm_http_cache.storage.readers import BLOCK
from vllm_http_cache.storage.sweep import Sweep
from vllm_http_cache.storage.toolbox import Choice, usage

MIB = 1024 * 1024

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away and mount")


def key(name: object) -> str:
    return hashlib.sha256(str(name).encode()).hexdigest()


def keys_of_folder(folder: str) -> Iterator[str]:
    """Keys that share a folder, however many are asked for."""
    number = 0
    while True:
        yield folder + key(number)[2:]
        number += 1


def response(ref: BodyRef | None = None, *, at: float | None = None, tag: str = "a", uri: str = "") -> StoredResponse:
    at = time.time() if at is None else at
    fields = Fields([("Content-Type", "image/png"), ("ETag", f'"{tag}"')])
    return StoredResponse(uri or f"https://example.test/{tag}.png", 200, fields, (), at, at, at, ref)


def write_body(storage: Storage, name: str, data: bytes, *, length: bool = True) -> BodyRef | None:
    writer = storage.create_body(name, len(data) if length else None)
    if writer is None:
        return None
    for start in range(0, len(data), 300_000):
        if not writer.write(data[start : start + 300_000]):
            writer.abort()
            return None
    return writer.commit()


def store(
    storage: FileStorage, name: str, data: bytes, *, at: float | None = None, tag: str = "a", length: bool = True
) -> bool:
    """Store *data* as the only response of a key, whatever was there; whether it is there now."""
    ref = write_body(storage, name, data, length=length)
    if ref is None:
        return False
    kept = Record((response(ref, at=at, tag=tag),))
    while not storage.swap(name, storage.read(name), kept):
        pass
    return load(storage, name) == data


def read_body(storage: FileStorage, ref: BodyRef) -> bytes | None:
    """None: gone, damaged, or not to be read now."""
    reader = None
    parts = []
    offset = 0
    try:
        reader = storage.open_body(ref)
        if reader is None:
            return None
        while part := reader.read(offset, BLOCK):
            parts.append(part)
            offset += len(part)
    except BodyUnreadable:
        return None
    finally:
        if reader is not None:
            reader.close()
    return b"".join(parts)


def load(storage: FileStorage, name: str) -> bytes | None:
    """The body of a key's only response. None: a miss, of whatever kind."""
    record = storage.read(name)
    if record is None or record.responses[0].body is None:
        return None
    return read_body(storage, record.responses[0].body)


def warnings(caplog: pytest.LogCaptureFixture) -> int:
    """How many times the storage has warned."""
    return len([record for record in caplog.records if record.name == "vllm_http_cache.storage"])


def works_not(storage: FileStorage, name: str) -> bool:
    """Every method answers as if there were no cache."""
    assert storage.read(name) is None
    assert storage.create_body(name, 5) is None
    assert storage.swap(name, None, Record((response(),)))
    storage.forget(name)
    claim = storage.claim(name)
    assert claim is not None
    claim.release()
    assert storage.growing(name) is None
    return list(storage.scan()) == []


def stored_keys(storage: FileStorage) -> set[str]:
    return {stat.key for stat in storage.scan()}


def reserved(storage: FileStorage) -> int:
    return usage(storage).reserved


def own_folder(path: str | os.PathLike[str]) -> Path:
    return Path(path) / ".vllm-http-cache"


def v1(path: str | os.PathLike[str]) -> Path:
    return own_folder(path) / "v1"


def record_file(path: str | os.PathLike[str], name: str) -> Path:
    return v1(path) / name[:2] / name


def body_files(path: str | os.PathLike[str], name: str = "*") -> list[Path]:
    found: list[Path] = []
    for folder in v1(path).glob("[0-9a-f][0-9a-f]") if name == "*" else [v1(path) / name[:2]]:
        with suppress(FileNotFoundError, NotADirectoryError):  # others remove it when it is empty
            found += folder.glob(f"{name}.*")
    return sorted(found)


def flip(file: Path) -> None:
    """One bit, and nobody notices by size or time."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.chmod(0o600)
    file.write_bytes(data)
    file.chmod(0o400)


def occupied(path: str | os.PathLike[str]) -> int:
    """Octets that ``du`` would count in the cache's own folder."""
    total = 0
    stack = [str(own_folder(path))]
    while stack:
        folder = stack.pop()
        try:
            total += os.lstat(folder).st_blocks * 512
            with os.scandir(folder) as entries:
                for entry in entries:
                    try:
                        if entry.is_dir(follow_symlinks=False):
                            stack.append(entry.path)
                        else:
                            total += entry.stat(follow_symlinks=False).st_blocks * 512
                    except FileNotFoundError:
                        pass
        except FileNotFoundError:
            pass
    return total


def ledger_is_exact(storage: FileStorage) -> bool:
    """Whether the accounts are what counting everything anew gives."""
    place = storage._access.reading()
    assert place is not None
    with place.ledger.locked() as page:
        before = [page.account(folder) for folder in range(257)]
        for folder in range(257):
            place.ledger.count(page, folder)
        return before == [page.account(folder) for folder in range(257)] and sum(before) == page.used


def is_quiet(storage: FileStorage) -> bool:
    """Whether the janitor has done what it was asked to do."""
    return eventually(lambda: storage._room._janitor._thread is None)


def eventually(condition: Callable[[], object], seconds: float = 10.0) -> bool:
    """Whether the condition comes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


@contextmanager
def patched(owner: object, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def a_sweep(storage: FileStorage) -> Sweep:
    place = storage._access.place
    assert place
    return Sweep(place.home, place.ledger, time.time, time.time, storage._troubles.warn)


def by_uri(uri: str) -> Choice:
    return lambda stat: stat.stored.uri == uri
