"""What earlier formats have left beside ``v1``. Later ones look after themselves, and after this one."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress

from .layout import FORMAT, Home

__all__ = ["measure_older", "occupied_by_older", "remove_older"]


def _older(home: Home) -> list[str]:
    own = int(FORMAT[1:])
    names = (name for name in os.listdir(home.parent) if name[:1] == "v" and name[1:].isdecimal())
    return [name for name in names if int(name[1:]) < own]


def measure_older(home: Home) -> None:
    """Look through them, before the ledger is locked, for :func:`occupied_by_older`."""
    home.older = sum(_occupied(home, name) for name in _older(home))


def _occupied(home: Home, name: str) -> int:
    total = 0
    with suppress(OSError):  # of what cannot be looked through, nobody knows
        status = os.stat(name, dir_fd=home.parent, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            return status.st_blocks * 512
        for _, _, files, fd in os.fwalk(name, dir_fd=home.parent):
            total += os.fstat(fd).st_blocks * 512
            for file in files:
                with suppress(FileNotFoundError):
                    total += os.stat(file, dir_fd=fd, follow_symlinks=False).st_blocks * 512
    return total


def occupied_by_older(home: Home) -> int:
    """Octets, as they were measured, until they have gone: they do not become more."""
    return home.older if home.older and _older(home) else 0


def remove_older(home: Home) -> bool:
    """Whether there was anything. Nothing is removed once somebody has moved the cache."""
    names = _older(home) if home.stands() else []
    for name in names:
        with suppress(OSError):
            if stat.S_ISDIR(os.stat(name, dir_fd=home.parent, follow_symlinks=False).st_mode):
                shutil.rmtree(name, ignore_errors=True, dir_fd=home.parent)
            else:
                os.unlink(name, dir_fd=home.parent)
    return bool(names)
