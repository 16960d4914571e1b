"""What a collector has found unclosed, to be closed at the next occasion.

A collector may run inside any lock of ours, so that nothing can be closed there.
"""

from __future__ import annotations

import logging
from queue import Empty, SimpleQueue
from typing import Protocol

__all__ = ["abandon", "close_abandoned"]

log = logging.getLogger("vllm_http_cache")


class Closable(Protocol):
    def close(self) -> None: ...


_abandoned: SimpleQueue[Closable] = SimpleQueue()  # its put may be called while its own get is under way


def abandon(thing: Closable) -> None:
    """Have it closed later."""
    _abandoned.put(thing)


def close_abandoned() -> None:
    """Close what was abandoned."""
    while not _abandoned.empty():
        try:
            _abandoned.get_nowait().close()
        except Empty:  # another thread was faster
            pass
        except Exception:  # of whoever threw it away, and not of this caller
            log.exception("what was thrown away could not be closed")
