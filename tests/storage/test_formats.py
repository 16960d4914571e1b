"""Older formats of the folder, and later ones."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.storage.conftest import Make
from tests.storage.helpers import (
    MIB,
    eventually,
    key,
    ledger_is_exact,
    occupied,
    own_folder,
    patched,
    store,
)
from vllm_http_cache.storage import formats
from vllm_http_cache.storage.files import FileStorage
from vllm_http_cache.storage.layout import Home
from vllm_http_cache.storage.toolbox import sweep, usage

KEY = key("formats")


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


@pytest.mark.parametrize("what", ["a pipe", "a link", "a file"])
def test_what_is_no_folder_is_no_older_format_and_goes(make: Make, tmp_path: Path, what: str) -> None:
    storage = make()
    assert store(storage, KEY, b"x")
    storage.close()
    place = own_folder(tmp_path / "cache") / "v0"
    match what:
        case "a pipe":
            os.mkfifo(place)
        case "a link":
            place.symlink_to(tmp_path)
        case _:
            place.write_bytes(bytes(10_000))
    storage = make()
    with patched(storage._room._janitor, "ask", lambda: None):
        assert store(storage, key(1), b"y")
    assert occupied(tmp_path / "cache") <= usage(storage).used
    sweep(storage)
    assert not os.path.lexists(place)
    assert ledger_is_exact(storage)


def test_older_formats_that_cannot_be_looked_through_stop_nothing(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "not yours")

    (own_folder(tmp_path / "cache") / "v0").mkdir(parents=True)
    monkeypatch.setattr(os, "fwalk", deny)
    assert store(make(), KEY, b"x")


def test_older_formats_are_not_looked_through_while_the_ledger_is_locked(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = make()
    assert store(storage, KEY, b"x")
    storage.close()
    (own_folder(tmp_path / "cache") / "v0" / "deep").mkdir(parents=True)
    (own_folder(tmp_path / "cache") / "v0" / "deep" / "file").write_bytes(bytes(100_000))
    storage = make()
    place = storage._access.reading()
    assert place
    entered: list[bool] = []
    occupied_by = formats._occupied

    def look(home: Home, name: str) -> int:
        entered.append(place.ledger._entered)
        return occupied_by(home, name)

    monkeypatch.setattr(formats, "_occupied", look)
    with patched(storage._room._janitor, "ask", lambda: None):
        assert store(storage, key(1), b"y")
    assert usage(storage).used >= occupied(tmp_path / "cache") > 100_000
    sweep(make())
    place.count_home()
    assert usage(storage).used < 100_000
    assert entered == [False]


def test_later_formats_and_anything_else_are_left_alone(storage: FileStorage, tmp_path: Path) -> None:
    others = [own_folder(tmp_path / "cache") / name for name in ("v2", "v10", "va", "v", "x")]
    assert store(storage, KEY, b"x")
    for folder in others:
        folder.mkdir()
        (folder / "file").write_bytes(b"theirs")
    sweep(storage)
    assert all((folder / "file").read_bytes() == b"theirs" for folder in others)
