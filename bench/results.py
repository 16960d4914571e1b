"""What comes out of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from .measuring import Sample

__all__ = ["Results", "Row", "Timing", "ratio"]


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table of targets.

    :param value: what was measured; None: it was not, and ``note`` says why.
    :param unit: of target and value; empty: they are ratios.
    :param cpu: the same ratio of CPU times, where the value is one of wall times.
    :param against: what ours is compared with.
    """

    contest: str
    what: str
    target: float
    value: float | None = None
    unit: str = ""
    cpu: float | None = None
    against: str = ""
    note: str = ""

    @property
    def reached(self) -> bool | None:
        return None if self.value is None else round(self.value, 2) <= self.target


@dataclass(frozen=True, slots=True)
class Timing:
    """A subject's rounds in one comparison; without any, ``note`` says why."""

    contest: str
    client: str
    cache: str
    rounds: tuple[Sample, ...] = ()
    note: str = ""

    @property
    def wall(self) -> float:
        """Seconds."""
        return median(sample.wall for sample in self.rounds)

    @property
    def cpu(self) -> float:
        return median(sample.cpu for sample in self.rounds)


def ratio(one: Sequence[Sample], other: Sequence[Sample], clock: str = "wall") -> float:
    """The median over the rounds of the ratio of two subjects in the same round."""
    return median(getattr(a, clock) / getattr(b, clock) for a, b in zip(one, other, strict=False))


@dataclass(slots=True)
class Results:
    about: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)
    facts: list[dict[str, Any]] = field(default_factory=list)  # other measurements, as they are

    def as_json(self) -> dict[str, Any]:
        return {
            "about": self.about,
            "rows": [{**asdict(row), "reached": row.reached} for row in self.rows],
            "timings": [asdict(timing) for timing in self.timings],
            "facts": self.facts,
        }
