"""Locks between processes: flock, never waited for without an end.

Where the file system has no locks, or lies about them, they only cost accuracy: what is read is checked, and what is
replaced is replaced by rename.
"""

from __future__ import annotations

import errno
import fcntl
import time

__all__ = ["lock", "try_lock", "unlock"]

_MISSING = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}


def try_lock(fd: int, *, shared: bool = False) -> bool | None:
    """Lock an open file. False: another has it. None: there are no locks here.

    :param shared: together with others who only want to know whether anybody has it.
    """
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _MISSING:
            return None
        raise
    return True


def lock(fd: int, patience: float) -> None:
    """Lock an open file.

    :raises TimeoutError: another has kept it for *patience* seconds.
    """
    if try_lock(fd) is not False:
        return
    deadline = time.monotonic() + patience
    pause = 0.0001
    while time.monotonic() < deadline:
        time.sleep(pause)
        if try_lock(fd) is not False:
            return
        pause = min(pause * 2, 0.005)
    raise TimeoutError(errno.ETIMEDOUT, "a lock was not released in time")


def unlock(fd: int) -> None:
    """Never fails: the lock goes with the descriptor at the latest."""
    try:
        fcntl.flock(fd, fcntl.LOCK_UN)
    except (OSError, ValueError):
        pass
