"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FULL", "KB", "MB", "QUICK", "Plan"]

KB = 1000
MB = 1000 * KB


@dataclass(frozen=True, slots=True)
class Plan:
    """Counts, and seconds on a machine that has nothing else to do.

    :param rounds: of each comparison; fewer once it has taken ``patience`` seconds, but at least three.
    :param round_seconds: of one subject's round.
    :param entries: in the large folder.
    :param age: seconds that the large folder is left alone before it is used.
    :param whole: octets of the body whose memory is measured.
    :param hits: of one round of the throughput contest.
    :param stalls: large bodies in one round of the stalls contest.
    :param starts: interpreters started, of each kind.
    """

    rounds: int
    round_seconds: float
    patience: float
    entries: int
    age: float
    whole: int
    hits: int
    stalls: int
    starts: int


FULL = Plan(
    rounds=15,
    round_seconds=0.1,
    patience=20.0,
    entries=100_000,
    age=185.0,
    whole=200 * MB,
    hits=4000,
    stalls=4,
    starts=20,
)
QUICK = Plan(
    rounds=5, round_seconds=0.04, patience=5.0, entries=5_000, age=0.0, whole=40 * MB, hits=1000, stalls=2, starts=7
)
