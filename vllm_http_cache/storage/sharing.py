"""Folders that a group shares, and what a killed process had made and not yet shared."""

from __future__ import annotations

import os
import stat

from .devices import shut

__all__ = ["DIRECTORY", "is_left", "is_shared", "make_folder", "remove_empty", "share"]

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def make_folder(path: str, parent: int, *, group: bool) -> bool:
    """Make a folder unless it is there; whether this call has.

    Between making and sharing it may be seen, or its maker killed. It is empty then: whoever comes and may not share it
    removes it and makes another.

    :param group: whether it is to be shared.
    """
    made = False
    for _ in range(8):
        try:
            os.mkdir(path, 0o700, dir_fd=parent)
            made = True
        except FileExistsError:
            pass
        if not group:
            break
        try:
            status = os.stat(path, dir_fd=parent, follow_symlinks=False)
            if is_shared(status) or not stat.S_ISDIR(status.st_mode):
                break
            if share(path, parent) or not remove_empty(path, parent):
                break
        except FileNotFoundError:
            pass  # others have removed it
    return made


def share(path: str, parent: int) -> bool:
    """Share a folder; False: it is another user's."""
    try:
        fd = os.open(path, DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    except PermissionError:
        return False
    try:
        os.fchmod(fd, 0o2770)
    except PermissionError:
        return False
    finally:
        shut(fd)
    return True


def remove_empty(path: str, parent: int) -> bool:
    try:
        os.rmdir(path, dir_fd=parent)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def is_shared(status: os.stat_result) -> bool:
    """Whether members of its group may make files in a folder, which are the group's then."""
    return status.st_mode & 0o2070 == 0o2070


def is_left(status: os.stat_result) -> bool:
    """Whether a file of a shared folder is what its maker, killed, has made and not shared."""
    return not status.st_size and status.st_mode & 0o060 != 0o060
