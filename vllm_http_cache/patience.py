"""How long callers depend on somebody who does not get on, before one of them asks the origin in its stead.

Who receives a body shows that it lives, however slow its origin: its event loop turns, and it touches the file that
other processes follow. Before the head there is nothing to see between processes: there time alone decides.
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["BEAT", "CLAIM_SECONDS", "head_patience", "looks", "patience"]

LOOK = 1.0  # seconds between two looks whether anybody is still at it, at most
BEAT = 0.5  # seconds after which who receives a body shows other processes that it lives
SHORTEST = 1.0  # seconds; of less nobody can tell
SILENT_SECONDS = 3.0  # without a sign of life
REMOTE_SECONDS = 10.0  # the same where signs are seen late, behind a network
HEAD_SECONDS = 10.0  # without a head from another process
CLAIM_SECONDS = 30.0  # after which a caller leads in its own process, whoever leads in others


def patience(timeout: float | None, *, remote: bool = False) -> float:
    """Seconds without a sign of life after which a caller who waits for *timeout* seconds depends on it no longer."""
    return _within(timeout, REMOTE_SECONDS if remote else SILENT_SECONDS)


def head_patience(timeout: float | None) -> float:
    """The same without a head from another process."""
    return _within(timeout, HEAD_SECONDS)


def looks(timeout: float | None) -> Iterator[tuple[float, float]]:
    """How long a caller has waited before each look, and is to wait until the next; until its time is up, and once."""
    look, waited = min(LOOK, patience(timeout) / 4), 0.0
    while waited == 0.0 or timeout is None or waited < timeout:
        yield waited, look if timeout is None else min(timeout - waited, look)
        waited += look


def _within(timeout: float | None, longest: float) -> float:
    """Half of the time: the other half is for an answer of its own."""
    return longest if timeout is None else max(SHORTEST, min(timeout / 2, longest))
