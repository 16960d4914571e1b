"""``export`` and ``import``."""

from __future__ import annotations

import io
import os
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import run
from vllm_http_cache.storage.room import Room

URL = "http://a.test/picture.png"


def test_export_and_import(folder: str, tmp_path: Path) -> None:
    tar, other = str(tmp_path / "all.tar"), str(tmp_path / "other")
    assert run("export", tar, "--folder", folder)[0] == 0
    assert run("import", tar, "--folder", other) == (0, "2 stored, 0 refused\n")
    assert run("verify", "--folder", other) == (0, "2 read, 0 damaged\n")
    assert "a.test" in run("ls", "--folder", other)[1]


def test_an_import_counts_what_is_left(tmp_path: Path, file: Path) -> None:
    folder, other, tar = (
        ("--folder", str(tmp_path / "cache")),
        ("--folder", str(tmp_path / "other")),
        str(tmp_path / "tar"),
    )
    file.write_bytes(bytes(3 * 1024**2))
    for number in range(5):
        assert run("seed", f"{URL}?{number}", str(file), *folder)[0] == 0
    assert run("export", tar, *folder)[0] == 0
    code, output = run("import", tar, *other, VLLM_MEDIA_CACHE_MAX_SIZE_MB="8")
    left = run("ls", *other)[1].count(URL)
    assert 0 < left < 5
    assert (code, output) == (0, f"{left} stored, {5 - left} evicted for lack of room, 0 refused\n")


def test_an_import_counts_when_all_that_must_go_has_gone(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, other, tar = ("--folder", str(tmp_path / "1")), ("--folder", str(tmp_path / "2")), str(tmp_path / "tar")
    file.write_bytes(bytes(3_800_000))
    for number in range(2):
        assert run("seed", f"{URL}?{number}", str(file), *folder)[0] == 0
    assert run("export", tar, *folder)[0] == 0
    asked = threading.Event()
    tidy, settle = Room._tidy, Room.settle

    def late(room: Room) -> Iterator[object]:
        asked.wait(10)
        yield from tidy(room)

    def asking(room: Room) -> None:
        asked.set()
        settle(room)

    monkeypatch.setattr(Room, "_tidy", late)
    monkeypatch.setattr(Room, "settle", asking)
    code, output = run("import", tar, *other, VLLM_MEDIA_CACHE_MAX_SIZE_MB="8")
    asked.set()
    assert (code, output) == (0, "1 stored, 1 evicted for lack of room, 0 refused\n")


def test_an_export_is_its_owners_alone_and_takes_its_place_when_it_is_whole(folder: str, tmp_path: Path) -> None:
    tar, link = tmp_path / "all.tar", tmp_path / "link"
    tar.write_bytes(b"older")
    link.symlink_to(tar)
    assert run("export", str(link), "--folder", folder) == (0, "2 exported\n")
    assert link.is_symlink()
    assert tar.stat().st_mode & 0o777 == 0o600
    with tarfile.open(tar) as archive:
        assert len(archive.getnames()) == 4
    assert {path.name for path in tmp_path.iterdir()} == {"all.tar", "link", "cache", "picture.png"}


def test_an_export_through_a_named_pipe(folder: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with open(os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK), "rb") as pipe:  # before its writer
        assert run("export", str(tmp_path / "pipe"), "--folder", folder)[0] == 0
        with tarfile.open(fileobj=io.BytesIO(pipe.read())) as archive:
            assert len(archive.getnames()) == 4
    assert (tmp_path / "pipe").is_fifo()


def test_a_missing_file_is_said(folder: str) -> None:
    code, output = run("import", "/nowhere.tar", "--folder", folder)
    assert code == 1
    assert "/nowhere.tar" in output


def test_a_file_that_cannot_be_written(folder: str, tmp_path: Path) -> None:
    code, output = run("export", str(tmp_path / "no" / "where.tar"), "--folder", folder)
    assert code == 1
    assert f"{tmp_path / 'no' / 'where.tar'}: no such file or directory" in output
