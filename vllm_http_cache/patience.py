"""How long callers depend on somebody who does not get on, before one of them asks the origin in its stead.

Who receives a body shows that it lives, however slow its origin: its event loop turns.
"""

from __future__ import annotations

__all__ = ["patience"]

SHORTEST = 1.0  # seconds; of less nobody can tell
SILENT_SECONDS = 3.0  # without a sign of life


def patience(timeout: float | None) -> float:
    """Seconds without a sign of life after which a caller who waits for *timeout* seconds depends on it no longer.

    Half of the time: the other half is for an answer of its own.
    """
    return SILENT_SECONDS if timeout is None else max(SHORTEST, min(timeout / 2, SILENT_SECONDS))
