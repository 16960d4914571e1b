"""RFC 9110 section 5.6.7 and RFC 9111 section 4.2."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_http_cache.rfc9111.dates import format_http_date, parse_http_date

from .make import T

NOW = 1_790_000_000.0  # 21 September 2026, 14:13:20 GMT


@pytest.mark.parametrize(
    "value",
    [
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
        "sUN, 06 nOV 1994 08:49:37 gmt",
        "\t Sun, 06 Nov 1994 08:49:37 GMT ",
        "Tue, 06 Nov 1994 08:49:37 GMT",  # nothing follows from the name of the day
    ],
)
def test_three_formats(value: str) -> None:
    assert parse_http_date(value, NOW) == T


@pytest.mark.parametrize("day", ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"])
def test_day_names(day: str) -> None:
    assert parse_http_date(f"{day}, 06 Nov 1994 08:49:37 GMT", NOW) == T
    assert parse_http_date(f"{day} Nov  6 08:49:37 1994", NOW) == T


@pytest.mark.parametrize("day", ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"])
def test_long_day_names(day: str) -> None:
    assert parse_http_date(f"{day}, 06-Nov-94 08:49:37 GMT", NOW) == T


@pytest.mark.parametrize(
    "month, start",
    [("Jan", 0), ("Feb", 31), ("Mar", 59), ("Apr", 90), ("May", 120), ("Jun", 151), ("Jul", 181), ("Aug", 212)]
    + [("Sep", 243), ("Oct", 273), ("Nov", 304), ("Dec", 334)],
)
def test_months(month: str, start: int) -> None:
    assert parse_http_date(f"Thu, 01 {month} 1970 00:00:00 GMT", NOW) == start * 86400


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "0",
        "-1",
        "foo",
        "Wed, 99 Foo",
        "Thu, 18 Aug 50 02:01:18 GMT",  # two digits in an IMF-fixdate
        "Thursday, 18-Aug-2050 02:01:18 GMT",
        "Thursday, 18-Aug-50 02:01:18",
        "Thursday, 18-Aug-50 02:01:18 UTC",
        "Thu, 18-Aug-50 02:01:18 GMT",
        "Thu, 18 Aug 2050 02:01:18 UTC",
        "Thu, 18 Aug 2050 02:01:18 AEST",
        "Thu, 18 Aug 2050 02:01:18 +0000",
        "Thu, 18 Aug 2050 02:01:18",
        "Thu 18 Aug 2050 02:01:18 GMT",
        "Thu, 18  Aug  2050 02:01:18 GMT",
        "Thu, 18-Aug-2050 02:01:18 GMT",
        "Thu, 18 Aug 2050 02.01.18 GMT",
        "Thu, 18 Aug 2050 2:01:18 GMT",
        "Thu, 8 Aug 2050 02:01:18 GMT",
        "18 Aug 2050 02:01:18 GMT",
        "Thu Aug 8 02:01:18 2050",
        "Thu Aug  8 02:01:18 2050 GMT",
        "Thu, 18 Aug 2050 02:01:18 GMT, Thu, 18 Aug 2050 02:01:18 GMT",
        "Thu, 18 Aug 2050 02:01:18 GMT x",
        "xThu, 18 Aug 2050 02:01:18 GMT",
        "Thu, 00 Aug 2050 02:01:18 GMT",
        "Thu, 32 Aug 2050 02:01:18 GMT",
        "Tue, 29 Feb 2050 02:01:18 GMT",
        "Thu, 18 Aug 2050 24:01:18 GMT",
        "Thu, 18 Aug 2050 02:60:18 GMT",
        "Thu, 18 Aug 2050 02:01:61 GMT",
        "Thu, 18 Aug 0000 02:01:18 GMT",
        "Thu, 18 Aug 0050 02:01:18 GMT",
        "Thu Aug 18 02:01:18 0050",
        "Thursday, 29-Feb-50 02:01:18 GMT",
        "Thu, 1\u0668 Aug 2050 02:01:18 GMT",
    ],
)
def test_anything_else_is_no_date(value: str | None) -> None:
    assert parse_http_date(value, NOW) is None


def test_the_year_100_has_four_digits() -> None:
    first = parse_http_date("Fri, 01 Jan 0100 00:00:00 GMT", NOW)
    assert first is not None
    assert first < -59_000_000_000


def test_a_leap_second() -> None:
    assert parse_http_date("Sat, 31 Dec 2016 23:59:60 GMT", NOW) == parse_http_date(
        "Sun, 01 Jan 2017 00:00:00 GMT", NOW
    )


@pytest.mark.parametrize(
    "value, same_as",
    [
        ("Thursday, 18-Aug-50 02:01:18 GMT", "Thu, 18 Aug 2050 02:01:18 GMT"),
        # The 50 years end 21 September 2076, 14:13:20 GMT.
        ("Monday, 21-Sep-76 14:13:20 GMT", "Mon, 21 Sep 2076 14:13:20 GMT"),
        ("Monday, 21-Sep-76 14:13:21 GMT", "Tue, 21 Sep 1976 14:13:21 GMT"),
        ("Friday, 31-Dec-76 00:00:00 GMT", "Fri, 31 Dec 1976 00:00:00 GMT"),
        ("Saturday, 01-Jan-77 00:00:00 GMT", "Sat, 01 Jan 1977 00:00:00 GMT"),
        ("Friday, 01-Jan-99 00:00:00 GMT", "Fri, 01 Jan 1999 00:00:00 GMT"),
        ("Saturday, 01-Jan-00 00:00:00 GMT", "Sat, 01 Jan 2000 00:00:00 GMT"),
    ],
)
def test_two_digits_are_at_most_fifty_years_ahead(value: str, same_as: str) -> None:
    assert parse_http_date(value, NOW) == parse_http_date(same_as, NOW)


def test_two_digits_late_in_a_century_may_mean_the_next() -> None:
    late = parse_http_date("Sat, 01 Jan 2095 00:00:00 GMT", NOW)
    assert late is not None
    assert parse_http_date("Tuesday, 01-Jan-30 00:00:00 GMT", late) == parse_http_date(
        "Tue, 01 Jan 2130 00:00:00 GMT", NOW
    )


def test_a_leap_day_in_a_year_of_two_digits() -> None:
    assert parse_http_date("Thursday, 29-Feb-96 00:00:00 GMT", NOW) == parse_http_date(
        "Thu, 29 Feb 1996 00:00:00 GMT", NOW
    )
    assert parse_http_date("Tuesday, 29-Feb-00 00:00:00 GMT", NOW) is not None


@given(st.integers(min_value=-59_000_000_000, max_value=253_402_300_799))
def test_parse_undoes_format(time: int) -> None:
    assert parse_http_date(format_http_date(time), NOW) == time


def test_format_gives_the_second_a_time_falls_in() -> None:
    assert format_http_date(T + 0.999) == "Sun, 06 Nov 1994 08:49:37 GMT"
    assert format_http_date(-0.5) == "Wed, 31 Dec 1969 23:59:59 GMT"


@given(st.text())
def test_no_text_raises(value: str) -> None:
    parse_http_date(value, NOW)


def test_what_no_date_can_state_is_the_nearest_that_one_can() -> None:
    """A lifetime may end after the year 9999: an Expires at its end, and what may be stale after it."""
    last, first = "Fri, 31 Dec 9999 23:59:59 GMT", "Mon, 01 Jan 0001 00:00:00 GMT"
    expected = {253_402_300_798.9: last.replace(":59 ", ":58 "), 253_402_300_799.9: last, 253_402_300_800: last}
    expected |= {1e15: last, -62_135_596_799: first.replace(":00 ", ":01 "), -62_135_596_800.5: first, -1e15: first}
    assert {time: format_http_date(time) for time in expected} == expected
