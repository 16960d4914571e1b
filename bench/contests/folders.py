"""Whether a hit and a store cost more the more entries there are."""

from __future__ import annotations

import time

from ..results import Row, ratio
from ..stage import Cast, Entry, Stage, Task
from ..subjects.names import OURS, OWN

__all__ = ["Folders"]

FEW = 100
MOST = 1.5
OPERATIONS = {  # of subjects/under_folder.py
    "get": "hit on one of 100 entries",
    "first": "first hit on an entry",
    "store": "store",
}
OURS_ALONE = {"bare": "first hit on an entry, of the cache alone"}
OPENING = 100.0  # milliseconds


class Folders:
    """The folders are filled at the beginning of the run, so that they are old when they are used."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._many = stage.plan.entries
        recreated = ("recreated", stage.vllm != "vllm")
        self._casts = {
            cache: Cast(
                stage,
                "folders",
                [
                    Entry("folder", cache, (("entries", entries), *options), _label(cache, entries))
                    for entries in (FEW, self._many)
                ],
            )
            for cache, options in ((OURS, ()), (OWN, (recreated,)))
        }
        self._ready = time.monotonic()
        stage.log(f"folders: {self._many} entries are there")

    def __call__(self) -> None:
        left = self._ready + self._stage.plan.age - time.monotonic()
        if left > 0:
            self._stage.log(f"folders: {left:.0f} s until they are old enough")
            time.sleep(left)
        for cache, cast in self._casts.items():
            with cast:
                for operation, what in {**OPERATIONS, **(OURS_ALONE if cache == OURS else {})}.items():
                    self._compare(cache, cast, operation, what)
                if cache == OURS:
                    self._opening(cast)

    def _opening(self, cast: Cast) -> None:
        timing = cast.compare("folders, opening", Task("opening"))[_label(OURS, self._many)]
        value = timing.wall * 1000 if timing.rounds else None
        what = f"folder of {self._many:,} entries: opening it, and a first look-up"
        self._stage.report(Row("folders", what, OPENING, value, " ms", note=timing.note))

    def _compare(self, cache: str, cast: Cast, operation: str, what: str) -> None:
        timings = cast.compare(f"folders, {what}", Task(operation))
        few, many = (timings[_label(cache, entries)] for entries in (FEW, self._many))
        if cache != OURS:
            return
        what, against = f"folder of {self._many:,} entries: {what}", f"one of {FEW}"
        if few.rounds and many.rounds:
            value, cpu = (ratio(many.rounds, few.rounds, clock) for clock in ("wall", "cpu"))
            self._stage.report(Row("folders", what, MOST, value, cpu=cpu, against=against))
        else:
            self._stage.report(Row("folders", what, MOST, note=few.note or many.note))


def _label(cache: str, entries: int) -> str:
    return f"{cache}, {entries:,} entries"
