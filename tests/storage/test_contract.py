"""The storage's contract, as storage/protocol.py states it, in one process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import pytest

from tests.storage.actors import quiet
from tests.storage.conftest import Clock, Make
from tests.storage.helpers import (
    MIB,
    body_files,
    eventually,
    key,
    ledger_is_exact,
    load,
    occupied,
    own_folder,
    read_body,
    record_file,
    response,
    store,
    v1,
    write_body,
)
from vllm_http_cache.storage.files import FileStorage
from vllm_http_cache.storage.protocol import BodyDamaged, Record, Storage

KEY = key("contract")


def test_it_is_a_storage(storage: FileStorage) -> None:
    assert isinstance(storage, Storage)
    assert storage.ttl == 86_400


def test_nothing_is_made_before_something_is_stored(storage: FileStorage, tmp_path: Path) -> None:
    assert storage.read(KEY) is None
    assert storage.growing(KEY) is None
    storage.forget(KEY)
    assert list(storage.scan()) == []
    assert list(tmp_path.iterdir()) == []


def test_importing_it_loads_no_client_and_no_settings() -> None:
    code = (
        "import sys, vllm_http_cache.storage.files\n"
        "print({'pydantic', 'typer', 'httpx', 'aiohttp', 'requests', 'hishel', 'anyio', 'asyncio'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"


@pytest.mark.parametrize("size", [0, 1, 4096, 100_000, MIB - 1, MIB, MIB + 1, 3 * MIB, 17 * MIB + 5])
@pytest.mark.parametrize("length", [True, False], ids=["known", "unknown"])
def test_what_is_stored_is_read(storage: FileStorage, size: int, length: bool) -> None:
    data = os.urandom(size)
    assert store(storage, KEY, data, length=length)
    assert load(storage, KEY) == data
    assert ledger_is_exact(storage)


def test_a_record_survives_as_it_was(storage: FileStorage) -> None:
    stored = replace(response(), selecting=(("accept", "a"), ("cookie", "")), first=3, reason="Fine")
    assert storage.swap(KEY, None, Record((stored, response(tag="b"))))
    record = storage.read(KEY)
    assert record is not None
    assert record.responses[0] == stored
    assert len(record.responses) == 2


def test_another_process_reads_it_too(make: Make) -> None:
    assert store(make(), KEY, b"body")
    assert load(make(), KEY) == b"body"


def test_swap_compares_generations(storage: FileStorage, make: Make) -> None:
    other = make()
    assert storage.swap(KEY, None, Record((response(tag="1"),)))
    seen = storage.read(KEY)
    assert not storage.swap(KEY, None, Record((response(tag="2"),))), "somebody had stored one"
    assert other.swap(KEY, other.read(KEY), Record((response(tag="3"),)))
    assert not storage.swap(KEY, seen, Record((response(tag="4"),))), "somebody was faster"
    now = storage.read(KEY)
    assert now is not None
    assert [stored.fields.get("etag") for stored in now.responses] == ['"3"']


def test_two_records_alike_are_two_generations(make: Make) -> None:
    """Inode, size and the clock's tick may all be the same again."""
    now = time.time()
    storage = make(clock=lambda: now)
    stored = response(at=now)
    generations = set()
    for _ in range(50):
        assert storage.swap(KEY, storage.read(KEY), Record((stored,)))
        record = storage.read(KEY)
        assert record is not None
        generations.add(record.generation)
    assert len(generations) == 50


def test_swap_releases_the_bodies_that_only_the_old_record_names(storage: FileStorage, tmp_path: Path) -> None:
    old, new, kept = (write_body(storage, KEY, data) for data in (b"old", b"new", b"kept"))
    assert old and new and kept
    assert storage.swap(KEY, None, Record((response(old), response(kept, tag="b"))))
    assert storage.swap(KEY, storage.read(KEY), Record((response(new), response(kept, tag="b"))))
    assert {file.name for file in body_files(tmp_path / "cache")} == {new.name, kept.name}
    assert read_body(storage, old) is None
    assert read_body(storage, kept) == b"kept"


def test_a_304_writes_the_record_only(storage: FileStorage, tmp_path: Path) -> None:
    assert store(storage, KEY, b"body")
    (body,) = body_files(tmp_path / "cache")
    before = body.stat()
    record = storage.read(KEY)
    assert record
    assert storage.swap(
        KEY, record, Record((replace(record.responses[0], confirmed=record.responses[0].confirmed + 1),))
    )
    after = body.stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )


def test_an_empty_record_is_a_removal(storage: FileStorage, tmp_path: Path) -> None:
    assert store(storage, KEY, b"body")
    assert storage.swap(KEY, storage.read(KEY), Record(()))
    assert storage.read(KEY) is None
    assert body_files(tmp_path / "cache") == []
    assert storage.swap(KEY, None, Record(())), "nothing is what there is"


def test_a_removal_compares_generations_too(storage: FileStorage) -> None:
    assert store(storage, KEY, b"old")
    seen = storage.read(KEY)
    assert storage.swap(KEY, seen, Record((response(write_body(storage, KEY, b"new")),)))
    assert not storage.swap(KEY, seen, Record(())), "somebody was faster"
    assert not storage.swap(KEY, None, Record(()))
    assert load(storage, KEY) == b"new"


def test_forget_removes_record_and_bodies(storage: FileStorage, tmp_path: Path) -> None:
    assert store(storage, KEY, b"body")
    storage.forget(KEY)
    assert storage.read(KEY) is None
    assert not record_file(tmp_path / "cache", KEY).exists()
    assert body_files(tmp_path / "cache") == []
    assert ledger_is_exact(storage)


def test_a_reader_outlives_the_body(storage: FileStorage) -> None:
    data = os.urandom(5 * MIB)
    for size in (10, len(data)):
        ref = write_body(storage, KEY, data[:size])
        assert ref
        reader = storage.open_body(ref)
        assert reader
        assert storage.swap(KEY, storage.read(KEY), Record((response(ref),)))
        storage.forget(KEY)
        with pytest.raises(BodyDamaged):
            storage.open_body(ref)
        assert reader.read(size - 10, 100) == data[size - 10 : size]
        reader.close()


def test_reads_are_like_pread(storage: FileStorage) -> None:
    data = os.urandom(2 * MIB + 77)
    ref = write_body(storage, KEY, data)
    assert ref
    reader = storage.open_body(ref)
    assert reader
    assert reader.length == len(data)
    for offset, size in [(0, 1), (5, 100), (MIB - 1, 1), (MIB, 7), (2 * MIB, 1000), (len(data) - 1, 5)]:
        assert reader.read(offset, size) == data[offset : offset + size]
    across = reader.read(MIB - 3, 10)
    assert across
    assert data[MIB - 3 :].startswith(across)
    assert reader.read(len(data), 10) == b""
    assert reader.read(len(data) + 5, 10) == b""
    reader.close()


def test_scan_lists_what_is_stored(storage: FileStorage, tmp_path: Path) -> None:
    bodies = {key(number): os.urandom(5000 * number) for number in range(20)}
    for name, data in bodies.items():
        assert store(storage, name, data)
    stats = {stat.key: stat for stat in storage.scan()}
    assert set(stats) == set(bodies)
    for name, stat in stats.items():
        files = [record_file(tmp_path / "cache", name), *body_files(tmp_path / "cache", name)]
        assert stat.size >= sum(file.stat().st_blocks * 512 for file in files)
        assert stat.stored.body
        assert stat.stored.body.length == len(bodies[name])
    assert storage.stat(key(3)) == [stats[key(3)]]


def test_the_folder_says_that_it_is_a_cache(storage: FileStorage, tmp_path: Path) -> None:
    assert store(storage, KEY, b"")
    tag = (own_folder(tmp_path / "cache") / "CACHEDIR.TAG").read_bytes()
    assert tag.startswith(b"Signature: 8a477f597d28d172789f06886806bc55\n")


def test_only_the_owner_can_look(storage: FileStorage, tmp_path: Path) -> None:
    assert store(storage, KEY, b"x")
    for path in own_folder(tmp_path / "cache").rglob("*"):
        if path.name != "CACHEDIR.TAG":
            assert path.stat().st_mode & 0o077 == 0, path


def test_a_group_shares_whatever_the_umask(make: Make, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        storage = make(group=True)
        assert store(storage, KEY, b"x")
        writer = storage.create_body(KEY, None)
        assert writer
        writer.write(b"y")
        for path in own_folder(tmp_path / "cache").rglob("*"):
            mode = path.stat().st_mode & 0o7777
            if path.is_dir():
                assert mode == 0o2770, path
            elif path.name != "CACHEDIR.TAG":
                assert mode in {0o660, 0o440}, path
        writer.abort()
    finally:
        os.umask(before)


def test_no_word_of_a_user_is_in_a_name(storage: FileStorage, tmp_path: Path) -> None:
    stored = response(uri="https://secret.test/secret?secret")
    assert storage.swap(KEY, None, Record((stored,)))
    assert not [path for path in tmp_path.rglob("*") if "secret" in path.name]


@pytest.mark.parametrize("name", ["", "abc", "../" * 22, "A" * 64, KEY[:-1] + "/", KEY + "0"])
def test_what_is_no_key_is_refused(storage: FileStorage, name: str) -> None:
    assert store(storage, KEY, b"")
    for call in (lambda: storage.read(name), lambda: storage.create_body(name, 1), lambda: storage.forget(name)):
        with pytest.raises(ValueError, match="not a key"):
            call()


@pytest.mark.parametrize(
    "limits",
    [
        {"max_size": -1},
        {"max_size": 10**320},
        {"max_entry_size": -1},
        {"max_entry_size": 2**63},
        {"ttl": -1.0},
        {"ttl": nan},
        {"free_space_floor": -1},
        {"free_space_floor": 2**63},
    ],
)
def test_a_limit_that_is_none_is_refused(tmp_path: Path, limits: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="limit"):
        FileStorage(tmp_path, **limits)  # type: ignore[arg-type]


# Age.


def test_nothing_is_read_past_the_ttl(make: Make, clock: Clock) -> None:
    storage = make(ttl=100.0)
    assert store(storage, KEY, b"x", at=clock())
    clock.ahead = 99
    assert storage.read(KEY)
    clock.ahead = 101
    assert storage.read(KEY) is None
    assert storage.swap(KEY, None, Record((response(at=clock()),))), "what has expired is not there"


def test_hits_do_not_extend_and_a_confirmation_does(make: Make, clock: Clock) -> None:
    storage = quiet(make(ttl=100.0))
    assert store(storage, KEY, b"x", at=clock())
    clock.ahead = 90
    record = storage.read(KEY)
    assert record
    clock.ahead = 110
    assert storage.read(KEY) is None
    clock.ahead = 90
    assert storage.swap(KEY, record, Record((replace(record.responses[0], confirmed=clock()),)))
    clock.ahead = 180
    assert load(storage, KEY) == b"x"


def test_an_infinite_ttl_keeps(make: Make, clock: Clock) -> None:
    storage = make(ttl=inf)
    assert store(storage, KEY, b"x", at=clock())
    clock.ahead = 1e9
    assert storage.read(KEY)


def test_a_confirmation_in_the_future_has_expired(make: Make, clock: Clock) -> None:
    storage = make()
    assert storage.swap(KEY, None, Record((response(at=clock() + 10),)))
    assert storage.read(KEY), "clocks differ by seconds"
    assert storage.swap(KEY, storage.read(KEY), Record((response(at=clock() + 3600),)))
    assert storage.read(KEY) is None


def test_the_expired_part_of_a_record_is_not_read_and_its_body_goes(make: Make, clock: Clock, tmp_path: Path) -> None:
    storage = quiet(make(ttl=100.0))
    old, new = write_body(storage, KEY, b"old"), write_body(storage, KEY, b"new")
    assert old and new
    assert storage.swap(KEY, None, Record((response(old, at=clock()), response(new, at=clock() + 50, tag="b"))))
    clock.ahead = 110
    record = storage.read(KEY)
    assert record
    assert [stored.body for stored in record.responses] == [new]
    assert storage.swap(KEY, record, record)
    assert [file.name for file in body_files(tmp_path / "cache")] == [new.name]


# Size of records.


def test_a_record_that_grows_too_large_loses_what_was_confirmed_longest_ago(storage: FileStorage, clock: Clock) -> None:
    many = [replace(response(at=clock() - number), selecting=(("a", "b" * 60_000),)) for number in range(30)]
    assert storage.swap(KEY, None, Record(tuple(many)))
    record = storage.read(KEY)
    assert record
    assert 10 < len(record.responses) < 30
    assert record.responses == tuple(many[: len(record.responses)])


def test_a_response_that_fits_no_record_is_not_stored(storage: FileStorage) -> None:
    assert storage.swap(KEY, None, Record((response(tag="a" * 2 * MIB),)))
    assert storage.read(KEY) is None


# The end.


def test_close_is_idempotent_and_final(storage: FileStorage, tmp_path: Path) -> None:
    assert store(storage, KEY, b"x")
    writer = storage.create_body(KEY, 5)
    assert writer
    storage.close()
    storage.close()
    assert storage.read(KEY) is None
    assert storage.create_body(KEY, 1) is None
    assert storage.swap(KEY, None, Record((response(),)))
    assert list(storage.scan()) == []
    assert storage.claim(KEY) is not None
    assert not writer.write(b"x")
    assert writer.commit() is None
    writer.abort()
    assert list((v1(tmp_path / "cache") / "writers").glob("*.d")) == [], "nothing unfinished is left"


def test_who_is_still_under_way_when_it_is_closed_is_no_writer_again(storage: FileStorage) -> None:
    storage.open()
    place = storage._access.place
    assert place
    storage.close()
    assert not place.join(storage.limits.max_size)
    assert place.claims.take(KEY)
    held = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.exists()]
    assert [path for path in held if "writers" in path or "claims" in path] == []


def test_close_gives_every_descriptor_back(make: Make) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    for _ in range(3):
        storage = make()
        assert store(storage, KEY, os.urandom(2 * MIB))
        assert storage.claim(KEY)
        storage.close()
    assert eventually(lambda: descriptors() == before)


def test_a_writer_that_is_simply_dropped_gives_its_room_back(storage: FileStorage, tmp_path: Path) -> None:
    for _ in range(3):
        writer = storage.create_body(KEY, MIB)
        assert writer
        writer.write(bytes(1000))
        del writer
    assert store(storage, KEY, b"x")
    place = storage._access.place
    assert place
    assert place.ledger.held == 0
    assert list(v1(tmp_path / "cache").glob("writers/*.d/*")) == []
    assert occupied(tmp_path / "cache") < MIB
