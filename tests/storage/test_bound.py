"""The bound: what ``du`` sees of the folder never exceeds max_size, and the ledger knows what is there."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage import actors
from tests.storage.conftest import Make
from tests.storage.faults import Nth, fail, intercepted
from tests.storage.helpers import (
    MIB,
    body_files,
    eventually,
    is_quiet,
    key,
    keys_of_folder,
    ledger_is_exact,
    load,
    occupied,
    own_folder,
    patched,
    read_body,
    record_file,
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
from vllm_http_cache.storage.toolbox import by_uri, purge, sweep, usage

KEY = key("bound")


def reserved(storage: FileStorage) -> int:
    return usage(storage).reserved


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
def test_a_bound_too_small_for_anything_makes_nothing(make: Make, tmp_path: Path, max_size: int) -> None:
    storage = make(max_size=max_size)
    assert not store(storage, KEY, b"x")
    assert storage.swap(KEY, None, Record((response(),)))
    claim = storage.claim(KEY)
    assert claim is not None
    claim.release()
    assert occupied(tmp_path / "cache") <= max_size


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
    for number in range(10, 20):
        assert not store(storage, key(number), bytes(1000))
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


# The ledger.


@pytest.mark.parametrize("junk", [None, b"", b"\0" * 4096, b"x" * 100, os.urandom(4096), b"\0" * 100_000], ids=range(6))
def test_the_ledger_is_made_anew_from_the_folder(make: Make, tmp_path: Path, junk: bytes | None) -> None:
    storage = make(max_size=20 * MIB)
    for number in range(30):
        assert store(storage, key(number), bytes(10_000 * number))
    used = usage(storage).used
    file = v1(tmp_path / "cache") / "ledger"
    if junk is None:
        file.unlink()
    else:
        file.write_bytes(junk)
    assert eventually(lambda: store(storage, KEY, b"x"))
    assert ledger_is_exact(storage)
    assert usage(storage).used >= used
    assert load(storage, key(3)) == bytes(30_000), "and nothing else was lost"
    assert file.stat().st_size == 4096 or junk is not None


def test_a_flipped_bit_in_the_ledger_is_noticed(make: Make, tmp_path: Path) -> None:
    storage = make()
    assert store(storage, KEY, b"x")
    file = v1(tmp_path / "cache") / "ledger"
    for position in range(0, 4096, 97):
        data = bytearray(file.read_bytes())
        data[position] ^= 0x40
        assert not ledger.Page(bytes(data)).valid()


def test_while_it_has_not_been_counted_nothing_is_stored(make: Make, tmp_path: Path) -> None:
    storage = make(max_size=MIB)
    for number in range(5):
        assert store(storage, key(number), bytes(100_000))
    assert is_quiet(storage)
    (v1(tmp_path / "cache") / "ledger").unlink()
    with patched(storage._room._janitor, "ask", lambda: None):
        assert storage.create_body(KEY, 1) is None
    assert eventually(lambda: store(storage, KEY, b"x"))


def test_a_boot_of_the_machine_has_everything_counted(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A page from before a power failure may not fit the files that came through it."""
    storage = make()
    for number in range(20):
        assert store(storage, key(number), bytes(50_000))
    old = (v1(tmp_path / "cache") / "ledger").read_bytes()
    for number in range(20, 40):
        assert store(storage, key(number), bytes(50_000))
    used = usage(storage).used
    storage.close()
    (v1(tmp_path / "cache") / "ledger").write_bytes(old)
    monkeypatch.setattr(ledger, "boot", lambda: 42)
    rebooted = make()
    assert eventually(lambda: store(rebooted, KEY, b"x"))
    assert usage(rebooted).used >= used
    assert ledger_is_exact(rebooted)


def test_a_process_that_died_while_it_changed_a_folder_leaves_a_mark(storage: FileStorage, tmp_path: Path) -> None:
    assert store(storage, KEY, bytes(50_000))
    place = storage._access.place
    assert place
    (body,) = body_files(tmp_path / "cache")
    with place.ledger.locked() as page:
        page.changing = int(KEY[:2], 16)
        place.ledger.save(page)
        body.unlink()
    assert store(storage, key(2), b"x")
    assert ledger_is_exact(storage)


def test_what_others_remove_is_counted_at_the_next_look(storage: FileStorage, tmp_path: Path) -> None:
    for number in range(20):
        assert store(storage, key(number), bytes(50_000))
    for file in body_files(tmp_path / "cache")[:10]:
        file.unlink()
    sweep(storage)
    assert ledger_is_exact(storage)


def test_the_reservation_of_a_living_writer_survives_the_ledger(make: Make, tmp_path: Path) -> None:
    storage = make(max_size=20 * MIB)
    writer = storage.create_body(KEY, 10 * MIB)
    assert writer
    assert writer.write(bytes(MIB))
    (v1(tmp_path / "cache") / "ledger").unlink()
    assert eventually(lambda: store(storage, key(1), b"x"))
    assert reserved(storage) >= 10 * MIB
    assert make(max_size=20 * MIB).create_body(key(2), 11 * MIB) is None
    assert writer.write(bytes(9 * MIB))
    assert writer.commit()
    assert reserved(storage) == 0


@pytest.mark.parametrize("junk", [None, b"", b"x" * 4096], ids=["gone", "empty", "damaged"])
@pytest.mark.parametrize("who", ["a running process", "a new one"])
def test_room_that_a_living_writer_has_yet_to_fill_is_not_given_away_with_the_ledger(
    make: Make, tmp_path: Path, who: str, junk: bytes | None
) -> None:
    one, two = make(max_size=20 * MIB), make(max_size=20 * MIB)
    writer = one.create_body(KEY, 10 * MIB)
    assert writer
    assert store(two, key(1), b"x")
    file = v1(tmp_path / "cache") / "ledger"
    file.unlink() if junk is None else file.write_bytes(junk)
    other = two if who == "a running process" else make(max_size=20 * MIB)
    assert eventually(lambda: store(other, key(2), b"x"))
    assert other.create_body(key(3), 10 * MIB) is None
    assert writer.write(bytes(10 * MIB))
    assert writer.commit()
    assert reserved(other) == 0


@pytest.mark.parametrize("how", ["moved", "linked"])
def test_a_ledger_that_lies_elsewhere_now_is_not_kept(make: Make, tmp_path: Path, how: str) -> None:
    """A backup of hard links still has it, and so has the process."""
    one, two = make(max_size=4 * MIB), make(max_size=4 * MIB)
    assert store(one, KEY, bytes(MIB))
    file = v1(tmp_path / "cache") / "ledger"
    if how == "linked":
        (tmp_path / "backup").hardlink_to(file)
        file.unlink()
    else:
        file.rename(tmp_path / "backup")
    assert eventually(lambda: store(two, key(2), bytes(MIB)))
    for number in range(6):
        store(one, key(number), bytes(600_000))
        store(two, key(-number), bytes(600_000))
        assert occupied(tmp_path / "cache") <= 4 * MIB
    assert usage(one) == usage(two)
    assert ledger_is_exact(one)


@pytest.mark.parametrize("name", ["flock", "fstat"])
def test_a_ledger_that_another_host_has_replaced_is_opened_again(storage: FileStorage, name: str) -> None:
    assert store(storage, KEY, b"x")
    place = storage._access.place
    assert place
    fault = Nth(1, fail(errno.ESTALE), only=name)
    with intercepted(fault), place.ledger.locked() as page:
        assert page.used
    assert fault.happened


def test_what_the_dead_have_announced_is_counted(make: Make, tmp_path: Path) -> None:
    storage = make()
    assert store(storage, KEY, b"x")
    storage.forget(KEY)
    sweep(storage)
    (v1(tmp_path / "cache") / "growing" / KEY).write_bytes(bytes(100_000))
    (v1(tmp_path / "cache") / "ledger").unlink()
    assert usage(storage).used >= occupied(tmp_path / "cache") > 100_000
    sweep(storage)
    assert usage(storage).used < 100_000
    assert ledger_is_exact(storage)


def test_a_note_that_is_damaged_costs_nothing_for_long(make: Make, tmp_path: Path) -> None:
    storage = make(max_size=4 * MIB)
    assert store(storage, KEY, b"x")
    for number in range(ledger.SLOTS):
        (v1(tmp_path / "cache") / "writers" / str(number)).write_bytes(b"\xff" * 16)
    (v1(tmp_path / "cache") / "ledger").unlink()
    assert eventually(lambda: store(storage, key(1), b"x"))
    sweep(storage)
    assert ledger_is_exact(storage)
    assert reserved(storage) == 0


# Formats.


def test_older_formats_are_reclaimed_within_the_bound(make: Make, tmp_path: Path) -> None:
    old = own_folder(tmp_path / "cache") / "v0" / "deep" / "er"
    old.mkdir(parents=True)
    own_folder(tmp_path / "cache").chmod(0o700)
    for number in range(10):
        (old / str(number)).write_bytes(bytes(300_000))
    storage = make(max_size=4 * MIB)
    peak = 0
    assert eventually(lambda: store(storage, KEY, bytes(2 * MIB)))
    peak = max(peak, occupied(tmp_path / "cache"))
    assert not (own_folder(tmp_path / "cache") / "v0").exists()
    assert peak <= 4 * MIB


def test_later_formats_and_anything_else_are_left_alone(storage: FileStorage, tmp_path: Path) -> None:
    others = [own_folder(tmp_path / "cache") / name for name in ("v2", "v10", "va", "v", "x")]
    assert store(storage, KEY, b"x")
    for folder in others:
        folder.mkdir()
        (folder / "file").write_bytes(b"theirs")
    sweep(storage)
    assert all((folder / "file").read_bytes() == b"theirs" for folder in others)


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
