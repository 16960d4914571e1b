"""HTTP dates (RFC 9110 section 5.6.7).

Dates decide freshness, so this file is strict where the RFC is: three formats, GMT, and whatever is not one of them
is not a date. It has no clock; the present is an argument where a two-digit year needs one.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from functools import lru_cache
from math import floor

from .fields import trimmed
from .memo import memo

__all__ = ["format_http_date", "parse_http_date"]

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAY = "(?:mon|tue|wed|thu|fri|sat|sun)"
_LONG_DAY = "(?:mon|tues|wednes|thurs|fri|satur|sun)day"
_MONTH = f"(?P<month>{'|'.join(_MONTHS)})"
_TIME = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
# RFC 9111 section 4.2: letters are matched in either case, and no zone but GMT is a zone.
_FORMATS = tuple(
    re.compile(pattern, re.ASCII | re.IGNORECASE)
    for pattern in (
        rf"{_DAY}, (?P<day>\d\d) {_MONTH} (?P<year>\d{{4}}) {_TIME} GMT",
        rf"{_LONG_DAY}, (?P<day>\d\d)-{_MONTH}-(?P<year>\d\d) {_TIME} GMT",
        rf"{_DAY} {_MONTH} (?P<day>\d\d| \d) {_TIME} (?P<year>\d{{4}})",
    )
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = -62_135_596_800, 253_402_300_799  # the years 1 to 9999


def parse_http_date(value: str | None, now: float) -> float | None:
    """The time that *value* states, in seconds since the epoch; None when it is absent or not an HTTP-date.

    :param now: seconds since the epoch; says which century a two-digit year is in.
    """
    if value is None or (parts := _parts(value)) is None:
        return None
    year, *rest = parts
    if year >= 100:
        return _seconds(year, *rest)
    # A date that appears to be more than 50 years in the future is the latest past one with the same two digits.
    present = (_EPOCH + timedelta(seconds=now)).timetuple()[:6]
    century = present[0] // 100 * 100
    limit = (present[0] + 50, *present[1:])
    years = (century + offset + year for offset in (100, 0, -100))
    return _seconds(next(full for full in years if (full, *rest) <= limit), *rest)


def format_http_date(time: float) -> str:
    """*time*, in seconds since the epoch, as an IMF-fixdate: the second it falls in, or the nearest that has one."""
    return formatdate(floor(max(_FIRST, min(time, _LAST))), usegmt=True)


@memo(1024)
def _parts(value: str) -> tuple[int, int, int, int, int, int] | None:
    """Year, month, day, hour, minute, second. A year below 100 is one of two digits."""
    for pattern in _FORMATS:
        if found := pattern.fullmatch(trimmed(value)):
            year = int(found["year"])
            if year < 100 and len(found["year"]) == 4:
                return None  # the first century: no origin was there, and it would pass for two digits
            month = _MONTHS.index(found["month"].lower()) + 1
            return year, month, int(found["day"]), int(found["hour"]), int(found["minute"]), int(found["second"])
    return None


@lru_cache(1024)
def _seconds(year: int, month: int, day: int, hour: int, minute: int, second: int) -> float | None:
    """Seconds since the epoch; None for a day or a time that does not exist. A minute may have a leap second."""
    try:
        whole_minute = datetime(year, month, day, hour, minute, tzinfo=UTC)
    except ValueError:
        return None
    return (whole_minute - _EPOCH).total_seconds() + second if second <= 60 else None
