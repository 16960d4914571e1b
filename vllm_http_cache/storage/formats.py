"""What earlier formats have left beside ``v1``. Later ones look after themselves, and after this one."""

from __future__ import annotations

import os
import shutil

from .layout import FORMAT, Home

__all__ = ["occupied_by_older", "remove_older"]


def _older(home: Home) -> list[str]:
    own = int(FORMAT[1:])
    names = (name for name in os.listdir(home.parent) if name[:1] == "v" and name[1:].isdecimal())
    return [name for name in names if int(name[1:]) < own]


def occupied_by_older(home: Home) -> int:
    """Octets."""
    total = 0
    for name in _older(home):
        for _, _, files, fd in os.fwalk(name, dir_fd=home.parent):
            total += os.fstat(fd).st_blocks * 512
            for file in files:
                total += os.stat(file, dir_fd=fd, follow_symlinks=False).st_blocks * 512
    return total


def remove_older(home: Home) -> bool:
    """Whether there was anything. Nothing is removed once somebody has moved the cache."""
    names = _older(home) if home.stands() else []
    for name in names:
        shutil.rmtree(name, ignore_errors=True, dir_fd=home.parent)
    return bool(names)
