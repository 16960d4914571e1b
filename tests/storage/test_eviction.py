"""What goes when there is no room, the least recently used first, and who waits for it."""

from __future__ import annotations

import errno
import os
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.storage.conftest import Clock, Make
from tests.storage.faults import intercepted
from tests.storage.helpers import (
    MIB,
    a_sweep,
    body_files,
    eventually,
    is_quiet,
    key,
    keys_of_folder,
    ledger_is_exact,
    load,
    patched,
    record_file,
    response,
    store,
    stored_keys,
    write_body,
)
from vllm_http_cache.rfc9111.message import BodyRef
from vllm_http_cache.storage import room
from vllm_http_cache.storage import sweep as sweeping
from vllm_http_cache.storage.files import FileStorage
from vllm_http_cache.storage.locks import lock
from vllm_http_cache.storage.protocol import Record
from vllm_http_cache.storage.shelf import Shelf
from vllm_http_cache.storage.toolbox import sweep, trim, usage

KEY = key("eviction")


def test_the_least_recently_used_goes_first(make: Make, clock: Clock) -> None:
    storage = make()
    names = [key(number) for number in range(20)]
    for name in names:
        clock.ahead += 1
        assert store(storage, name, bytes(100_000))
    clock.ahead += 100
    for name in names[::3]:
        assert storage.read(name)
    trim(storage, usage(storage).used // 2)
    left = stored_keys(storage)
    assert set(names[::3]) <= left
    evicted = [name for name in names if name not in left]
    assert evicted == [name for name in names if name not in names[::3]][: len(evicted)], "in the order of use"
    assert ledger_is_exact(storage)


def test_a_use_is_noted_once_a_minute(make: Make, clock: Clock, tmp_path: Path) -> None:
    storage = make()
    assert store(storage, KEY, b"x")
    file = record_file(tmp_path / "cache", KEY)
    before = file.stat().st_mtime_ns
    clock.ahead = 58
    record = storage.read(KEY)
    assert record
    assert file.stat().st_mtime_ns == before
    clock.ahead = 61
    assert storage.read(KEY)
    assert file.stat().st_mtime == pytest.approx(clock(), abs=5)
    assert file.stat().st_mtime_ns % 10**9 == before % 10**9
    again = make().read(KEY)
    assert again
    assert again.generation == record.generation


def test_a_use_that_is_noted_too_late_harms_nobody(make: Make, clock: Clock, tmp_path: Path) -> None:
    """Another process has replaced the record between the look at it and the note."""
    one, two = make(), make()
    assert store(one, KEY, b"old")
    clock.ahead = 61
    note = Shelf.note_use

    def note_late(*arguments: Any) -> None:
        with patched(Shelf, "note_use", lambda *_: None):
            assert store(two, KEY, b"new")
        note(*arguments)

    with patched(Shelf, "note_use", note_late):
        assert one.read(KEY)
    assert record_file(tmp_path / "cache", KEY).stat().st_mtime == pytest.approx(clock(), abs=5)
    assert load(one, KEY) == load(two, KEY) == b"new"
    assert store(two, KEY, b"newer")
    assert load(one, KEY) == b"newer"


def test_times_of_whole_seconds_do_as_well(make: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    utime = os.utime

    def whole(path: Any, **options: Any) -> None:
        if "ns" in options:
            options["ns"] = tuple(time // 10**9 * 10**9 for time in options["ns"])
        utime(path, **options)

    monkeypatch.setattr(os, "utime", whole)
    one, two = make(), make()
    for number in range(3):
        assert store(one, KEY, b"%d" % number)
        clock.ahead += 61
        assert load(two, KEY) == load(one, KEY) == b"%d" % number
    before, again = one.read(KEY), two.read(KEY)
    assert before and again
    assert before.generation == again.generation
    clock.ahead += 61
    assert one.read(KEY)
    assert load(two, KEY) == b"2"
    assert store(two, KEY, b"3")
    assert load(one, KEY) == b"3"


def test_looking_is_not_a_use(make: Make, clock: Clock, tmp_path: Path) -> None:
    storage = make()
    assert store(storage, KEY, b"x")
    file = record_file(tmp_path / "cache", KEY)
    used = file.stat().st_mtime_ns
    clock.ahead = 100
    assert list(storage.scan())
    assert storage.stat(KEY)[0].used == used // 10**9
    sweep(storage)
    file.read_bytes()
    os.utime(file, ns=(used + 10**12, file.stat().st_mtime_ns))
    assert make().stat(KEY)[0].used == used // 10**9, "as after a backup"
    assert file.stat().st_mtime_ns == used


def test_what_was_used_after_the_look_is_not_evicted(make: Make, clock: Clock) -> None:
    storage = make()
    assert store(storage, KEY, b"x")
    assert is_quiet(storage)
    place = storage._access.place
    assert place
    clock.ahead = 100
    by_use = sweeping._by_use

    def then_used(*arguments: Any) -> object:
        if found := by_use(*arguments):
            storage.read(KEY)
        return found

    with patched(sweeping, "_by_use", then_used):
        trim(storage, 0)
    assert load(storage, KEY) == b"x"


def test_eviction_gets_on_however_slow_the_disk_is(storage: FileStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something goes in each turn, though looking at a file takes longer than one."""
    names = list(islice(keys_of_folder("ab"), 5))
    for name in names:
        assert store(storage, name, b"x")
    assert is_quiet(storage)
    monkeypatch.setattr(sweeping, "TURN", 0.0)
    turns = a_sweep(storage).evict(lambda page: 0)
    assert sum(islice(turns, 100)) > 0
    assert stored_keys(storage) == set()


def test_a_turn_of_eviction_looks_only_at_what_goes(storage: FileStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in islice(keys_of_folder("ab"), 100):
        assert store(storage, name, b"x")
    assert is_quiet(storage)
    monkeypatch.setattr(sweeping, "TURN", 0.0)
    used = usage(storage).used
    turns = a_sweep(storage).evict(lambda page: used - 100_000)
    next(turns)
    calls: list[str] = []
    with intercepted(calls.append):
        next(turns)
    assert "listdir" not in calls
    assert calls.count("stat") < 20


def test_a_body_that_comes_while_its_key_is_evicted_stays(storage: FileStorage, tmp_path: Path) -> None:
    assert store(storage, KEY, b"old")
    assert is_quiet(storage)
    by_key = sweeping._by_key
    came: list[BodyRef | None] = []

    def then_one_more(*arguments: Any) -> object:
        found = by_key(*arguments)
        if found and arguments[0] == KEY[:2]:
            came.append(write_body(storage, KEY, b"new"))
        return found

    with patched(sweeping, "_by_key", then_one_more):
        trim(storage, 0)
    ref = came[-1]
    assert ref
    assert storage.swap(KEY, None, Record((response(ref),)))
    assert load(storage, KEY) == b"new"


def test_a_high_watermark_starts_the_sweep_and_a_low_one_ends_it(make: Make) -> None:
    storage = make(max_size=10 * MIB)
    number = 0
    while usage(storage).used < 8.5 * MIB:
        assert store(storage, key(number), bytes(200_000))
        number += 1
    assert is_quiet(storage)
    assert usage(storage).used > 8.4 * MIB
    before = 0
    while before < (used := usage(storage).used) < 9.1 * MIB:  # less than before: the sweep has begun
        before = used
        assert store(storage, key(number), bytes(200_000))
        number += 1
    assert eventually(lambda: usage(storage).used < 8.5 * MIB)
    assert is_quiet(storage)
    assert usage(storage).used > 7 * MIB, "and no further"


def test_what_cannot_be_evicted_does_not_keep_the_rest(make: Make, clock: Clock) -> None:
    storage = make()
    stuck = list(islice(keys_of_folder("ab"), 10))
    for name in (*stuck, *map(key, range(20))):
        clock.ahead += 1
        assert store(storage, name, bytes(100_000))
    used = usage(storage).used
    unlink = os.unlink

    def refuse(path: str, **options: Any) -> None:
        if path.startswith("ab/"):
            raise PermissionError(errno.EACCES, "scripted", path)
        unlink(path, **options)

    with patched(os, "unlink", refuse):
        trim(storage, used - 1_000_000)
    assert usage(storage).used <= used - 1_000_000
    assert set(stuck) <= stored_keys(storage)


def test_a_caller_never_waits_long(make: Make) -> None:
    """The sweep is another process's and takes its time; the caller goes on without storing."""
    storage = make(max_size=2 * MIB)
    while usage(storage).used < 1.4 * MIB:
        assert store(storage, key(usage(storage).used), bytes(200_000))
    assert is_quiet(storage)
    place = storage._access.place
    assert place
    fd = place.home.open("sweep", os.O_RDWR)
    lock(fd, 1.0)
    done = threading.Event()

    def create() -> None:
        assert storage.create_body(KEY, MIB) is None
        done.set()

    threading.Thread(target=create).start()
    assert done.wait(1.0)
    os.close(fd)
    assert eventually(lambda: store(storage, KEY, bytes(MIB)))


def test_one_process_sweeps_at_a_time(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "OPERATORS_PATIENCE", 0.01)
    one, two = make(), make()
    assert store(one, KEY, b"x")
    assert is_quiet(one)
    place = two._access.reading()
    assert place
    fd = place.home.open("sweep", os.O_RDWR | os.O_CREAT)
    lock(fd, 1.0)
    with pytest.raises(TimeoutError):
        sweep(one)
    os.close(fd)
    sweep(one)


@pytest.mark.parametrize("time_of_use", [-(2**31), 0, 2**33, 2**34])
def test_no_time_of_use_makes_immortal(make: Make, clock: Clock, tmp_path: Path, time_of_use: int) -> None:
    storage = make()
    assert store(storage, KEY, bytes(100_000))
    file = record_file(tmp_path / "cache", KEY)
    os.utime(file, (time_of_use, time_of_use))
    for number in range(10):
        clock.ahead += 1
        assert store(storage, key(number), bytes(100_000))
    trim(storage, usage(storage).used - 50_000)
    assert KEY not in stored_keys(storage)


@pytest.mark.parametrize("mtime", [-(2**31), 0, 2**33, 2**34])
def test_no_modification_time_makes_immortal(make: Make, clock: Clock, tmp_path: Path, mtime: int) -> None:
    """Restored backups, stepped clocks."""
    storage = make(ttl=1000.0)
    assert store(storage, KEY, b"x", at=clock())
    for file in (record_file(tmp_path / "cache", KEY), *body_files(tmp_path / "cache")):
        os.utime(file, (mtime, mtime))
    assert load(storage, KEY) == b"x"
    clock.ahead = 1001
    sweep(storage)
    assert not record_file(tmp_path / "cache", KEY).exists()
    assert body_files(tmp_path / "cache") == []
