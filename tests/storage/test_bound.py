"""The bound: what ``du`` sees of the folder never exceeds max_size, and the ledger knows what is there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage import actors
from tests.storage.conftest import Make
from tests.storage.faults import intercepted
from tests.storage.helpers import (
    MIB,
    body_files,
    by_uri,
    eventually,
    is_quiet,
    key,
    keys_of_folder,
    ledger_is_exact,
    load,
    occupied,
    patched,
    read_body,
    record_file,
    reserved,
    response,
    store,
    v1,
    write_body,
)
from vllm_http_cache.storage import ledger
from vllm_http_cache.storage.devices import Device
from vllm_http_cache.storage.files import FileStorage
from vllm_http_cache.storage.layout import Home
from vllm_http_cache.storage.protocol import Record
from vllm_http_cache.storage.toolbox import purge, sweep, usage

KEY = key("bound")


@pytest.mark.parametrize("size", [0, 100, 100_000, 700_000])
def test_the_folder_stays_within_its_bound(make: Make, tmp_path: Path, size: int) -> None:
    """Also with empty bodies, whose records and folders take room, and so bound their number."""
    storage = make(max_size=2 * MIB)
    kept = 0
    for number in range(300 if size < 1000 else 40):
        kept += store(storage, key(number), bytes(size))
        if number % 5 == 0:
            assert occupied(tmp_path / "cache") <= 2 * MIB
    assert kept > 20, "and goes on storing"
    assert is_quiet(storage)
    assert ledger_is_exact(storage)
    assert reserved(storage) == 0
    assert len(list(v1(tmp_path / "cache").rglob("*"))) < 2 * MIB / 4096 + 20


def test_bodies_of_unknown_length_reserve_as_they_grow(make: Make, tmp_path: Path) -> None:
    storage = make(max_size=8 * MIB)
    assert store(storage, KEY, bytes(2 * MIB))
    writers = [storage.create_body(key(number), None) for number in range(3)]
    written = 0
    while all(writer is not None and writer.write(bytes(100_000)) for writer in writers):
        written += 1
        assert occupied(tmp_path / "cache") <= reserved(storage) + usage(storage).used <= 8 * MIB
    assert written > 10, "until there is no room"
    assert occupied(tmp_path / "cache") > 4 * MIB
    for writer in writers:
        assert writer
        writer.abort()
    assert reserved(storage) == 0
    assert ledger_is_exact(storage)


def test_an_announcement_has_room_of_its_own(make: Make, tmp_path: Path) -> None:
    storage = make(max_size=8 * MIB, free_space_floor=0)
    head = response(tag="x" * 60_000)
    writers = [writer for number in range(16) if (writer := storage.create_body(key(number), None))]
    for number, writer in enumerate(writers):
        writer.publish(key(f"flight {number}"), head)
    growing = list(writers)
    while growing:
        growing = [writer for writer in growing if writer.write(bytes(4096))]
        assert occupied(tmp_path / "cache") <= 8 * MIB
    *others, committed = writers
    for writer in others:
        writer.abort()
    assert committed.commit() is None
    assert reserved(storage) == 0
    assert list((v1(tmp_path / "cache") / "growing").iterdir()) == []


@pytest.mark.parametrize("end", ["commit", "abort", "nobody"])
def test_the_room_of_an_announcement_is_given_back(make: Make, tmp_path: Path, end: str) -> None:
    storage = actors.quiet(make())
    writer = storage.create_body(KEY, None)
    assert writer and writer.write(b"some")
    before = reserved(storage)
    writer.publish(key("flight"), response(tag="x" * 60_000))
    assert reserved(storage) > before + 60_000
    if end == "commit":
        assert writer.commit()
    elif end == "abort":
        writer.abort()
    del writer
    assert store(storage, key("another"), b"x")
    assert reserved(storage) == 0
    assert list((v1(tmp_path / "cache") / "growing").iterdir()) == []


@pytest.mark.parametrize("length", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("limits", [{"max_size": 4 * MIB}, {"max_size": 40 * MIB, "max_entry_size": 3 * MIB}])
def test_a_body_that_cannot_fit_evicts_nothing(make: Make, limits: dict[str, int], length: bool) -> None:
    storage = make(**limits)
    assert store(storage, KEY, bytes(100_000))
    assert is_quiet(storage)
    before = usage(storage).used
    asked: list[bool] = []
    with patched(storage._room._janitor, "ask", lambda: asked.append(True)):
        assert write_body(storage, key("large"), bytes(4 * MIB), length=length) is None
    assert not length or not asked, "nor is any room looked for"
    assert usage(storage).used == before or not length
    assert load(storage, KEY) == bytes(100_000)


def test_a_body_of_unknown_length_takes_half_of_the_bound_at_most(make: Make) -> None:
    storage = make(max_size=8 * MIB)
    for number in range(30):
        assert store(storage, key(number), bytes(200_000))
    writer = storage.create_body(KEY, None)
    assert writer
    written = 0
    while writer.write(bytes(100_000)):
        written += 100_000
    assert 3.7 * MIB < written <= 4 * MIB
    assert usage(storage).keys > 12


def test_a_body_that_just_fits_evicts_the_rest(make: Make, tmp_path: Path) -> None:
    storage = make(max_size=4 * MIB)
    for number in range(30):
        assert store(storage, key(number), bytes(100_000))
    assert eventually(lambda: store(storage, KEY, bytes(3_800_000)))
    assert occupied(tmp_path / "cache") <= 4 * MIB


@pytest.mark.parametrize(
    "operation", [actors.replacing, actors.giving_up, actors.forgetting, actors.trimming, actors.closing]
)
def test_at_no_system_call_is_there_more_than_the_ledger_says(
    make: Make, tmp_path: Path, operation: Callable[[FileStorage], None]
) -> None:
    path = tmp_path / "cache"
    storage = actors.quiet(make(path))
    for number in range(10):
        assert store(storage, key(number), b"x")
    storage.close()
    storage = actors.quiet(make(path))
    if operation is not actors.replacing:
        assert store(storage, actors.KEY, actors.OLD)

    def check(name: str) -> None:
        page = ledger.Page((v1(path) / "ledger").read_bytes())
        assert occupied(path) <= page.used + page.reserved, name

    with intercepted(check):
        operation(storage)


@pytest.mark.parametrize("max_size", [0, 1, 4096, 100_000])
def test_a_bound_too_small_for_anything_is_refused(make: Make, max_size: int) -> None:
    with pytest.raises(ValueError, match=f"max_size={max_size} is too small a limit .*: 131072 at least"):
        make(max_size=max_size)


def test_the_smallest_bound_is_enough_for_something(make: Make, tmp_path: Path) -> None:
    assert store(make(max_size=131_072), KEY, bytes(10_000))
    assert occupied(tmp_path / "cache") <= 131_072


def test_a_304_needs_room_too(make: Make, tmp_path: Path) -> None:
    """Two records lie there for a moment."""
    storage = make(max_size=2 * MIB)
    assert store(storage, KEY, b"x")
    writer = storage.create_body(key(1), 2 * MIB - usage(storage).used - 60_000)
    assert writer
    record = storage.read(KEY)
    assert record
    assert storage.swap(KEY, record, record), "a storage that cannot store answers True"
    assert usage(storage).used + reserved(storage) <= 2 * MIB
    writer.abort()
    assert reserved(storage) == 0


def test_a_record_that_finds_no_room_takes_its_new_body_along(make: Make, tmp_path: Path) -> None:
    storage = make(max_size=2 * MIB)
    assert store(storage, KEY, b"old")
    new = write_body(storage, KEY, b"new")
    assert new
    seen = storage.read(KEY)
    assert seen
    with patched(storage._keeping, "_reserve", lambda place, amount: False):
        assert storage.swap(KEY, seen, Record((response(new), *seen.responses)))
    assert load(storage, KEY) == b"old"
    assert len(body_files(tmp_path / "cache")) == 1


def test_folders_count_and_go_when_they_are_empty(storage: FileStorage, tmp_path: Path) -> None:
    keys = keys_of_folder("ab")
    many = [next(keys) for _ in range(150)]
    for name in many:
        storage.swap(name, None, Record((response(),)))
        assert occupied(tmp_path / "cache") <= usage(storage).used
    assert (v1(tmp_path / "cache") / "ab").stat().st_size >= 0
    assert ledger_is_exact(storage)
    for name in many:
        storage.forget(name)
    sweep(storage)
    assert not (v1(tmp_path / "cache") / "ab").exists()
    assert ledger_is_exact(storage)


def test_many_unfinished_bodies_make_their_folder_grow_within_the_count(storage: FileStorage, tmp_path: Path) -> None:
    writers = [storage.create_body(key(number), 0) for number in range(400)]
    assert occupied(tmp_path / "cache") <= usage(storage).used + reserved(storage)
    for number, writer in enumerate(writers):
        assert writer
        assert writer.commit()
        if number % 40 == 0:
            assert occupied(tmp_path / "cache") <= usage(storage).used + reserved(storage)
    assert ledger_is_exact(storage)


def test_the_device_keeps_a_floor_of_free_space(make: Make, tmp_path: Path) -> None:
    device = os.statvfs(tmp_path)
    free = device.f_bavail * device.f_frsize
    storage = make(free_space_floor=free * 2)
    assert not store(storage, KEY, b"x")
    rich = make(tmp_path / "rich")
    assert store(rich, KEY, b"x")


def test_a_device_that_others_have_filled_keeps_what_is_stored(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    storage = make(max_size=20 * MIB)
    for number in range(10):
        assert store(storage, key(number), bytes(MIB))
    monkeypatch.setattr(Home, "device", lambda self: Device(1000 * MIB, 49 * MIB))
    asked: list[bool] = []
    with patched(storage._room._janitor, "ask", lambda: asked.append(True)):
        for number in range(10, 20):
            assert not store(storage, key(number), bytes(1000))
        assert storage.create_body(KEY, 15 * MIB) is None
    assert not asked, "nobody waits for room that nobody can make"
    monkeypatch.setattr(Home, "device", lambda self: Device(1000 * MIB, 55 * MIB))
    assert storage.create_body(KEY, 15 * MIB) is None, "though it had room within the bound"
    assert usage(storage).keys == 10
    assert len([record for record in caplog.records if "free space" in record.getMessage()]) == 1
    monkeypatch.undo()
    assert store(storage, KEY, bytes(1000))


@pytest.mark.parametrize("limits", [{"free_space_floor": 1 << 50}, {"max_size": 200_000}], ids=["floor", "bound"])
def test_what_must_go_goes_without_room_for_a_shorter_record(
    make: Make, tmp_path: Path, limits: dict[str, int]
) -> None:
    first = make()
    for name in (KEY, key(1)):
        two = tuple(response(write_body(first, name, bytes(50_000)), tag=tag) for tag in "ab")
        assert first.swap(name, None, Record(two))
    first.close()
    storage = make(**limits)
    with patched(storage._room._janitor, "ask", lambda: None):
        assert purge(storage, by_uri("https://example.test/a.png")) == 2
    assert not [stat for stat in storage.scan() if stat.stored.uri.endswith("a.png")]
    assert ledger_is_exact(storage)


def test_a_damaged_body_goes_below_the_floor(make: Make, tmp_path: Path) -> None:
    first = make()
    two = tuple(response(write_body(first, KEY, bytes(50_000)), tag=tag) for tag in "ab")
    assert first.swap(KEY, None, Record(two))
    first.close()
    storage = make(free_space_floor=1 << 50)
    assert two[0].body
    file = record_file(tmp_path / "cache", two[0].body.name)
    file.chmod(0o600)
    file.write_bytes(b"x" * 50_000)
    assert read_body(storage, two[0].body) is None
    assert not file.exists()


def test_a_floor_is_a_share_of_a_small_device() -> None:
    assert Device(100 * 1024**3, 0).floor(None) == 64 * MIB
    assert Device(20 * MIB, 0).floor(None) == MIB
    assert Device(20 * MIB, 0).floor(5) == 5


def test_two_bounds_on_one_folder_each_hold_for_their_own(make: Make) -> None:
    large, small = make(max_size=20 * MIB), make(max_size=4 * MIB)
    for number in range(10):
        assert store(large, key(number), bytes(MIB))
    assert eventually(lambda: store(small, KEY, b"x"))
    assert usage(small).used <= 4 * MIB


def test_a_folder_removed_and_made_anew_starts_from_zero(storage: FileStorage, tmp_path: Path) -> None:
    ref = write_body(storage, KEY, bytes(100_000))
    while (tmp_path / "cache").exists():
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    assert ref
    assert read_body(storage, ref) is None
    assert store(storage, KEY, b"x")
    assert usage(storage).used <= 100_000
    assert ledger_is_exact(storage)
