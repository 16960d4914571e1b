"""Whose the folder is: owners, groups, and what anybody may write."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.storage import actors
from tests.storage.conftest import Make
from tests.storage.faults import Nth, fail, intercepted
from tests.storage.helpers import key, load, needs_root, own_folder, response, store, v1, warnings, works_not
from vllm_http_cache.storage.files import FileStorage

KEY = key("owners")

pytestmark = pytest.mark.usefixtures("impatient")


@needs_root
@pytest.mark.parametrize("where", [".vllm-http-cache", ".vllm-http-cache/v1"])
def test_a_folder_of_another_owner_is_not_used(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    first = make()
    assert store(first, KEY, b"x")
    first.close()
    os.chown(tmp_path / "cache" / where, 12345, 12345)
    storage = make()
    assert works_not(storage, KEY)
    assert warnings(caplog) == 1
    assert "12345" in caplog.text
    os.chown(tmp_path / "cache" / where, 0, 0)
    assert load(storage, KEY) == b"x"


@needs_root
def test_a_group_shares_with_whoever_is_in_it(make: Make, tmp_path: Path) -> None:
    first = make(group=True)
    assert store(first, KEY, b"x")
    first.close()
    for path in (own_folder(tmp_path / "cache"), *own_folder(tmp_path / "cache").rglob("*")):
        os.chown(path, 12345, 0)
    assert load(make(group=True), KEY) == b"x"
    assert store(make(group=True), KEY, b"y")


@needs_root
@pytest.mark.parametrize("mode, gid", [(0o700, 0), (0o2750, 0), (0o770, 0), (0o2770, 12345)])
def test_a_group_leaves_alone_what_is_not_shared_with_it(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, gid: int
) -> None:
    first = make()
    assert store(first, KEY, b"x")
    first.close()
    own = own_folder(tmp_path / "cache")
    os.chown(own, 12345, gid)
    own.chmod(mode)
    shared = mode == 0o2770  # and root is a member of every group
    assert (load(make(group=True), KEY) is None) is not shared
    assert ("not shared with this user's groups" in caplog.text) is not shared


@pytest.mark.parametrize("group", [False, True])
@pytest.mark.parametrize("where", [".vllm-http-cache", ".vllm-http-cache/v1"])
def test_a_folder_that_anybody_may_write_is_not_used(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, where: str, group: bool
) -> None:
    first = make(group=group)
    assert store(first, KEY, b"x")
    first.close()
    mode = (tmp_path / "cache" / where).stat().st_mode
    (tmp_path / "cache" / where).chmod(0o777)
    storage = make(group=group)
    assert works_not(storage, KEY)
    assert warnings(caplog) == 1
    (tmp_path / "cache" / where).chmod(stat.S_IMODE(mode))
    assert load(storage, KEY) == b"x"


def test_a_parent_that_anybody_may_write_is_used(make: Make, tmp_path: Path) -> None:
    """As /tmp, or an emptyDir: the own subfolder is what counts."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    assert store(make(), KEY, b"x")
    assert stat.S_IMODE(own_folder(tmp_path / "cache").stat().st_mode) == 0o700


def as_nobody(work: str, path: Path) -> str:
    """What a program prints that runs without privileges."""
    code = (
        "import os, sys, logging\nlogging.basicConfig(stream=sys.stdout, format='%(levelname)s %(message)s')\n"
        "from tests.storage.helpers import *\n"
        "from vllm_http_cache.storage.files import FileStorage\n"
        f"os.setgroups([]); os.setgid(12345); os.setuid(12345)\nstorage = FileStorage({str(path)!r})\n{work}"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return run.stdout + run.stderr


@needs_root
def test_a_folder_that_may_only_be_read_serves_hits(make: Make, tmp_path: Path) -> None:
    """Root has filled it; the server runs as somebody else, who may look."""
    first = make()
    assert store(first, KEY, b"served")
    first.close()
    for path in (tmp_path / "cache", *(tmp_path / "cache").rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_mode & 0o005 != 0o005 and parent.owner() == "root":
            parent.chmod(parent.stat().st_mode | 0o055)
    said = as_nobody(
        "claimed = lambda: storage.claim(key('f')) is not None\n"
        "print(load(storage, key('owners')), store(storage, key('owners'), b'x'), claimed())\n"
        "print(load(storage, key('owners')))",
        tmp_path / "cache",
    )
    lines = said.splitlines()
    assert [line for line in lines if not line.startswith("WARNING")] == ["b'served' False True", "b'served'"], said
    assert len(lines) == 3, "one warning"


@needs_root
def test_what_its_maker_killed_did_not_share_keeps_no_member_out() -> None:
    nth, status = 0, -signal.SIGKILL
    while status == -signal.SIGKILL:
        nth += 1
        with TemporaryDirectory() as folder:
            os.chown(folder, 0, 12345)
            os.chmod(folder, 0o2770)
            status = actors.run(actors.store_as_member, Path(folder), 54321, nth) or 0
            assert actors.run(actors.store_as_member, Path(folder), 54322, 1000) == 0, nth
    assert status == 0
    assert nth > 10


@needs_root
def test_a_tag_that_only_its_maker_may_write_keeps_no_member_out() -> None:
    with TemporaryDirectory() as folder:
        own_folder(folder).mkdir()
        tag = own_folder(folder) / "CACHEDIR.TAG"
        tag.touch(0o600)
        for path in (Path(folder), own_folder(folder)):
            os.chown(path, 54321, 12345)
            path.chmod(0o2770)
        assert actors.run(actors.store_as_member, Path(folder), 54322, 1000) == 0
        assert tag.exists()


@pytest.mark.parametrize("nth", range(1, 6))
def test_what_could_not_be_shared_is_shared_by_its_owner_at_the_next_use(make: Make, tmp_path: Path, nth: int) -> None:
    (tmp_path / "cache").mkdir()
    with intercepted(Nth(nth, fail(errno.EIO), only="fchmod")):
        store(make(group=True), KEY, b"x")
    assert store(make(group=True), KEY, b"x")
    assert set(modes_of_folders(tmp_path / "cache").values()) == {0o2770}


def modes_of_folders(path: Path) -> dict[str, int]:
    folders = [own_folder(path), *own_folder(path).rglob("*")]
    return {folder.name: stat.S_IMODE(folder.stat().st_mode) for folder in folders if folder.is_dir()}


@pytest.mark.parametrize("shared", [False, True])
def test_what_is_made_in_a_folder_is_shared_as_the_folder_is(make: Make, tmp_path: Path, shared: bool) -> None:
    """Also by a server of the same user that was told otherwise."""
    assert store(make(group=shared), KEY, b"x")
    other = make(group=not shared)
    assert store(other, key(2), b"y")
    writer = other.create_body(KEY, None)
    assert writer
    mode, file_modes = (0o2770, {0o660, 0o440}) if shared else (0o700, {0o600, 0o400})
    assert set(modes_of_folders(tmp_path / "cache").values()) == {mode}
    files = [path for path in v1(tmp_path / "cache").rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == file_modes
    writer.abort()


def test_who_shares_a_cache_that_was_made_without_is_told_once(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert store(make(), KEY, b"x")
    storage = make(group=True)
    assert load(storage, KEY) == b"x" and store(storage, KEY, b"y")
    assert warnings(caplog) == 1
    assert (
        "it is not shared with a group: where it was made without MEDIA_CACHE_GROUP, remove .vllm-http-cache"
        in caplog.text
    )
    shutil.rmtree(own_folder(tmp_path / "cache"))
    assert store(storage, KEY, b"z")
    assert warnings(caplog) == 1
    assert set(modes_of_folders(tmp_path / "cache").values()) == {0o2770}


@needs_root
@pytest.mark.parametrize("group", [False, True])
def test_a_member_is_told_why_the_cache_is_not_shared(group: bool) -> None:
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        storage = FileStorage(folder)
        assert store(storage, KEY, b"x")
        os.chown(own_folder(folder), 12346, -1)
        printed = as_nobody(f"storage = FileStorage({folder!r}, group={group})\nstorage.read({KEY!r})", Path(folder))
        storage.close()
    assert printed.count("WARNING") == 1
    assert "the cache's folder belongs to user 12346" in printed
    assert ("not shared with this user's groups (where it was made without MEDIA_CACHE_GROUP" in printed) is group


def test_a_cache_made_anew_in_a_shared_folder_is_shared(make: Make, tmp_path: Path) -> None:
    assert store(make(group=True), KEY, b"x")
    shutil.rmtree(v1(tmp_path / "cache"))
    assert store(make(), KEY, b"y")
    assert set(modes_of_folders(tmp_path / "cache").values()) == {0o2770}


def test_a_folder_that_its_owner_has_taken_from_the_group_is_shared_when_it_changes(make: Make, tmp_path: Path) -> None:
    storage = make(group=True)
    assert store(storage, KEY, b"x")
    (v1(tmp_path / "cache") / KEY[:2]).chmod(0o700)
    assert store(storage, KEY, b"y")
    assert modes_of_folders(tmp_path / "cache")[KEY[:2]] == 0o2770


@pytest.mark.parametrize("mode, full, shared", [(0o700, False, True), (0o700, True, False), (0o750, False, False)])
def test_a_users_folder_is_shared_only_if_its_maker_may_have_died_before(
    make: Make, tmp_path: Path, mode: int, full: bool, shared: bool
) -> None:
    path = tmp_path / "cache"
    path.mkdir()
    path.chmod(mode)
    if full:
        (path / "theirs").touch()
    assert store(make(group=True), KEY, b"x")
    assert stat.S_IMODE(path.stat().st_mode) == (0o2770 if shared else mode)


def test_a_umask_that_takes_write_permission_makes_nothing_look_whole(storage: FileStorage) -> None:
    before = os.umask(0o222)
    try:
        writer = storage.create_body(KEY, None)
        assert writer
        writer.publish(KEY, response())
        growing = storage.growing(KEY)
    finally:
        os.umask(before)
    assert growing
    assert growing.ended() is None
    assert writer.commit()
    assert growing.ended() is True
    growing.close()
