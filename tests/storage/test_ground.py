"""Hostile ground: what may be in the place of the folder, or become of it, while a server runs on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.conftest import Make
from tests.storage.helpers import (
    eventually,
    is_quiet,
    key,
    ledger_is_exact,
    load,
    occupied,
    own_folder,
    record_file,
    response,
    store,
    v1,
    warnings,
    works_not,
)
from vllm_http_cache.storage.files import FileStorage
from vllm_http_cache.storage.ledger import SLOTS
from vllm_http_cache.storage.toolbox import sweep, usage

KEY = key("ground")


class Telling:
    """An observer that keeps the evictions it is told of."""

    def __init__(self, told: list[str]) -> None:
        self._told = told

    def evicted(self, reason: str, number: int = 1) -> None:
        self._told += [reason] * number

    def storage_failed(self, operation: str) -> None: ...

    def holds(self, *, octets: int | None = None, keys: int | None = None) -> None: ...


pytestmark = pytest.mark.usefixtures("impatient")


def remove(path: Path) -> None:
    """As ``rm -rf`` by an operator who insists."""
    while path.exists():
        shutil.rmtree(path, ignore_errors=True)


# In the folder's place.


@pytest.mark.parametrize("what", ["a file", "a link to a folder", "a dangling link"])
@pytest.mark.parametrize("where", ["cache", "cache/.vllm-http-cache", "cache/.vllm-http-cache/v1"])
def test_something_else_is_in_its_place(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str, what: str
) -> None:
    place = tmp_path / where
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    elsewhere = tmp_path / "elsewhere"
    match what:
        case "a file":
            place.write_bytes(b"theirs")
        case "a link to a folder":
            elsewhere.mkdir()
            place.symlink_to(elsewhere)
        case _:
            place.symlink_to(tmp_path / "nowhere")
    storage = make()
    if where == "cache" and what == "a link to a folder":
        assert store(storage, KEY, b"x"), "the operator's own link is followed"
        return
    assert works_not(storage, KEY)
    assert works_not(storage, KEY)
    assert warnings(caplog) == 1
    assert not elsewhere.exists() or list(elsewhere.iterdir()) == []
    assert what != "a file" or place.read_bytes() == b"theirs"
    place.unlink()
    assert store(storage, KEY, b"recovered")


@pytest.mark.parametrize("what", ["a file", "a link"])
def test_something_else_is_in_a_subfolders_place(make: Make, tmp_path: Path, what: str) -> None:
    storage = make()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert store(storage, key(1), b"x")
    place = v1(tmp_path / "cache") / KEY[:2]
    place.write_bytes(b"x") if what == "a file" else place.symlink_to(elsewhere)
    assert storage.read(KEY) is None
    assert eventually(lambda: store(storage, KEY, b"y"))
    assert place.is_dir()
    assert not place.is_symlink()
    assert list(elsewhere.iterdir()) == []
    sweep(storage)
    assert ledger_is_exact(storage)


def put_something(place: Path, what: str) -> None:
    remove(place) if place.is_dir() else place.unlink(missing_ok=True)
    match what:
        case "a file":
            place.write_bytes(b"theirs")
        case "a pipe":
            os.mkfifo(place)
        case "a dangling link":
            place.symlink_to("/nonexistent")
        case "a folder":
            place.mkdir()
        case _:
            place.mkdir()
            (place / "theirs").write_bytes(b"theirs")


@pytest.mark.parametrize("what", ["a file", "a pipe", "a dangling link", "a folder", "a full folder"])
@pytest.mark.parametrize("where", ["ledger", "sweep", "claims", "writers", "growing"])
def test_something_else_in_the_place_of_a_part_gives_way(make: Make, tmp_path: Path, where: str, what: str) -> None:
    storage = make()
    assert store(storage, KEY, b"x")
    storage.close()
    put_something(v1(tmp_path / "cache") / where, what)
    storage = make()
    claim = storage.claim(KEY)
    assert claim
    assert store(storage, KEY, b"y")
    writer = storage.create_body(KEY, None)
    assert writer
    writer.publish(KEY, response())
    assert storage.growing(KEY)
    writer.abort()
    claim.release()
    sweep(storage)
    assert ledger_is_exact(storage)


@pytest.mark.parametrize("what", ["a file", "a pipe", "a dangling link"])
def test_something_else_in_the_place_of_writers_files_and_folders_gives_way(
    make: Make, tmp_path: Path, what: str
) -> None:
    assert store(make(), KEY, b"x")
    for number in range(SLOTS):
        put_something(v1(tmp_path / "cache") / "writers" / str(number), what)
        put_something(v1(tmp_path / "cache") / "writers" / f"{number}.d", what)
    storage = make()
    assert store(storage, KEY, b"y")
    sweep(storage)
    assert len(list(v1(tmp_path / "cache").glob("writers/*.d"))) == 1
    assert ledger_is_exact(storage)


def test_a_full_folder_in_the_place_of_a_writers_file_is_left_while_the_ledger_is_locked(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows how long it would take to remove it."""
    monkeypatch.setattr("random.randrange", lambda count: 5)
    one, two = make(), make()
    assert store(one, KEY, b"x")
    put_something(v1(tmp_path / "cache") / "writers" / "6", "a full folder")
    assert store(two, KEY, b"y")
    assert (v1(tmp_path / "cache") / "writers" / "6" / "theirs").exists()


def test_a_folder_in_a_records_place_gives_way(storage: FileStorage, tmp_path: Path) -> None:
    assert store(storage, KEY, b"x")
    put_something(record_file(tmp_path / "cache", KEY), "a folder")
    assert store(storage, KEY, b"y")


def test_a_full_folder_in_a_records_place_stays_and_is_no_eviction(storage: FileStorage, tmp_path: Path) -> None:
    told: list[str] = []
    storage.observe(Telling(told))
    (record_file(tmp_path / "cache", KEY) / "full").mkdir(parents=True)
    assert store(storage, key(1), b"x")
    for _ in range(3):
        assert storage.read(KEY) is None
        assert is_quiet(storage)
    assert told == []


# What becomes of it.


@pytest.mark.parametrize("where", ["cache", "cache/.vllm-http-cache", "cache/.vllm-http-cache/v1"])
@pytest.mark.parametrize("how", ["deleted", "moved away", "replaced"])
def test_a_folder_that_vanishes_is_made_anew(make: Make, tmp_path: Path, where: str, how: str) -> None:
    storage = make()
    assert store(storage, KEY, b"old")
    writer = storage.create_body(KEY, 3)
    claim = storage.claim(KEY)
    assert writer and claim
    assert is_quiet(storage)
    match how:
        case "deleted":
            remove(tmp_path / where)
        case "moved away":
            (tmp_path / where).rename(tmp_path / "away")
        case _:
            (tmp_path / where).rename(tmp_path / "away")
            (tmp_path / where).mkdir(mode=0o700)
    claim.release()
    writer.write(b"lost")
    writer.abort()
    assert store(storage, KEY, b"new")
    assert record_file(tmp_path / "cache", KEY).exists()
    assert usage(storage).reserved == 0
    assert ledger_is_exact(storage)
    assert load(make(), KEY) == b"new"


def test_a_reader_notices_that_others_have_made_the_folder_anew(make: Make, tmp_path: Path) -> None:
    reader, writer = make(), make()
    assert store(writer, KEY, b"old")
    assert load(reader, KEY) == b"old"
    assert is_quiet(writer)
    remove(tmp_path / "cache")
    assert store(writer, KEY, b"new")
    assert eventually(lambda: load(reader, KEY) == b"new")


def test_a_folder_deleted_bit_by_bit(make: Make, tmp_path: Path) -> None:
    """Every file of it may be missing."""
    storage = make()
    for name in ("ledger", "claims", "sweep", "growing", "writers", KEY[:2]):
        assert store(storage, KEY, b"x")
        claim = storage.claim(KEY)
        assert claim
        assert is_quiet(storage)
        path = v1(tmp_path / "cache") / name
        if path.is_dir():
            remove(path)
        elif path.exists():
            path.unlink()
        claim.release()
        assert eventually(lambda: store(storage, key(2), b"y")), name
        writer = storage.create_body(KEY, None)
        assert writer
        writer.publish(key(3), response())
        assert storage.growing(key(3)), name
        writer.abort()
        sweep(storage)
        assert ledger_is_exact(storage), name


@pytest.mark.parametrize("look", [sweep, lambda storage: storage._room._janitor.ask()], ids=["operator", "janitor"])
def test_what_lies_beside_a_cache_that_was_moved_is_somebody_elses(
    make: Make, tmp_path: Path, look: Callable[[FileStorage], None]
) -> None:
    storage = make()
    assert store(storage, KEY, b"x")
    assert is_quiet(storage)
    for name in ("v0", "CACHEDIR.TAG"):
        (tmp_path / "releases" / name).mkdir(parents=True)
        (tmp_path / "releases" / name / "file").write_bytes(b"theirs")
    v1(tmp_path / "cache").rename(tmp_path / "releases" / "v1")
    look(storage)
    assert (tmp_path / "releases" / "v0" / "file").read_bytes() == b"theirs"
    (own_folder(tmp_path / "cache") / "v0").mkdir()
    look(storage)
    assert (own_folder(tmp_path / "cache") / "v0").exists(), "until a server comes back to it"
    assert store(storage, KEY, b"y")
    assert is_quiet(storage)
    look(storage)
    assert not (own_folder(tmp_path / "cache") / "v0").exists()


def test_a_working_directory_that_changes(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    storage = make(Path("relative"))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert store(storage, KEY, b"x")
    assert v1(tmp_path / "relative").is_dir()


def test_everything_stays_inside(make: Make, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    (tmp_path / "cache").mkdir()
    storage = make()
    assert store(storage, KEY, b"x")
    sweep(storage)
    storage.close()
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {".vllm-http-cache"}
    assert all(path.stat().st_mtime_ns == before[path] for path in before)
    assert occupied(tmp_path / "cache") > 0
