"""Descriptors, and what kind of file system they lead to."""

from __future__ import annotations

import fcntl
import os
import struct
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from errno import EDQUOT, EISDIR, ELOOP, ENOENT, ENOSPC, ENOTDIR, ENXIO, ESPIPE
from itertools import islice

__all__ = [
    "Descriptor",
    "Device",
    "allocate_exactly",
    "file_system",
    "is_full",
    "is_no_file",
    "is_remote",
    "shut",
    "write_all",
]

_REMOTE = (
    "nfs",
    "cifs",
    "smb",
    "9p",
    "ceph",
    "lustre",
    "gpfs",
    "gluster",
    "afs",
    "beegfs",
    "virtiofs",
    "fuse",
    "ocfs2",
    "gfs2",
    "wekafs",
)

_PIECES = 1024  # that the system takes in one call (IOV_MAX)

_XATTR = struct.Struct("=5I8s")  # struct fsxattr of <linux/fs.h>: flags, size of extents, ...
_GET_XATTR, _SET_XATTR = 0x801C581F, 0x401C5820  # FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR
_EXTENT_SIZE_INHERITED = 0x1000  # FS_XFLAG_EXTSZINHERIT


@dataclass(frozen=True, slots=True)
class Device:
    """How large it is and how much of it is free for us, in octets; the same in files, 0 where they are not limited."""

    size: int
    free: int
    files: int = 0
    free_files: int = 0

    def floor(self, wanted: int | None) -> int:
        """Octets to be left free. None: a twentieth of the device, 64 MiB at most."""
        return min(self.size // 20, 64 * 1024**2) if wanted is None else wanted

    @property
    def floor_of_files(self) -> int:
        """Files that others are left to make: a twentieth of all, 16 384 at most."""
        return min(self.files // 20, 16 * 1024)


class Descriptor:
    """An open file. It is closed when nobody has it any more, hence never while another thread reads from it."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def close(self) -> None:
        """At once, where no other thread can be about to use it."""
        number, self.number = self.number, -1
        shut(number)

    def __del__(self) -> None:
        try:
            self.close()
        except TypeError:  # the interpreter ends and has cleared this module; the system closes the file
            pass


def file_system(fd: int, mounts: str = "/proc/self/mountinfo") -> str:
    """The name of the file system of an open file, as far as the system says."""
    device = os.fstat(fd).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open(mounts, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                mount, _, rest = line.partition(" - ")
                if mount.split(" ", 3)[2] == number:
                    return rest.partition(" ")[0]
    except (OSError, IndexError):
        pass
    return ""


def is_remote(name: str) -> bool:
    """Whether a file system may answer over a network."""
    return name.startswith(_REMOTE) and name != "fuseblk"


def allocate_exactly(folder: int, block: int) -> None:
    """Have files made in a folder occupy no more than they hold while they grow: XFS allots them ahead otherwise."""
    try:
        flags, _, *rest = _XATTR.unpack(fcntl.ioctl(folder, _GET_XATTR, bytes(_XATTR.size)))
        fcntl.ioctl(folder, _SET_XATTR, _XATTR.pack(flags | _EXTENT_SIZE_INHERITED, block, *rest))
    except OSError:
        pass  # then the bound holds but for that


def is_no_file(error: OSError) -> bool:
    """Whether there is none, or something else in the place of a file: a folder, a pipe, a link."""
    return error.errno in {EISDIR, ELOOP, ENOENT, ENOTDIR, ENXIO, ESPIPE}


def is_full(error: OSError) -> bool:
    """Whether there was no room. A file system that writes nothing in place says so even when a file is changed."""
    return error.errno in {ENOSPC, EDQUOT}


def write_all(fd: int, pieces: Iterable[bytes], offset: int) -> None:
    """Write *pieces* one after another from *offset* on, at once if the system takes them all.

    :raises OSError: the disk does not.
    """
    left = deque(memoryview(data) for data in pieces)
    while left:
        done = os.pwritev(fd, tuple(islice(left, _PIECES)), offset)
        offset += done
        while left and done >= len(left[0]):
            done -= len(left.popleft())
        if left:
            left[0] = left[0][done:]


def shut(fd: int) -> None:
    """Close a descriptor, if it is one. What went wrong with earlier writes is found when they are read."""
    if fd >= 0:
        try:
            os.close(fd)
        except OSError:
            pass
