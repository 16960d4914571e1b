"""What kind of file system lies below."""

from __future__ import annotations

import os

__all__ = ["is_remote"]

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
)


def is_remote(fd: int, mounts: str = "/proc/self/mountinfo") -> bool:
    """Whether the file system of an open file may answer over a network (as far as the system says)."""
    device = os.fstat(fd).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open(mounts, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                mount, _, kind = line.partition(" - ")
                if mount.split(" ", 3)[2] == number:
                    return kind.startswith(_REMOTE) and not kind.startswith("fuseblk")
    except (OSError, IndexError):
        pass
    return False
