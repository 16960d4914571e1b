"""The questions. Each function here gets ready for one and returns what then answers it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..stage import Stage
from .crowds import crowds
from .folders import Folders
from .hits import hits, throughput
from .memory import memory
from .misses import misses, validations
from .stalls import stalls
from .starts import starts

__all__ = ["CONTESTS"]

Contest = Callable[[Stage], Callable[[], None]]


def _unprepared(run: Callable[[Stage], None]) -> Contest:
    return lambda stage: partial(run, stage)


CONTESTS: dict[str, Contest] = {
    "hits": _unprepared(hits),
    "throughput": _unprepared(throughput),
    "misses": _unprepared(misses),
    "validations": _unprepared(validations),
    "crowds": _unprepared(crowds),
    "stalls": _unprepared(stalls),
    "memory": _unprepared(memory),
    "starts": _unprepared(starts),
    "folders": Folders,
}
