"""SIGKILL at any point: each entry is whole or absent, and what is left behind is reclaimed soon after."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from errno import EACCES
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from tests.storage import actors
from tests.storage.conftest import Make
from tests.storage.helpers import (
    MIB,
    body_files,
    eventually,
    key,
    ledger_is_exact,
    load,
    occupied,
    patched,
    store,
    v1,
)
from tests.stress import stress
from vllm_http_cache.storage import files, slots
from vllm_http_cache.storage import sweep as sweeping
from vllm_http_cache.storage.files import FileStorage
from vllm_http_cache.storage.ledger import Page
from vllm_http_cache.storage.protocol import Growing
from vllm_http_cache.storage.records import names
from vllm_http_cache.storage.toolbox import sweep, usage, verify

SMALL = (actors.replacing, actors.forgetting, actors.giving_up, actors.closing)
OPERATIONS = [  # and how many system calls to go on at a time
    *((operation, 7) for operation in SMALL),
    *(pytest.param(operation, 1, marks=pytest.mark.slow) for operation in SMALL),
    (actors.trimming, 17),
    (actors.sweeping, 31),
]


def is_within_its_ledger(path: Path) -> bool:
    """Whether the folder occupies no more than the ledger says to whoever has it next."""
    assert Page((v1(path) / "ledger").read_bytes()).valid(), "a kill does not tear it"
    before = occupied(path)
    storage = FileStorage(path)
    now = usage(storage)
    storage.close()
    return before <= now.used + now.reserved


def nothing_is_left_behind(storage: FileStorage, path: Path) -> bool:
    sweep(storage)
    assert usage(storage).reserved == 0
    assert ledger_is_exact(storage)
    assert [*v1(path).glob("writers/*.d/*"), *v1(path).glob("growing/*")] == []
    stored = [stat.stored for stat in storage.scan()]
    return {file.name for file in body_files(path)} == names(stored) and all(each.sound for each in verify(storage))


@pytest.mark.parametrize("operation, step", OPERATIONS)
def test_a_kill_at_any_system_call(
    make: Make, tmp_path: Path, operation: Callable[[FileStorage], None], step: int
) -> None:
    path = tmp_path / "cache"
    nth, status = 1 - step, -signal.SIGKILL
    while status == -signal.SIGKILL:
        nth += step
        storage = actors.quiet(make(path, max_size=10 * MIB, free_space_floor=0))
        assert store(storage, actors.KEY, actors.OLD)
        assert store(storage, key(1), b"bystander")
        storage.close()
        status = actors.run(actors.die_in, path, operation, nth) or 0
        assert is_within_its_ledger(path)
        storage = actors.quiet(make(path, max_size=10 * MIB, free_space_floor=0))
        assert load(storage, actors.KEY) in {actors.OLD, actors.NEW, None}
        if operation in {actors.replacing, actors.giving_up}:
            assert load(storage, actors.KEY) is not None, "the old entry stays until the new one is there"
            assert load(storage, key(1)) == b"bystander"
        with patched(sweeping, "GRACE", -1.0):
            assert nothing_is_left_behind(storage, path)
        storage.close()
    assert status == 0
    assert nth > 5


def test_what_the_dead_leave_is_reclaimed_at_the_next_store(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    dead = actors.start(actors.write_and_wait, path, 3 * MIB)
    assert eventually((tmp_path / f"ready-{dead.pid}").exists)
    storage = make()
    assert store(storage, key(1), b"x"), "the living are not touched"
    growing = storage.growing(actors.FLIGHT)
    assert growing
    assert growing.ended() is None
    assert not growing.orphaned()
    assert storage.claim(actors.FLIGHT) is None
    sweep(storage)
    assert usage(storage).reserved > 3 * MIB
    dead.kill()
    dead.join()
    assert storage.claim(actors.FLIGHT), "claims go at once"
    assert growing.orphaned(), "also when another leads its flight now"
    assert growing.ended() is None
    other = make()
    assert store(other, key(2), b"x")
    assert eventually(lambda: usage(storage).reserved == 0)
    assert eventually(lambda: not list(v1(path).glob("writers/*.d/?*")))
    assert growing.ended() is False
    assert storage.growing(actors.FLIGHT) is None
    growing.close()


def being_written(make: Make, tmp_path: Path) -> tuple[BaseProcess, FileStorage, Growing]:
    """A process that is writing a body, and a storage that follows it."""
    writer = actors.start(actors.write_and_wait, tmp_path / "cache", 100)
    assert eventually((tmp_path / f"ready-{writer.pid}").exists)
    storage = make()
    growing = storage.growing(actors.FLIGHT)
    assert growing
    return writer, storage, growing


def test_where_the_locks_of_other_hosts_are_not_seen_the_claim_tells_of_a_writer(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, storage, growing = being_written(make, tmp_path)
    dead.kill()
    dead.join()
    monkeypatch.setattr(slots, "_is_seen_here", lambda home, life: False)
    assert not growing.orphaned()
    place = storage._access.place
    assert place
    place.home.remote = True
    assert growing.orphaned()
    claim = storage.claim(actors.FLIGHT)
    assert claim
    assert not growing.orphaned()
    claim.release()
    assert growing.orphaned()
    growing.close()


def test_a_body_whose_writer_cannot_be_looked_for_is_not_waited_for(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, _, growing = being_written(make, tmp_path)
    assert not growing.orphaned()

    def refuse(home: object, path: str) -> bool:
        raise PermissionError(EACCES, "scripted")

    monkeypatch.setattr(files, "has_died", refuse)
    assert growing.orphaned()
    growing.close()
    writer.kill()
    writer.join()


def test_room_held_by_the_dead_is_room(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    storage = make(max_size=10 * MIB)
    assert store(storage, key(1), b"x")
    dead = actors.start(actors.write_and_wait, path, 7 * MIB)
    assert eventually((tmp_path / f"ready-{dead.pid}").exists)
    dead.kill()
    dead.join()
    assert eventually(lambda: store(storage, key(2), bytes(5 * MIB)))
    assert load(storage, key(1)) == b"x", "nothing had to go for it"


@pytest.mark.parametrize("name", ["ledger", "sweep"])
def test_a_lock_goes_with_its_holder(make: Make, tmp_path: Path, name: str) -> None:
    path = tmp_path / "cache"
    storage = make()
    assert store(storage, key(1), b"x")
    sweep(storage)
    holder = actors.start(actors.hold, path, name)
    assert eventually((tmp_path / f"ready-{holder.pid}").exists)
    assert load(storage, key(1)) == b"x", "no read needs it"
    os.kill(holder.pid or 0, signal.SIGKILL)
    holder.join()
    assert store(storage, key(2), b"y")


def test_a_lock_that_is_not_released_is_waited_for_within_bounds(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("vllm_http_cache.storage.ledger.PATIENCE", 0.05)
    monkeypatch.setattr("vllm_http_cache.storage.ledger.INTERVAL", 0.2)
    path = tmp_path / "cache"
    storage = make()
    assert store(storage, key(1), b"x")
    sweep(storage)
    holder = actors.start(actors.hold, path, "ledger")
    assert eventually((tmp_path / f"ready-{holder.pid}").exists)
    assert storage.create_body(key(2), 1) is None
    storage.forget(key(1))
    assert load(storage, key(1)) == b"x", "hits go on"
    assert len([record for record in caplog.records if record.name == "vllm_http_cache.storage"]) == 1
    holder.kill()
    holder.join()
    assert eventually(lambda: store(storage, key(2), b"y"))
    storage.forget(key(1))
    assert load(storage, key(1)) is None


def test_stress(tmp_path: Path) -> None:
    assert stress(str(tmp_path), seed=7, seconds=3)


def test_stress_with_locks_that_lie(tmp_path: Path) -> None:
    """What is read is right all the same; only the bound is kept approximately."""
    assert stress(str(tmp_path), seed=8, seconds=2, lying=True)


def test_stress_without_a_ledger_now_and_then(tmp_path: Path) -> None:
    assert stress(str(tmp_path), seed=9, seconds=4, losing=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_five_hundred_kills(tmp_path: Path, seed: int) -> None:
    assert stress(str(tmp_path), seed=seed, seconds=10, kills=500)
