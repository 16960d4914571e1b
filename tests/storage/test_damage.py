"""Rules about damage: found before a wrong octet is given out; what is damaged is dropped and can be stored again."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.conftest import Make
from tests.storage.faults import Nth, fail, intercepted
from tests.storage.helpers import (
    MIB,
    body_files,
    eventually,
    is_quiet,
    key,
    load,
    record_file,
    response,
    store,
    v1,
    warnings,
    write_body,
)
from vllm_http_cache.rfc9111.message import BodyRef
from vllm_http_cache.storage import readers
from vllm_http_cache.storage.files import FileStorage
from vllm_http_cache.storage.protocol import BodyDamaged, BodyReader, BodyUnreadable, Record
from vllm_http_cache.storage.toolbox import sweep

KEY = key("damage")
FLIGHT = key("flight")


def damage(file: Path, data: bytes) -> None:
    file.chmod(0o600)
    file.write_bytes(data)
    file.chmod(0o400)


def flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


@pytest.mark.parametrize("size", [1, 100_000, MIB, 3 * MIB + 17, 16 * MIB])
@pytest.mark.parametrize("how", ["cut", "longer", "emptied", "first", "last", "zeros", "gone", "folder", "pipe"])
def test_damage_is_found_before_the_first_octet(storage: FileStorage, tmp_path: Path, size: int, how: str) -> None:
    data = os.urandom(size)
    assert store(storage, KEY, data)
    (file,) = body_files(tmp_path / "cache")
    match how:
        case "gone" | "folder" | "pipe":
            file.unlink()
            if how != "gone":
                {"folder": os.mkdir, "pipe": os.mkfifo}[how](file)
        case _:
            damaged = {
                "cut": data[:-1],
                "longer": data + b"x",
                "emptied": b"",
                "first": flipped(data, 0),
                "last": flipped(data, size - 1),
                "zeros": bytes(size),
            }
            damage(file, damaged[how])
    assert load(storage, KEY) is None
    assert eventually(lambda: storage.read(KEY) is None), "its response is dropped"
    assert store(storage, KEY, data), "and it can be stored again"


def test_a_pipe_in_a_files_place_does_not_hold_anybody_up(storage: FileStorage, tmp_path: Path) -> None:
    assert store(storage, KEY, b"x")
    os.mkfifo(v1(tmp_path / "cache") / "growing" / FLIGHT)
    assert storage.growing(FLIGHT) is None
    sweep(storage)
    assert not (v1(tmp_path / "cache") / "growing" / FLIGHT).exists()


def test_swapped_bodies_are_damaged(storage: FileStorage, tmp_path: Path) -> None:
    assert store(storage, KEY, b"a" * 1000)
    assert store(storage, key(2), b"b" * 1000)
    (one,), (two,) = body_files(tmp_path / "cache", KEY), body_files(tmp_path / "cache", key(2))
    content = one.read_bytes()
    damage(one, two.read_bytes())
    damage(two, content)
    assert load(storage, KEY) is None
    assert load(storage, key(2)) is None


def test_a_large_body_is_checked_block_by_block(storage: FileStorage, tmp_path: Path) -> None:
    data = os.urandom(17 * MIB)
    assert store(storage, KEY, data)
    (file,) = body_files(tmp_path / "cache")
    damage(file, flipped(data, 9 * MIB))
    record = storage.read(KEY)
    assert record and record.responses[0].body
    reader = storage.open_body(record.responses[0].body)
    assert reader
    assert reader.read(8 * MIB, MIB) == data[8 * MIB : 9 * MIB]
    with pytest.raises(BodyDamaged):
        reader.read(9 * MIB + 1000, 10)
    assert eventually(lambda: storage.read(KEY) is None)
    reader.close()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM, errno.EACCES, errno.ESTALE, errno.EIO])
@pytest.mark.parametrize("size, calls", [(1000, ["open", "pread"]), (2 * MIB, ["open", "fstat", "pread"])])
def test_what_cannot_be_opened_now_is_no_damage(storage: FileStorage, code: int, size: int, calls: list[str]) -> None:
    data = os.urandom(size)
    assert store(storage, KEY, data)
    record = storage.read(KEY)
    assert record and record.responses[0].body
    for call in calls:
        with intercepted(Nth(1, fail(code), only=call, on=True)):
            assert storage.open_body(record.responses[0].body) is None
    assert is_quiet(storage) and load(storage, KEY) == data


def test_a_disk_that_fails_in_the_middle_is_no_damage(storage: FileStorage, caplog: pytest.LogCaptureFixture) -> None:
    data = os.urandom(17 * MIB)
    assert store(storage, KEY, data)
    reader = large_body(storage)
    with intercepted(Nth(1, fail(errno.EIO), only="pread")), pytest.raises(BodyUnreadable) as raised:
        reader.read(0, 10)
    assert not isinstance(raised.value, BodyDamaged)
    assert warnings(caplog) == 1
    assert reader.read(0, 10) == data[:10]
    assert is_quiet(storage) and load(storage, KEY) == data
    reader.close()


def test_a_closed_reader_is_no_damage(storage: FileStorage) -> None:
    assert store(storage, KEY, os.urandom(2 * MIB))
    reader = large_body(storage)
    reader.close()
    with pytest.raises(ValueError, match="closed"):
        reader.read(0, 10)
    assert is_quiet(storage) and load(storage, KEY)


def test_a_read_under_way_when_its_reader_is_closed_ends_well(storage: FileStorage, tmp_path: Path) -> None:
    data = os.urandom(20 * MIB)
    assert store(storage, KEY, data)
    reader = large_body(storage)
    others: list[int] = []

    def close_and_open() -> None:
        reader.close()
        others.append(os.open(tmp_path, os.O_RDONLY))  # takes the number, if it is free

    with intercepted(Nth(1, close_and_open, only="pread")):
        assert reader.read(0, MIB) == data[:MIB]
    os.close(*others)
    assert is_quiet(storage) and load(storage, KEY)


def large_body(storage: FileStorage) -> BodyReader:
    record = storage.read(KEY)
    assert record and record.responses[0].body
    reader = storage.open_body(record.responses[0].body)
    assert reader
    return reader


@pytest.mark.parametrize(
    "ref",
    [
        BodyRef("../../../../etc/passwd", 10, b"x" * 8),
        BodyRef(KEY, 10, b"x" * 8),
        BodyRef(f"{KEY}.{'0' * 16}", 10, b""),
        BodyRef(f"{KEY}.{'0' * 16}", 2**40, b"x" * 8),
        BodyRef(f"{KEY}.{'0' * 16}", 10, b"x" * 8),
    ],
)
def test_a_reference_to_nothing_opens_nothing(storage: FileStorage, ref: BodyRef) -> None:
    assert store(storage, KEY, b"")
    with pytest.raises(BodyDamaged):
        storage.open_body(ref)


@pytest.mark.parametrize(
    "junk", [b"", b"\0" * 4096, b"garbage", b"vhcrec\x00\x02" + bytes(60), os.urandom(2 * MIB)], ids=range(5)
)
def test_a_damaged_record_is_a_miss_and_goes(storage: FileStorage, tmp_path: Path, junk: bytes) -> None:
    assert store(storage, KEY, b"body")
    file = record_file(tmp_path / "cache", KEY)
    file.write_bytes(junk)
    assert storage.read(KEY) is None
    assert eventually(lambda: not file.exists())
    assert store(storage, KEY, b"again")


@pytest.mark.parametrize("make_it", [os.mkdir, os.mkfifo, lambda path: path.symlink_to("/etc/passwd")])
def test_what_is_no_file_is_no_record(storage: FileStorage, tmp_path: Path, make_it: Callable[[Path], None]) -> None:
    assert store(storage, KEY, b"body")
    file = record_file(tmp_path / "cache", KEY)
    file.unlink()
    make_it(file)
    assert storage.read(KEY) is None
    assert load(storage, KEY) is None


def test_swapped_records_are_misses(storage: FileStorage, tmp_path: Path) -> None:
    assert store(storage, KEY, b"1")
    assert store(storage, key(2), b"2")
    one, two = record_file(tmp_path / "cache", KEY), record_file(tmp_path / "cache", key(2))
    content = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(content)
    assert storage.read(KEY) is None
    assert storage.read(key(2)) is None


def test_threads_share_a_reader(storage: FileStorage) -> None:
    data = os.urandom(8 * MIB)
    ref = write_body(storage, KEY, data)
    assert ref
    reader = storage.open_body(ref)
    assert reader
    wrong: list[int] = []

    def read(start: int) -> None:
        for offset in range(start, len(data), 150_001):
            part = reader.read(offset, 65_536)
            if not part or part != data[offset : offset + len(part)]:
                wrong.append(offset)

    threads = [threading.Thread(target=read, args=(start,)) for start in range(0, 4000, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    reader.close()


def test_a_block_is_what_a_digest_is_of() -> None:
    assert readers.BLOCK == MIB


def test_a_record_may_name_no_body(storage: FileStorage) -> None:
    assert storage.swap(KEY, None, Record((response(),)))
    record = storage.read(KEY)
    assert record
    assert record.responses[0].body is None


@pytest.mark.parametrize("what", ["folder", "link", "dangling link"])
def test_something_else_is_in_a_files_place(make: Make, tmp_path: Path, what: str) -> None:
    assert store(make(), key(1), b"before")
    path = v1(tmp_path / "cache") / "sweep"
    path.unlink(missing_ok=True)
    outside = tmp_path / "outside"
    outside.write_bytes(b"outside")
    match what:
        case "folder":
            path.mkdir()
        case "link":
            path.symlink_to(outside)
        case "dangling link":
            path.symlink_to(tmp_path / "nowhere")
    sweep(make())
    assert outside.read_bytes() == b"outside"
    assert path.is_file() and not path.is_symlink()


def test_another_process_file_does_not_give_way(make: Make, tmp_path: Path) -> None:
    storage = make()
    assert store(storage, key(1), b"x")
    place = storage._access.place
    assert place is not None
    path = v1(tmp_path / "cache") / "sweep"
    path.touch()
    place.home._clear("sweep")  # as one does who was just about to replace what was there before
    assert path.exists()
