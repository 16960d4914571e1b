"""What earlier formats have left beside ``v1``. Later ones look after themselves, and after this one."""

from __future__ import annotations

import os
import shutil

from .layout import FORMAT, Home

__all__ = ["occupied_by_older", "remove_older"]


def _older(home: Home) -> list[str]:
    own = int(FORMAT[1:])
    names = (name for name in home.names("..") if name[:1] == "v" and name[1:].isdecimal())
    return [f"../{name}" for name in names if int(name[1:]) < own]


def occupied_by_older(home: Home) -> int:
    """Octets."""
    total = 0
    for path in _older(home):
        for _, _, files, fd in os.fwalk(path, dir_fd=home.fd):
            total += os.fstat(fd).st_blocks * 512
            for name in files:
                total += os.stat(name, dir_fd=fd, follow_symlinks=False).st_blocks * 512
    return total


def remove_older(home: Home) -> bool:
    """Whether there was anything."""
    paths = _older(home)
    for path in paths:
        shutil.rmtree(path, ignore_errors=True, dir_fd=home.fd)
    return bool(paths)
