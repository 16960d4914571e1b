"""What goes, and when: the least recently used, the expired, what crashes and races have left behind."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from dataclasses import replace
from itertools import islice
from math import inf
from pathlib import Path

import pytest

from tests.storage.actors import quiet
from tests.storage.conftest import Clock, Make
from tests.storage.faults import Nth, fail, intercepted
from tests.storage.helpers import (
    MIB,
    body_files,
    eventually,
    is_quiet,
    key,
    ledger_is_exact,
    load,
    occupied,
    patched,
    record_file,
    response,
    store,
    stored_keys,
    v1,
    warnings,
    write_body,
)
from vllm_http_cache.rfc9111.message import Fields
from vllm_http_cache.storage import sweep as sweeping
from vllm_http_cache.storage.files import FileStorage
from vllm_http_cache.storage.layout import FOLDERS
from vllm_http_cache.storage.protocol import Record
from vllm_http_cache.storage.toolbox import sweep, trim

KEY = key("sweep")


class Observed:
    """Keeps the reasons for which keys were removed."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def evicted(self, reason: str, number: int = 1) -> None:
        self.reasons += [reason] * number

    def storage_failed(self, operation: str) -> None:
        pass

    def holds(self, *, octets: int | None = None, keys: int | None = None) -> None:
        pass


# Expired.


def test_what_has_expired_is_removed_by_ordinary_work(make: Make, clock: Clock, tmp_path: Path) -> None:
    storage = make(ttl=1000.0)
    for number in range(10):
        assert store(storage, key(number), b"x" * 1000, at=clock())
    clock.ahead = 1001
    assert store(storage, KEY, b"y", at=clock())
    assert eventually(lambda: len(list(body_files(tmp_path / "cache"))) == 1)
    assert stored_keys(storage) == {KEY}
    assert is_quiet(storage)
    assert ledger_is_exact(storage)


def test_a_read_of_what_has_expired_removes_it(make: Make, clock: Clock, tmp_path: Path) -> None:
    storage = make(ttl=1000.0)
    assert store(storage, KEY, b"x", at=clock())
    assert is_quiet(storage)
    clock.ahead = 1001
    assert storage.read(KEY) is None
    assert eventually(lambda: not record_file(tmp_path / "cache", KEY).exists())


def test_a_sweep_removes_the_expired_part_of_a_record(make: Make, clock: Clock, tmp_path: Path) -> None:
    storage = make(ttl=100.0)
    old, new = write_body(storage, KEY, b"old"), write_body(storage, KEY, b"new")
    assert old and new
    storage.swap(KEY, None, Record((response(old, at=clock()), response(new, at=clock() + 50, tag="b"))))
    clock.ahead = 110
    sweep(storage)
    assert [file.name for file in body_files(tmp_path / "cache")] == [new.name]
    assert load(storage, KEY) == b"new"


def test_an_infinite_ttl_removes_nothing(make: Make, clock: Clock) -> None:
    storage = make(ttl=inf)
    assert store(storage, KEY, b"x", at=clock())
    clock.ahead = 10 * 365 * 86_400
    sweep(storage)
    assert load(storage, KEY) == b"x"


def test_a_clock_that_steps_back_and_forth_leaves_nothing_for_ever(make: Make, clock: Clock, tmp_path: Path) -> None:
    storage = make(ttl=1000.0)
    clock.ahead = 365 * 86_400
    assert store(storage, KEY, b"x", at=clock())
    clock.ahead = 0
    assert store(storage, key(2), b"y", at=clock())
    assert storage.read(KEY) is None, "confirmed in the future"
    assert eventually(lambda: not record_file(tmp_path / "cache", KEY).exists())
    sweep(storage)
    assert stored_keys(storage) == {key(2)}


# Left behind.


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch, storage: FileStorage) -> None:
    """Every body without a record has been without one for long enough."""
    quiet(storage)
    monkeypatch.setattr(sweeping, "GRACE", -1.0)


@pytest.mark.usefixtures("no_grace")
def test_a_body_without_a_record_goes(storage: FileStorage, tmp_path: Path) -> None:
    assert store(storage, KEY, b"kept")
    assert write_body(storage, KEY, b"loose")
    assert write_body(storage, key(2), b"loose too")
    sweep(storage)
    assert len(body_files(tmp_path / "cache")) == 1
    assert load(storage, KEY) == b"kept"
    assert ledger_is_exact(storage)


def test_a_body_on_its_way_to_a_record_stays(storage: FileStorage, tmp_path: Path) -> None:
    ref = write_body(storage, KEY, b"new")
    assert ref
    sweep(storage)
    trim(storage, 0)
    assert storage.swap(KEY, None, Record((response(ref),)))
    assert load(storage, KEY) == b"new"


def test_a_swap_that_was_lost_leaves_its_body_for_a_while(storage: FileStorage, tmp_path: Path) -> None:
    """And has not everything looked through."""
    assert store(storage, KEY, b"kept")
    assert is_quiet(storage)
    place = storage._access.place
    assert place
    with place.ledger.locked() as page:
        due = page.sweep
    ref = write_body(storage, KEY, b"lost")
    assert not storage.swap(KEY, None, Record((response(ref),)))
    storage._room._janitor.ask()
    assert len(body_files(tmp_path / "cache")) == 2, "it may be tried once more"
    with patched(sweeping, "GRACE", -1.0):
        storage._room._janitor.ask()
    assert len(body_files(tmp_path / "cache")) == 1
    assert load(storage, KEY) == b"kept"
    with place.ledger.locked() as page:
        assert page.sweep == due
    assert ledger_is_exact(storage)


@pytest.mark.parametrize("why", ["no room", "too large", "partly too large"])
def test_what_cannot_be_kept_of_a_record_leaves_no_body(storage: FileStorage, tmp_path: Path, why: str) -> None:
    assert store(storage, KEY, b"kept")
    seen, ref = storage.read(KEY), write_body(storage, KEY, b"new")
    assert seen
    if why == "no room":
        with intercepted(Nth(1, fail(errno.ENOSPC), only="write", on=True)):
            assert storage.swap(KEY, seen, Record((*seen.responses, response(ref))))
    else:
        large = replace(response(ref, at=0.0), fields=Fields([("A", "x" * 1_100_000)]))
        assert storage.swap(KEY, seen, Record((large,) if why == "too large" else (*seen.responses, large)))
    assert len(body_files(tmp_path / "cache")) == (why != "too large")
    assert load(storage, KEY) == (b"kept" if why != "too large" else None)
    assert ledger_is_exact(storage)


@pytest.mark.usefixtures("no_grace")
def test_eviction_takes_loose_bodies(storage: FileStorage, tmp_path: Path) -> None:
    assert write_body(storage, KEY, bytes(100_000))
    trim(storage, 0)
    assert body_files(tmp_path / "cache") == []


@pytest.mark.usefixtures("no_grace")
def test_what_does_not_belong_into_a_folder_goes(storage: FileStorage, tmp_path: Path) -> None:
    assert store(storage, KEY, b"x")
    folder = v1(tmp_path / "cache") / KEY[:2]
    other = key("another folder's")
    for name in ("junk", "README", f"{KEY}.x", f"{KEY}.{'0' * 15}g", other, f"{other}.{'0' * 16}", "Ünïcödé"):
        (folder / name).write_bytes(b"junk")
    (folder / "link").symlink_to("/etc/passwd")
    (folder / ".nfs000000001").write_bytes(b"somebody reads this still")
    sweep(storage)
    assert len(list(folder.iterdir())) == 3
    assert load(storage, KEY) == b"x"
    assert ledger_is_exact(storage)


def test_damaged_records_go_with_a_sweep(storage: FileStorage, tmp_path: Path) -> None:
    assert store(storage, KEY, b"x")
    record_file(tmp_path / "cache", KEY).write_bytes(b"junk")
    sweep(storage)
    assert not record_file(tmp_path / "cache", KEY).exists()


def test_one_file_that_cannot_be_read_does_not_stop_the_sweep(make: Make, clock: Clock, tmp_path: Path) -> None:
    storage = make(ttl=1000.0)
    names = sorted(key(number) for number in range(10))
    for name in names:
        assert store(storage, name, b"x", at=clock())
    clock.ahead = 1001
    sweeper = make(ttl=1000.0)
    opened = os.open

    def failing(path: object, *arguments: object, **options: object) -> int:
        if str(path).endswith(names[3]):
            raise OSError(errno.EIO, "the disk")
        return opened(path, *arguments, **options)  # type: ignore[arg-type]

    with patched(os, "open", failing):
        sweep(sweeper)
    assert [name for name in names if record_file(tmp_path / "cache", name).exists()] == [names[3]]


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO])
def test_one_folder_that_cannot_be_read_stops_nothing(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    storage = make(ttl=1000.0)
    names = [f"{folder}{key(folder)[2:]}" for folder in FOLDERS[::16]]
    for name in names:
        assert store(storage, name, bytes(10_000))
    place = storage._access.place
    assert place
    opened = os.open

    def failing(path: object, *arguments: object, **options: object) -> int:
        if path == names[3][:2]:
            raise OSError(code, "scripted")
        return opened(path, *arguments, **options)  # type: ignore[arg-type]

    def account() -> int:
        with place.ledger.locked() as page:
            return page.account(int(names[3][:2], 16))

    before = account()
    with patched(os, "open", failing):
        sweep(storage)
        with place.ledger.locked() as page:  # as if somebody had died while changing it
            page.changing = int(names[3][:2], 16)
            place.ledger.save(page)
        assert account() == before > 10_000, "what it was charged with is kept"
        trim(storage, 0)
        assert warnings(caplog) == 1
        assert stored_keys(storage) == set()
        (v1(tmp_path / "cache") / "ledger").unlink()
        assert eventually(lambda: store(storage, KEY, b"x"))
    assert stored_keys(storage) == {KEY, names[3]}
    sweep(storage)
    assert ledger_is_exact(storage)


def test_a_look_that_takes_long_knows_what_time_it_is(storage: FileStorage) -> None:
    """What is stored meanwhile is neither too old nor from the future."""
    quiet(storage)
    assert store(storage, KEY, b"x")
    place = storage._access.place
    assert place
    in_last, behind = "ff" + KEY[2:], 100.0
    observer = Observed()

    def now() -> float:
        return time.time() - behind

    look = sweeping.Sweep(place.home, place.ledger, now, now, storage._troubles.warn, observer)
    looking = look.look_through(1000.0, storage.forget)
    next(looking)
    behind = 0.0
    ref = write_body(storage, in_last, b"on its way")
    assert ref
    assert store(storage, "fe" + KEY[2:], b"new")
    deque(looking, maxlen=0)
    assert storage.swap(in_last, None, Record((response(ref),)))
    assert load(storage, in_last) == b"on its way"
    assert load(storage, "fe" + KEY[2:]) == b"new"
    assert observer.reasons == []


def test_a_look_that_was_not_finished_is_taken_up_by_others_where_it_ended(
    make: Make, clock: Clock, tmp_path: Path
) -> None:
    storage = quiet(make(ttl=1000.0))
    names = [folder + KEY[2:] for folder in ("00", "fe", "01")]
    for name in names[:2]:
        assert store(storage, name, b"x")
    clock.ahead = 1001
    assert store(storage, "50" + KEY[2:], b"y", at=clock())
    place = storage._access.place
    assert place
    tidying = storage._room._tidy_alone(place)
    assert len(list(islice(tidying, 100))) == 100
    tidying.close()  # type: ignore[attr-defined]
    storage.swap(names[2], None, Record((response(),)))
    assert [record_file(tmp_path / "cache", name).exists() for name in names] == [False, True, True]
    other = make(ttl=1000.0)
    assert store(other, KEY, b"y", at=clock())
    assert is_quiet(other)
    assert [record_file(tmp_path / "cache", name).exists() for name in names] == [False, False, True]
    other._room._janitor.ask()
    assert record_file(tmp_path / "cache", names[2]).exists(), "it is over"


@pytest.mark.usefixtures("no_grace")
def test_a_record_that_cannot_be_read_keeps_its_bodies(make: Make, storage: FileStorage) -> None:
    assert store(storage, KEY, b"x")
    opened = os.open

    def failing(path: object, *arguments: object, **options: object) -> int:
        if str(path).endswith(KEY):
            raise OSError(errno.EMFILE, "too many")
        return opened(path, *arguments, **options)  # type: ignore[arg-type]

    sweeper = make()
    with patched(os, "open", failing):
        sweep(sweeper)
    assert load(storage, KEY) == b"x"


def test_nothing_outside_is_touched(make: Make, tmp_path: Path, clock: Clock) -> None:
    """Other people's files, of any age and name, in the configured folder."""
    folder = tmp_path / "cache"
    folder.mkdir()
    files = [folder / name for name in ("a.png", key(1), f"{key(1)}.{'0' * 16}", "v1", ".hidden", ".vllm-http-cache2")]
    for file in files:
        file.write_bytes(b"theirs")
        os.utime(file, (0, 0))
    (folder / "ab").mkdir()
    storage = make(max_size=MIB, ttl=100.0)
    for number in range(30):
        clock.ahead += 10
        store(storage, key(number), bytes(100_000), at=clock())
    sweep(storage)
    trim(storage, 0)
    assert all(file.read_bytes() == b"theirs" for file in files)
    assert (folder / "ab").is_dir()
    assert occupied(folder) < MIB


@pytest.mark.slow
def test_a_sweep_of_many_entries_stops_nobody(make: Make) -> None:
    """The ledger is never kept for long."""
    storage, other = make(), make()
    for number in range(3000):
        storage.swap(key(number), None, Record((response(),)))
    stored = 0
    sweeper = threading.Thread(target=sweep, args=(other,))
    sweeper.start()
    while sweeper.is_alive():
        assert store(storage, KEY, b"x")
        stored += 1
    sweeper.join()
    assert stored > 10
