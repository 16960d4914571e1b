"""What the commands say where they cannot do what they are for."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from errno import EIO, EROFS
from pathlib import Path

import pytest

from tests.cli.commands import run
from vllm_http_cache.storage import archive
from vllm_http_cache.storage.layout import Home

URL = "http://a.test/picture.png"
READING = ("stat", "ls", "verify", "trim 0", "purge --all", "export -", f"explain {URL}")
EVERY = (*READING, "import {tar}", f"seed {URL} {{file}}")


@pytest.fixture
def folder(tmp_path: Path, file: Path) -> Path:
    folder = tmp_path / "cache"
    for number in range(3):
        assert run("seed", f"{URL}?{number}", str(file), "--folder", str(folder))[0] == 0
    return folder


@pytest.fixture
def tar(tmp_path: Path, folder: Path) -> Path:
    path = tmp_path / "all.tar"
    assert run("export", str(path), "--folder", str(folder))[0] == 0
    return path


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch, tar: Path) -> None:
    """What a file system that is mounted read-only does."""
    do_open = Home.open

    def refuse(*_: object) -> None:
        raise OSError(EROFS, os.strerror(EROFS))

    def reading(home: Home, path: str, flags: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            refuse()
        return do_open(home, path, flags)

    monkeypatch.setattr(Home, "open", reading)
    for name in ("make_folder", "unlink", "replace"):
        monkeypatch.setattr(Home, name, refuse)


@pytest.mark.parametrize("command", EVERY)
def test_a_folder_that_anybody_may_change(command: str, folder: Path, file: Path, tar: Path) -> None:
    (folder / ".vllm-http-cache" / "v1").chmod(0o777)
    code, output = run(*command.format(file=file, tar=tar).split(), "--folder", str(folder))
    assert code == 1
    assert f"cannot open the cache in {folder}: anybody may write to the cache's folder. Run this as the user" in output


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("command", EVERY)
def test_another_users_folder(command: str, folder: Path, file: Path, tar: Path) -> None:
    os.chown(folder / ".vllm-http-cache", 12345, -1)
    code, output = run(*command.format(file=file, tar=tar).split(), "--folder", str(folder))
    assert code == 1
    assert "belongs to user 12345. Run this as the user that the server runs as" in output


@pytest.mark.parametrize("command", EVERY)
def test_a_file_in_its_place(command: str, tmp_path: Path, file: Path, tar: Path) -> None:
    arguments = command.format(file=file, tar=tar).split()
    code, output = run(*arguments, "--folder", str(file))
    assert (code, output) == (1, f"vllm-http-cache: {file} is not a folder: remove it, or name another folder\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".vllm-http-cache").touch()
    code, output = run(*arguments, "--folder", str(tmp_path / "other"))
    assert code == 1
    assert "in the place of the cache's folder: remove it" in output


@pytest.mark.parametrize("command", READING)
def test_no_cache_yet(command: str, tmp_path: Path) -> None:
    code, output = run(*command.split(), "--folder", str(tmp_path))
    assert output == f"no cache here yet: {tmp_path}\n"
    assert code == (1 if command.startswith(("export", "explain")) else 0)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("read_only")
def test_looking_at_a_read_only_folder(folder: Path) -> None:
    code, output = run("stat", "--folder", str(folder))
    assert code == 0
    assert "keys      3" in output
    assert "reserved  0.0 MiB" in output
    assert run("ls", "--folder", str(folder))[1].count(URL) == 3
    assert run("verify", "--folder", str(folder)) == (0, "3 read, 0 damaged\n")
    (folder / ".vllm-http-cache" / "v1" / "ledger").write_bytes(b"damaged")
    code, output = run("stat", "--folder", str(folder))
    assert code == 0
    assert "keys      3" in output
    assert "reserved  unknown: read-only file system" in output


@pytest.mark.usefixtures("read_only")
def test_changing_a_read_only_folder(folder: Path, file: Path, tar: Path) -> None:
    where = ("--folder", str(folder))
    assert run("purge", "--all", *where) == (1, "vllm-http-cache: 0 of 3 removed: read-only file system\n")
    assert run("trim", "0", *where) == (1, f"vllm-http-cache: {folder}: read-only file system\n")
    assert run("seed", URL, str(file), *where) == (
        1,
        f"vllm-http-cache: not stored in {folder}: read-only file system\n",
    )
    assert run("import", str(tar), *where) == (0, "0 stored, 3 refused (3 already there)\n")


@pytest.mark.usefixtures("read_only")
def test_what_is_damaged_and_cannot_be_removed(folder: Path) -> None:
    body = next(path for path in folder.rglob("*.*") if path.is_file() and path.stat().st_size == 19_000)
    body.chmod(0o600)
    body.write_bytes(bytes(19_000))
    code, output = run("verify", "--drop", "--folder", str(folder))
    assert code == 1
    assert output.endswith("3 read, 1 damaged; not all could be done: read-only file system\n")


@pytest.mark.parametrize("octets", [b"", b"\x89PNG\r\n\x1a\n", b"\x89PNG" * 1000])
def test_importing_what_is_no_export(folder: Path, tmp_path: Path, octets: bytes) -> None:
    (tmp_path / "it").write_bytes(octets)
    code, output = run("import", str(tmp_path / "it"), "--folder", str(folder))
    assert code == 1
    assert "is not what `vllm-http-cache export` has written" in output


def test_importing_a_foreign_tar(folder: Path, tmp_path: Path, file: Path) -> None:
    with tarfile.open(tmp_path / "foreign.tar", "w") as foreign:
        foreign.add(file, "record")
    code, output = run("import", str(tmp_path / "foreign.tar"), "--folder", str(folder))
    assert code == 1
    assert "is not what `vllm-http-cache export` has written" in output


def test_importing_an_export_that_was_cut(tar: Path, tmp_path: Path) -> None:
    whole = tar.read_bytes()
    end = -(-len(whole.rstrip(b"\0")) // 512) * 512
    for length in (1000, end // 2, end):
        tar.write_bytes(whole[:length])
        code, output = run("import", str(tar), "--folder", str(tmp_path / "other"))
        assert code == 1
        assert "it has been cut" in output
    tar.write_bytes(whole[:end] + b"x" * 512)
    code, output = run("import", str(tar), "--folder", str(tmp_path / "third"))
    assert code == 1
    assert "3 stored, 0 refused; it is damaged" in output


def test_an_import_of_which_nothing_is_stored_fails_and_says_why(tar: Path, tmp_path: Path) -> None:
    code, output = run("import", str(tar), "--folder", str(tmp_path / "other"), VLLM_MEDIA_CACHE_TTL_HOURS="0.000001")
    assert code == 1
    assert "0 stored, 3 refused (3 expired)" in output


def stopped(*_: object) -> bool:
    raise KeyboardInterrupt


@pytest.mark.parametrize("trouble", ["a full disk", "Ctrl-C", "a record that cannot be read"])
def test_an_export_that_fails_leaves_the_older_one(
    folder: Path, tar: Path, file: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    before, names = tar.read_bytes(), set(tar.parent.iterdir())
    export = ("export", str(tar), "--folder", str(folder))
    if trouble == "a full disk":
        program = [sys.executable, "-c", "from vllm_http_cache.cli import main; main()", *export]
        limited = ["sh", "-c", 'ulimit -f 8; exec "$@"', "sh", *program]
        done = subprocess.run(limited, check=False, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (1, f"vllm-http-cache: {tar}: file too large\n")
    elif trouble == "Ctrl-C":
        monkeypatch.setattr(archive, "is_sound", stopped)
        assert run(*export)[0] == 130
    else:
        (record, *_) = (path for path in folder.rglob("*") if len(path.name) == 64)
        do_open = Home.open

        def reading(home: Home, path: str, flags: int) -> int:
            if path.endswith(record.name):
                raise OSError(EIO, os.strerror(EIO))
            return do_open(home, path, flags)

        monkeypatch.setattr(Home, "open", reading)
        assert run(*export) == (1, f"vllm-http-cache: {folder}: input/output error\n")
    assert tar.read_bytes() == before
    assert set(tar.parent.iterdir()) == names


@pytest.mark.parametrize("command", [*EVERY, "demo"])
def test_an_empty_folder_is_not_the_current_one(
    command: str, folder: Path, file: Path, tar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    arguments = command.format(file=file, tar=tar).split()
    code, output = run(*arguments, "--folder", "", VLLM_MEDIA_CACHE=str(folder))
    assert code == 2
    assert "an empty path names nothing" in output
    assert run("ls", "--folder", str(folder))[1].count(URL) == 3


@pytest.mark.parametrize("command", ["export", "import"])
def test_an_empty_name_of_a_file(command: str, folder: Path) -> None:
    code, output = run(command, "", "--folder", str(folder))
    assert code == 2
    assert "an empty path names nothing" in output


def test_an_export_of_nothing(folder: Path, tar: Path) -> None:
    where = ("--folder", str(folder))
    before = tar.read_bytes()
    assert run("purge", "--all", *where) == (0, "3 removed\n")
    code, output = run("export", str(tar), *where)
    assert (code, f"nothing sound is stored in {folder}: {tar} stays as it is" in output) == (1, True)
    assert tar.read_bytes() == before
    tar.unlink()
    assert run("export", str(tar), *where) == (0, "0 exported\n")
    assert run("import", str(tar), *where) == (0, "0 stored, 0 refused\n")
