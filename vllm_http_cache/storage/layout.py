"""Where each file lies, and whether the ground is fit to stand on.

    <path>/.vllm-http-cache/
        CACHEDIR.TAG
        v1/
            ledger                  what all this occupies, see ledger.py
            claims  sweep           locked, never written
            growing/<flight>        bodies that other processes may follow while they grow
            writers/<n>             locked for as long as writer n lives; what it has reserved, and its host
            writers/<n>.d/<random>  what writer n is writing
            <2 digits>/<key>            the record of a key; the digits are the key's first two
            <2 digits>/<key>.<random>   a body of that key

Every path is relative to the open ``v1``, so nobody can put another folder in its place between a check and a use.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from errno import ENOTDIR, EPERM
from typing import TypeVar

from .devices import Device, allocate_exactly, file_system, is_no_file, is_remote, shut
from .sharing import DIRECTORY, is_left, is_shared, make_folder, remove_empty, share

__all__ = ["FOLDERS", "FORMAT", "OWN", "UNSHARED", "Home", "arrive", "file_path", "is_body", "is_key", "is_temporary"]

T = TypeVar("T")

OWN = ".vllm-http-cache"
FORMAT = "v1"
TAG = "CACHEDIR.TAG"
FOLDERS = tuple(f"{number:02x}" for number in range(256))

UNSHARED = f"where it was made without MEDIA_CACHE_GROUP, remove {OWN}, and it is made anew"

_TAG = b"""Signature: 8a477f597d28d172789f06886806bc55
# This folder is a cache made by vllm-http-cache. It may be deleted at any time.
"""
_BLOCK = 4096
_LARGEST_BLOCK = 64 * 1024

is_key = re.compile(r"[0-9a-f]{64}").fullmatch
is_temporary = re.compile(r"writers/[0-9]{1,3}\.d/[0-9a-f]{16}").fullmatch
is_body = re.compile(r"[0-9a-f]{64}\.[0-9a-f]{16}").fullmatch


def file_path(name: str) -> str:
    """Where the record of the key *name*, or the body *name*, lies."""
    return f"{name[:2]}/{name}"


class Home:
    """The open ``v1`` folder, and the one it was found in: ``..`` is another once ``v1`` is moved.

    What is made in it is shared with a group if it is, whatever this process was told.
    """

    def __init__(self, path: str, parent: int, fd: int) -> None:
        self.path = path
        self.parent = parent
        self.fd = fd
        status = os.fstat(fd)
        self._identity = status.st_dev, status.st_ino
        self.group = group = is_shared(status)
        self.older = 0  # octets that older formats were found to occupy
        self._file_system = file_system(fd)
        self.remote = is_remote(self._file_system)
        self._block = max(min(max(os.fstatvfs(fd).f_frsize, _BLOCK), _LARGEST_BLOCK), self._smallest())
        self.slack = 4 * self._block  # folders that grow by a name, an attribute block
        self.file_mode = 0o660 if group else 0o600
        self.whole_mode = 0o440 if group else 0o400

    def _smallest(self) -> int:
        """Octets that a small file occupies: where room is given out in clusters or huge pages, more than a block."""
        with suppress(OSError):
            tag = os.stat(TAG, dir_fd=self.parent, follow_symlinks=False)
            if stat.S_ISREG(tag.st_mode) and tag.st_size <= _BLOCK:
                return tag.st_blocks * 512
        return 0

    def close(self) -> None:
        """In a forked child at once; otherwise when the last user has gone, lest another file gets the number."""
        fds, self.fd, self.parent = (self.fd, self.parent), -1, -1
        for fd in fds:
            shut(fd)

    __del__ = close

    def stands(self) -> bool:
        """Whether the path still leads to this folder."""
        try:
            status = os.stat(self.path)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._identity

    def room(self, size: int) -> int:
        """Octets that a file of *size* octets occupies at most: its blocks, at least one, and those that list them."""
        blocks = max(-(-size // self._block), 1)
        return (blocks + (blocks > 4) + blocks // 256) * self._block

    def cost(self, status: os.stat_result) -> int:
        """Octets that a file is charged with; does not change while its size does not."""
        return max(status.st_blocks * 512, self.room(status.st_size))

    def device(self) -> Device | None:
        """None: it does not say how large it is."""
        found = os.fstatvfs(self.fd)
        size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
        return Device(size, free, found.f_files, found.f_favail) if size else None

    def status(self, path: str) -> os.stat_result | None:
        """None: there is no such file."""
        try:
            return os.stat(path, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def is_at(self, path: str, fd: int) -> bool:
        """Whether an open file is the one that is there: nobody has moved, removed or replaced it."""
        found = self.status(path)
        return found is not None and os.path.samestat(os.fstat(fd), found)

    def blocks(self, path: str) -> int:
        """Octets that a file, or a folder itself, occupies at this moment; 0 when there is none."""
        status = self.status(path)
        return status.st_blocks * 512 if status else 0

    def parent_blocks(self) -> int:
        """As :meth:`blocks`, of what lies around ``v1`` in every format."""
        with suppress(FileNotFoundError):
            tag = os.stat(TAG, dir_fd=self.parent, follow_symlinks=False)
            return (os.fstat(self.parent).st_blocks + tag.st_blocks) * 512
        return os.fstat(self.parent).st_blocks * 512

    def folder_blocks(self, path: str) -> int:
        """As :meth:`blocks`; whatever is in the place of a folder and is none goes."""
        status = self.status(path)
        if status is None:
            return 0
        if stat.S_ISDIR(status.st_mode):
            if self.group and not is_shared(status):
                self.make_folder(path)
            return status.st_blocks * 512
        self.unlink(path)
        return 0

    def open(self, path: str, flags: int) -> int:
        """Open a file of the cache. No link is followed, and opening a pipe does not wait."""
        flags |= os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            fd = os.open(path, flags, self.file_mode, dir_fd=self.fd)
        except OSError as error:
            in_the_way = isinstance(error, PermissionError) or is_no_file(error)
            if not (flags & os.O_CREAT and in_the_way) or isinstance(error, FileNotFoundError):
                raise
            self._clear(path)
            fd = os.open(path, flags, self.file_mode, dir_fd=self.fd)
        if flags & os.O_CREAT and not flags & os.O_EXCL and not stat.S_ISREG(os.fstat(fd).st_mode):
            shut(fd)  # a pipe
            self._clear(path)
            fd = os.open(path, flags | os.O_EXCL, self.file_mode, dir_fd=self.fd)
        if flags & os.O_CREAT:
            with suppress(OSError):  # another member's file, shared already
                if self.group or not os.fstat(fd).st_mode & stat.S_IWUSR:
                    os.fchmod(fd, self.file_mode)  # past the umask
        return fd

    def make_folder(self, path: str) -> None:
        """Make a folder unless it is there; whatever is in its place and is none goes."""
        made = make_folder(path, self.fd, group=self.group)
        if not made and not self._is_folder(path):
            self.unlink(path)
            made = make_folder(path, self.fd, group=self.group)
        if made and self._file_system == "xfs":
            self._with_folder(path, lambda fd: allocate_exactly(fd, self._block))

    def _is_folder(self, path: str) -> bool:
        status = self.status(path)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def _with_folder(self, path: str, act: Callable[[int], T]) -> T:
        fd = os.open(path, DIRECTORY | os.O_NOFOLLOW, dir_fd=self.fd)
        try:
            return act(fd)
        finally:
            shut(fd)

    def unlink(self, path: str) -> None:
        """Remove a file, or an empty folder in its place, if it is there."""
        try:
            os.unlink(path, dir_fd=self.fd)
        except FileNotFoundError:
            pass
        except IsADirectoryError:
            self.remove_folder(path)

    def _clear(self, path: str) -> None:
        """Remove what is in the place of a file: a folder, a link, a pipe, a file that was not shared in time.

        No other file: it is another process's.
        """
        status = self.status(path)
        if status is None:
            return
        if stat.S_ISREG(status.st_mode) and not (self.group and is_left(status)):
            return
        if stat.S_ISDIR(status.st_mode):
            shutil.rmtree(path, ignore_errors=True, dir_fd=self.fd)
        else:
            self.unlink(path)

    def remove_folder(self, path: str) -> bool:
        """Remove a folder if it is empty; whether it has gone."""
        return remove_empty(path, self.fd)

    def replace(self, source: str, target: str) -> None:
        """Move a finished file to its place, making its folder if need be."""
        try:
            os.rename(source, target, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except IsADirectoryError:
            self.remove_folder(target)
            os.rename(source, target, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except (FileNotFoundError, NotADirectoryError):
            self.make_folder(target.partition("/")[0])
            os.rename(source, target, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def fsync_folder(self, path: str) -> None:
        self._with_folder(path, os.fsync)

    def names(self, folder: str) -> list[str]:
        """The names in a folder; none when there is no such folder."""
        try:
            return self._with_folder(folder, os.listdir)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except PermissionError:
            if self.group and self.remove_folder(folder):  # it was not shared in time
                return []
            raise


def arrive(path: str, *, group: bool, create: bool) -> Home | None:
    """Open the cache's own folder in *path*. None: there is none, and *create* is false.

    :raises OSError: it cannot be opened or made, or somebody else could put files there.
    """
    try:
        if create:
            _make_users_folder(path, group=group)
        user_fd = os.open(path, DIRECTORY)
    except FileNotFoundError:
        if create:
            raise
        return None
    try:
        own_fd = _enter(OWN, user_fd, group=group, shared=group, create=create)
        if own_fd is None:
            return None
        try:
            if create:
                _tag(own_fd)
            fd = _enter(FORMAT, own_fd, group=group, shared=is_shared(os.fstat(own_fd)), create=create)
            if fd is None:
                return None
            parent, own_fd = own_fd, None
            return Home(os.path.join(path, OWN, FORMAT), parent, fd)
        finally:
            if own_fd is not None:
                shut(own_fd)
    finally:
        shut(user_fd)


def _make_users_folder(path: str, *, group: bool) -> None:
    try:
        os.makedirs(path, 0o700)
    except FileExistsError:
        if not group or os.listdir(path) or stat.S_IMODE(os.stat(path).st_mode) != 0o700:
            return  # somebody has made it as it should be
    if group:
        with suppress(PermissionError):  # another user's
            os.chmod(path, 0o2770)


def _enter(name: str, parent: int, *, group: bool, shared: bool, create: bool) -> int | None:
    """:param group: whether a folder may be another member's.
    :param shared: whether it is shared when it is made.
    """
    if create:
        make_folder(name, parent, group=shared)
    try:
        fd = os.open(name, DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    except FileNotFoundError:
        return None
    except PermissionError:
        if shared and remove_empty(name, parent):  # it was not shared in time
            return _enter(name, parent, group=group, shared=shared, create=create)
        _check(os.stat(name, dir_fd=parent, follow_symlinks=False), name, group=group)
        raise
    except OSError as error:
        if error.errno == ENOTDIR:
            raise NotADirectoryError(ENOTDIR, "a file or a link is in the place of the cache's folder", name) from None
        raise
    try:
        if shared and not is_shared(os.fstat(fd)) and not os.listdir(fd):
            share(".", fd)
        _check(os.fstat(fd), name, group=group)
    except BaseException:
        shut(fd)
        raise
    return fd


def _check(status: os.stat_result, name: str, *, group: bool) -> None:
    if status.st_uid not in (os.geteuid(), 0) and not (group and _is_shared_with_us(status)):
        whose = f"belongs to user {status.st_uid}"
        if group:
            whose += ", and is not shared with this user's groups" + ("" if is_shared(status) else f" ({UNSHARED})")
        raise PermissionError(EPERM, f"the cache's folder {whose}", name)
    if status.st_mode & stat.S_IWOTH:
        raise PermissionError(EPERM, "anybody may write to the cache's folder", name)


def _is_shared_with_us(status: os.stat_result) -> bool:
    member = os.geteuid() == 0 or status.st_gid in {os.getegid(), *os.getgroups()}
    return member and is_shared(status)


def _tag(own_fd: int) -> None:
    with suppress(FileNotFoundError):
        found = os.stat(TAG, dir_fd=own_fd, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode) or found.st_size >= len(_TAG):
            return
    try:
        fd = os.open(TAG, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=own_fd)
    except PermissionError:
        return  # another member's, for it to write
    try:
        os.write(fd, _TAG)
    finally:
        shut(fd)
