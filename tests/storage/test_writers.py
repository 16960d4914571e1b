"""The places of those who write: who lives, who is dead, and what becomes of what they leave."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from tests.storage import actors
from tests.storage.conftest import Make
from tests.storage.helpers import MIB, eventually, key, ledger_is_exact, load, occupied, patched, response, store, v1
from vllm_http_cache.storage import growing, slots
from vllm_http_cache.storage.devices import Descriptor
from vllm_http_cache.storage.files import FileStorage
from vllm_http_cache.storage.layout import Home
from vllm_http_cache.storage.ledger import boot
from vllm_http_cache.storage.toolbox import sweep, usage

KEY, FLIGHT = key("writers"), key("writers' flight")


def test_there_is_a_slot_for_each_living_writer(make: Make) -> None:
    storages = [make() for _ in range(12)]
    for number, storage in enumerate(storages):
        assert store(storage, key(number), b"x")
    found = [storage._access.place.ledger.slot for storage in storages if storage._access.place]
    numbers = {slot.number for slot in found if slot}
    assert len(numbers) == 12


def test_more_writers_than_slots_store_nothing_but_read(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "SLOTS", 2)
    one, two, three = make(), make(), make()
    assert store(one, KEY, b"1")
    assert store(two, KEY, b"2")
    assert not store(three, KEY, b"3")
    assert load(three, KEY) == b"2"
    one.close()
    assert store(three, KEY, b"3")


def test_a_writer_whose_folder_somebody_removed_goes_on(storage: FileStorage, tmp_path: Path) -> None:
    assert store(storage, KEY, b"x")
    (folder,) = v1(tmp_path / "cache").glob("writers/*.d")
    folder.rmdir()
    assert eventually(lambda: store(storage, KEY, b"y"))
    assert ledger_is_exact(storage)


def only_silence_tells(storage: FileStorage, folder: Path) -> None:
    """What the one unfinished body's writer has left goes, but not before an hour without a change."""
    sweep(storage)
    assert len(list(folder.glob("writers/*.d/*"))) == 1, "nobody knows"
    for path in (*folder.glob("writers/*.d/*"), *folder.glob("writers/*.d")):
        os.utime(path, (0, 0))
    sweep(storage)
    assert list(folder.glob("writers/*.d/*")) == []


def test_without_locks_writers_are_dead_after_an_hour_of_silence(make: Make, tmp_path: Path) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(95, "not supported")

    with patched(fcntl, "flock", flock):
        one, two = make(), make()
        writer = one.create_body(KEY, None)
        assert writer
        assert writer.write(b"x")
        assert store(two, key(2), b"y")
        only_silence_tells(two, v1(tmp_path / "cache"))
        assert writer.commit() is None
        assert eventually(lambda: store(one, KEY, b"z"))


def test_where_locks_are_seen_on_one_host_only_another_hosts_writer_is_dead_after_an_hour(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vllm_http_cache.storage.layout.is_remote", lambda name: True)
    monkeypatch.setattr(slots, "boot", lambda: 1)
    here = make()
    writer = here.create_body(KEY, None)
    assert writer
    assert writer.write(b"x")
    with patched(fcntl, "flock", lambda fd, operation: None):
        monkeypatch.setattr(slots, "boot", lambda: 2)
        there = make()
        assert store(there, key(2), b"y")
        only_silence_tells(there, v1(tmp_path / "cache"))


def test_on_a_network_the_dead_of_the_same_host_are_known_at_once(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vllm_http_cache.storage.layout.is_remote", lambda name: True)
    path = tmp_path / "cache"
    assert store(make(path), key(1), b"x")
    dead = actors.start(actors.write_and_wait, path, MIB)
    assert eventually((tmp_path / f"ready-{dead.pid}").exists)
    dead.kill()
    dead.join()
    storage = make(path)
    sweep(storage)
    assert usage(storage).reserved == 0
    assert list(v1(path).glob("writers/*.d/*")) == []


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_writer_whose_file_is_gone_takes_another_number(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Otherwise the next one takes the same, and each writes over what the other has reserved."""
    monkeypatch.setattr("random.randrange", lambda count: 5)
    one, two = make(max_size=20 * MIB), make(max_size=20 * MIB)
    assert store(one, KEY, b"x")
    file = v1(tmp_path / "cache") / "writers" / "5"
    file.unlink()
    if how == "replaced":
        file.touch()
    assert store(two, key(2), b"y")
    theirs = two.create_body(key(2), 8 * MIB)
    assert theirs
    assert theirs.write(b"theirs")
    mine = one.create_body(KEY, 8 * MIB)
    assert mine
    assert usage(one).reserved > 16 * MIB
    assert one.create_body(KEY, 8 * MIB) is None
    one.close()
    assert theirs.write(bytes(8 * MIB - 6))
    assert theirs.commit()
    assert usage(two).reserved == 0


def test_what_a_living_writer_writes_is_kept_though_its_file_is_gone(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cleaner of temporary files takes old and small ones; nobody takes the number for a dead writer's."""
    monkeypatch.setattr("random.randrange", lambda count: 5)
    one, two = make(max_size=20 * MIB), make(max_size=20 * MIB)
    writer = one.create_body(KEY, 12 * MIB)
    assert writer
    assert writer.write(bytes(MIB))
    (v1(tmp_path / "cache") / "writers" / "5").unlink()
    assert store(two, key(2), b"y")
    sweep(two)
    assert two.create_body(key(3), 12 * MIB) is None
    assert writer.write(bytes(11 * MIB))
    assert writer.commit()
    assert usage(two).reserved == 0
    assert (v1(tmp_path / "cache") / "writers" / "5").exists()


def test_what_the_dead_have_announced_is_counted_when_they_are_buried(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    dead = actors.start(actors.write_and_wait, path, MIB)
    assert eventually((tmp_path / f"ready-{dead.pid}").exists)
    dead.kill()
    dead.join()
    (announced,) = v1(path).glob("growing/*")
    with announced.open("ab") as file:
        file.write(bytes(100_000))
    place = make()._access.reading()
    assert place
    assert slots.bury_dead(place.home, place.ledger)
    with place.ledger.locked() as page:
        assert page.reserved == 0
        assert page.used >= occupied(path) > 100_000


def test_the_file_that_takes_the_place_of_a_writers_says_what_is_reserved(make: Make, tmp_path: Path) -> None:
    one, two = make(max_size=20 * MIB), make(max_size=20 * MIB)
    assert store(two, key(2), b"y")
    writer = one.create_body(KEY, 12 * MIB)
    assert writer
    for file in v1(tmp_path / "cache").glob("writers/*"):
        if file.is_file():
            file.unlink()
    for storage in (one, two):
        assert storage._access.place
        storage._access.place.count_home()
    (v1(tmp_path / "cache") / "ledger").unlink()
    assert eventually(lambda: store(two, key(3), b"z"))
    assert 12 * MIB < usage(two).reserved < 13 * MIB
    writer.abort()


def test_what_is_left_of_a_writer_whose_file_is_gone_goes_after_an_hour_of_silence(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    dead = actors.start(actors.write_and_wait, path, MIB)
    assert eventually((tmp_path / f"ready-{dead.pid}").exists)
    dead.kill()
    dead.join()
    for file in v1(path).glob("writers/*"):
        if file.is_file():
            file.unlink()
    storage = make()
    only_silence_tells(storage, v1(path))
    assert usage(storage).reserved == 0


def test_a_writer_who_joins_anew_keeps_what_it_has_reserved(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.randrange", lambda count: 5)
    one, two = make(max_size=20 * MIB), make(max_size=20 * MIB)
    assert one.create_body(KEY, 8 * MIB)
    file = v1(tmp_path / "cache") / "writers" / "5"
    file.unlink()
    file.touch()
    assert store(two, key(2), b"y")
    place = one._access.place
    assert place
    with place.ledger.locked():
        assert place.ledger.slot is None
    assert place.join(20 * MIB)
    assert usage(two).reserved > 8 * MIB


@pytest.mark.parametrize("when", ["joining", "burying"])
def test_what_becomes_of_a_number_is_decided_while_the_ledger_is_locked(
    make: Make, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Otherwise a lock could be one's who has not noted anything yet."""
    one, two = make(), make()
    assert store(one, KEY, b"x")
    place = two._access.writing()
    assert place
    entered: list[bool] = []
    taken = slots._take

    def take(home: Home, number: int) -> Descriptor | None:
        entered.append(place.ledger._entered)
        return taken(home, number)

    monkeypatch.setattr(slots, "_take", take)
    if when == "joining":
        assert place.join(20 * MIB)
    else:
        slots.bury_dead(place.home, place.ledger)
    assert entered and all(entered)


def test_who_asks_whether_a_writer_lives_is_not_taken_for_it(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = actors.start(actors.write_and_wait, tmp_path / "cache", 100)
    assert eventually((tmp_path / f"ready-{dead.pid}").exists)
    storage = make()
    (path,) = (str(path.relative_to(v1(tmp_path / "cache"))) for path in v1(tmp_path / "cache").glob("writers/*.d/*"))
    place = storage._access.reading()
    assert place
    assert place.ledger._is_present(boot())
    dead.kill()
    dead.join()
    while_asking: list[bool] = []

    def is_seen_here(home: Home, life: Descriptor) -> bool:
        while_asking.append(place.ledger._is_present(boot()))
        return True

    monkeypatch.setattr(slots, "_is_seen_here", is_seen_here)
    assert slots.has_died(place.home, path)
    assert while_asking == [False]


def test_the_end_of_a_writer_whose_file_is_gone_is_nobody_elses(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.randrange", lambda count: 5)
    one, two = make(), make()
    assert store(one, KEY, b"x")
    (v1(tmp_path / "cache") / "writers" / "5").unlink()
    writer = two.create_body(key(2), None)
    assert writer
    one.close()
    assert writer.write(b"y")
    assert writer.commit()


def test_an_announcement_that_has_just_taken_a_dead_ones_place_stays(storage: FileStorage, tmp_path: Path) -> None:
    assert store(storage, KEY, b"x")
    place = storage._access.place
    assert place
    writer = storage.create_body(KEY, None)
    assert writer
    (v1(tmp_path / "cache") / "growing" / FLIGHT).write_bytes(b"a dead one's")
    announced = growing._announced

    def then_another(*arguments: Any) -> object:
        found = announced(*arguments)
        writer.publish(FLIGHT, response())
        return found

    with patched(growing, "_announced", then_another):
        growing.withdraw_dead(place.home)
    assert storage.growing(FLIGHT)
    writer.abort()
    assert not growing.withdraw_dead(place.home)
