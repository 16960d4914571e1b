"""What the user of a cache may choose. A value, read by every rule."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal, get_args

__all__ = ["MODES", "CacheOptions", "Mode"]

Mode = Literal["default", "no-store", "reload", "no-cache", "force-cache", "only-if-cached", "off"]
MODES: tuple[str, ...] = get_args(Mode)


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """How a cache behaves.

    :param shared: a shared cache (RFC 9111 section 1) serves many users and keeps nothing ``private``; ``False`` is
        the cache of one user.
    :param mode: the Fetch standard's cache modes; ``off`` forwards everything untouched.
    :param ttl: seconds after the origin last sent or confirmed a response during which it may be used at all; caps
        every freshness lifetime. The storage's own ttl, where it has one, applies as well.
    :param stale_if_error: seconds past its freshness during which a stale response may answer when the origin fails,
        where the response itself does not forbid it (RFC 5861 section 4). None: only as far as the origin says.
    :param targeted: names of targeted cache-control fields this cache obeys, first match wins (RFC 9213).
    :param heuristic_fraction: share of the time since Last-Modified taken as a heuristic lifetime (RFC 9111 section
        4.2.2); at most 0.1, 0 switches heuristics off.
    :param signed_urls: recognise known signature parameters and validate a stored response under a new signature.
    :param store_unframed: store bodies that end only because the connection closed.
    """

    shared: bool = True
    mode: Mode = "default"
    ttl: float = inf
    stale_if_error: float | None = None
    targeted: tuple[str, ...] = ()
    heuristic_fraction: float = 0.1
    signed_urls: bool = True
    store_unframed: bool = False

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode={self.mode!r} is not one of {', '.join(MODES)}")
        if not 0 <= self.heuristic_fraction <= 0.1:
            raise ValueError(f"heuristic_fraction={self.heuristic_fraction!r} is not between 0 and 0.1")
        for name in ("ttl", "stale_if_error"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ValueError(f"{name}={value!r} is not a number of seconds, 0 or more")
