"""HishelStorage: our storages' contract, as far as hishel's SQLite and Redis can hold it."""

from __future__ import annotations

import errno
import os
import sqlite3
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hishel import Headers, RedisStorage, SqliteStorage
from hishel import Request as HishelRequest
from hishel import Response as HishelResponse

from tests.core.memory import MemoryStorage
from tests.storage.faults import Nth, fail, intercepted
from tests.storage.helpers import MIB, key, response, write_body
from tests.storage_hishel.conftest import Clock, Make
from tests.storage_hishel.helpers import KEY, body, found, read_body, store
from vllm_http_cache.rfc9111.message import StoredResponse
from vllm_http_cache.storage.hishel import HishelStorage
from vllm_http_cache.storage.hishel.theirs import GRACE
from vllm_http_cache.storage.protocol import BodyUnreadable, Record, Storage


@pytest.fixture(params=["memory", "sqlite", "redis"])
def storage(request: pytest.FixtureRequest, make: Make) -> Storage:
    """What all storages do alike is tested with the smallest as well."""
    if request.param == "memory":
        return MemoryStorage()
    if request.param == "sqlite":
        return make()
    fakeredis = pytest.importorskip("fakeredis", reason="fakeredis is not installed")
    return make(hishel=RedisStorage(fakeredis.FakeRedis(), max_stream_size=None))


# The contract.


def test_it_is_a_storage(storage: Storage) -> None:
    assert isinstance(storage, Storage)
    assert storage.read(KEY) is None
    storage.forget(KEY)
    claim = storage.claim(KEY)
    assert claim
    claim.release()
    assert storage.growing(KEY) is None


def test_a_storage_that_cannot_list_says_so(make: Make) -> None:
    storage = make()
    with pytest.raises(NotImplementedError, match="SqliteStorage cannot list"):
        storage.scan()


@pytest.mark.parametrize("size", [0, 1, 100_000, MIB - 1, MIB, MIB + 1, 3 * MIB])
@pytest.mark.parametrize("length", [True, False], ids=["known", "unknown"])
def test_what_is_stored_is_read(storage: Storage, size: int, length: bool) -> None:
    data = os.urandom(size)
    ref = write_body(storage, KEY, data, length=length)
    assert ref
    assert ref.length == size
    assert storage.swap(KEY, None, Record((response(ref),)))
    assert read_body(storage, ref) == data


def test_a_response_survives_as_it_was(storage: Storage) -> None:
    ref = write_body(storage, KEY, b"body")
    stored = replace(response(ref), selecting=(("accept", "\u00e9"), ("cookie", "")), first=3, reason="Fine")
    bare = response(tag="bare")
    assert storage.swap(KEY, None, Record((stored, bare)))
    assert found(storage) == {stored, bare}
    seen = storage.read(KEY)
    assert storage.swap(KEY, seen, Record((bare,)))
    assert found(storage) == {bare}


def test_swap_compares(storage: Storage) -> None:
    one = store(storage, b"one", tag="1")
    seen = storage.read(KEY)
    assert not storage.swap(KEY, None, Record((response(tag="2"),))), "somebody had stored one"
    two = store(storage, b"two", tag="2")
    assert not storage.swap(KEY, seen, Record((response(tag="4"),))), "somebody was faster"
    assert found(storage) == {one, two}
    assert (body(storage, one), body(storage, two)) == (b"one", b"two")


def test_what_a_record_no_longer_has_goes(storage: Storage) -> None:
    old, kept = store(storage, b"old"), store(storage, b"kept", tag="b")
    seen = storage.read(KEY)
    renewed = replace(kept, confirmed=kept.confirmed + 1)
    assert storage.swap(KEY, seen, Record((renewed,)))
    assert found(storage) == {renewed}
    assert body(storage, renewed) == b"kept"
    if not isinstance(storage, MemoryStorage):  # whose tests like to look at what was there
        assert body(storage, old) is None
    assert storage.swap(KEY, storage.read(KEY), Record(()))
    assert storage.read(KEY) is None
    assert storage.swap(KEY, None, Record(())), "nothing is what there is"


def test_keys_are_apart_and_forgotten_alone(storage: Storage) -> None:
    stored = {name: store(storage, name.encode(), name) for name in map(key, range(3))}
    storage.forget(key(1))
    assert [bool(found(storage, key(number))) for number in range(3)] == [True, False, True]
    assert body(storage, stored[key(2)]) == key(2).encode()


def test_reads_are_like_pread(storage: Storage) -> None:
    data = os.urandom(2 * MIB + 77)
    ref = write_body(storage, KEY, data)
    assert ref
    reader = storage.open_body(ref)
    assert reader
    assert reader.length == len(data)
    for offset, size in [(2 * MIB, 1000), (0, 1), (5, 100), (MIB - 1, 1), (MIB, 7), (len(data) - 1, 5), (7, 9)]:
        assert reader.read(offset, size) == data[offset : offset + size]
    across = reader.read(MIB - 3, 10)
    assert across
    assert data[MIB - 3 :].startswith(across)
    assert reader.read(len(data), 10) == b""
    assert reader.read(len(data) + 5, 10) == b""
    reader.close()


def test_threads_share_a_reader(storage: Storage) -> None:
    data = os.urandom(3 * MIB)
    ref = write_body(storage, KEY, data)
    assert ref
    reader = storage.open_body(ref)
    assert reader
    offsets = [offset * 65_536 for offset in range(48)] * 2
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda offset: reader.read(offset, 100), offsets))
    assert parts == [data[offset : offset + 100] for offset in offsets]
    reader.close()


def test_a_growing_body_is_followed(storage: Storage) -> None:
    writer = storage.create_body(KEY, None)
    assert writer
    reader = writer.follow()
    assert (reader.length, reader.read(0, 10)) == (0, b"")
    assert writer.write(b"abc")
    assert (reader.length, reader.read(1, 10)) == (3, b"bc")
    assert writer.write(b"def")
    ref = writer.commit()
    assert ref
    writer.abort()
    assert reader.read(2, 10) == b"cdef", "also after the end"
    reader.close()
    assert read_body(storage, ref) == b"abcdef"


def test_a_follower_needs_no_descriptor_of_its_own(storage: Storage) -> None:
    writer = storage.create_body(KEY, None)
    assert writer
    assert writer.write(b"abc")
    with intercepted(Nth(1, fail(errno.EMFILE), on=True)):
        reader = writer.follow()
    writer.abort()
    assert reader.read(0, 10) == b"abc"
    reader.close()


def test_a_reader_outlives_the_body(storage: Storage) -> None:
    data = os.urandom(3 * MIB)
    stored = store(storage, data)
    assert stored.body
    reader = storage.open_body(stored.body)
    assert reader
    assert reader.read(0, 10) == data[:10]
    storage.forget(KEY)
    assert reader.read(2 * MIB, 10) == data[2 * MIB : 2 * MIB + 10]
    reader.close()


def test_threads_that_change_a_key_lose_nothing(storage: Storage) -> None:
    def add(number: int) -> StoredResponse:
        ref = write_body(storage, KEY, b"%d" % number)
        stored = response(ref, tag=str(number))
        seen = storage.read(KEY)
        while not storage.swap(KEY, seen, Record((stored, *(seen.responses if seen else ())))):
            seen = storage.read(KEY)
        return stored

    with ThreadPoolExecutor(8) as pool:
        added = list(pool.map(add, range(24)))
    assert found(storage) == set(added)
    assert [body(storage, stored) for stored in added] == [b"%d" % number for number in range(24)]


# What is particular to hishel's.


def test_it_never_answers_at_once(make: Make) -> None:
    storage = make()
    stored = store(storage, bytes(2 * MIB))
    assert stored.body
    with pytest.raises(BlockingIOError):
        storage.read(KEY, wait=False)
    with pytest.raises(BlockingIOError):
        storage.open_body(stored.body, wait=False)
    reader = storage.open_body(stored.body)
    assert reader
    assert reader.read(0, 10) == reader.read(10, 10, wait=False), "but for a block that is there"
    with pytest.raises(BlockingIOError):
        reader.read(MIB, 1, wait=False)


def test_another_process_reads_it_too(make: Make) -> None:
    stored = store(make(), b"body")
    assert found(make()) == {stored}
    assert body(make(), stored) == b"body"


def test_nothing_is_read_past_the_ttl(make: Make, clock: Clock) -> None:
    storage = make(ttl=100.0)
    old = store(storage, b"old", at=clock())
    new = store(storage, b"new", at=clock() + 50, tag="b")
    clock.ahead = 110
    assert found(storage) == {new}
    seen = storage.read(KEY)
    assert storage.swap(KEY, seen, seen or Record(()))
    assert body(storage, old) is None, "the expired part goes with the next change"
    clock.ahead = 160
    assert storage.read(KEY) is None
    assert storage.swap(KEY, None, Record(())), "what has expired is not there"
    clock.ahead = -1000
    assert storage.read(KEY) is None, "confirmed in the future"


def test_hishel_is_told_the_ttl(make: Make, database: Path) -> None:
    def deadlines() -> list[float]:
        with sqlite3.connect(database) as connection:
            return [
                deadline - at
                for deadline, at in connection.execute("SELECT ttl_deadline, last_accessed_at FROM entries")
            ]

    store(make(ttl=100.0, default_ttl=5.0), b"body")
    (deadline,) = deadlines()
    assert 99 < deadline < 101
    make().forget(KEY)
    store(make(ttl=inf, default_ttl=5.0), b"body", key("b"))
    assert max(deadlines()) > 1e8


def test_what_is_larger_than_hishel_takes_is_not_stored(make: Make) -> None:
    storage = make(max_stream_size=10)
    assert storage.create_body(KEY, 11) is None
    assert write_body(storage, KEY, b"12345678901", length=False) is None
    assert write_body(storage, KEY, b"1234567890", length=False)


def test_a_body_of_another_length_is_not_stored(make: Make) -> None:
    writer = make().create_body(KEY, 5)
    assert writer
    assert writer.write(b"four")
    assert writer.commit() is None


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_body_that_nobody_commits_leaves_nothing(make: Make, database: Path) -> None:
    storage = make()
    before = descriptors()
    for end in ("abort", "drop"):
        writer = storage.create_body(KEY, None)
        assert writer
        assert writer.write(b"x")
        if end == "abort":
            writer.abort()
        del writer
    assert descriptors() == before
    assert not database.exists()


def test_a_body_without_a_record_goes_some_time_later(make: Make, clock: Clock) -> None:
    storage = make(ttl=1e6)
    orphan = write_body(storage, KEY, b"orphan")
    assert orphan
    store(storage, b"one", at=clock())
    assert read_body(storage, orphan) == b"orphan", "its record may be on its way"
    clock.ahead = GRACE + 1
    store(storage, b"two", at=clock(), tag="b")
    assert read_body(storage, orphan) is None
    assert len(found(storage)) == 2


def test_a_response_that_fits_no_record_is_not_stored_and_replaces_all_the_same(make: Make) -> None:
    storage = make()
    old = store(storage, b"old")
    huge = replace(old, selecting=(("a", "b" * 2 * MIB),))
    assert storage.swap(KEY, storage.read(KEY), Record((huge,)))
    assert storage.read(KEY) is None


def test_memory_does_not_grow_with_the_body(make: Make) -> None:
    storage = make()
    size = 48 * MIB
    tracemalloc.start()
    try:
        writer = storage.create_body(KEY, size)
        assert writer
        for _ in range(size // 65_536):
            assert writer.write(bytes(65_536))
        ref = writer.commit()
        assert ref
        reader = storage.open_body(ref)
        assert reader
        offset = 0
        while data := reader.read(offset, 65_536):
            offset += len(data)
        assert offset == size
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()


def test_hishels_own_entries_lie_beside(make: Make, database: Path) -> None:
    storage = make()
    hishel = SqliteStorage(database_path=database)
    entry = hishel.create_entry(HishelRequest("GET", "u"), HishelResponse(200, Headers({}), iter([b"theirs"])), KEY)
    stream: Any = entry.response.stream
    assert b"".join(stream) == b"theirs"
    stored = store(storage, b"ours")
    assert found(storage) == {stored}
    storage.forget(KEY)
    assert len(hishel.get_entries(KEY)) == 1
    hishel.close()


def test_processes_that_change_a_key_at_once_mix_nothing_up(make: Make) -> None:
    storages = [make() for _ in range(4)]

    def change(storage: HishelStorage) -> None:
        for number in range(10):
            text = f"{id(storage)} {number}"
            ref = write_body(storage, KEY, text.encode() * 20_000)
            seen = storage.read(KEY)
            kept = seen.responses[:2] if seen else ()
            storage.swap(KEY, seen, Record((response(ref, tag=text), *kept)))

    with ThreadPoolExecutor(len(storages)) as pool:
        list(pool.map(change, storages))
    for stored in found(make()):
        text = (stored.fields.get("etag") or "").strip('"')
        assert body(storages[0], stored) == text.encode() * 20_000


def test_close_is_idempotent_and_final(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    storage = make()
    stored = store(storage, os.urandom(2 * MIB))
    writer = storage.create_body(KEY, None)
    assert writer
    assert stored.body
    reader = storage.open_body(stored.body)
    assert reader
    storage.close()
    storage.close()
    assert storage.read(KEY) is None
    assert storage.create_body(KEY, 1) is None
    assert storage.swap(KEY, None, Record((response(),)))
    assert storage.open_body(stored.body) is None
    assert not writer.write(b"x")
    assert writer.commit() is None
    with pytest.raises(BodyUnreadable):
        reader.read(0, 1)
    reader.close()
    assert caplog.records == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_finds_nothing_and_harms_nothing(make: Make) -> None:
    storage = make()
    stored = store(storage, b"body")
    child = os.fork()
    if child == 0:
        try:
            storage.swap(KEY, None, Record(()))
            storage.forget(KEY)
            os._exit(0 if storage.read(KEY) is None and write_body(storage, KEY, b"x") is None else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert found(storage) == {stored}
