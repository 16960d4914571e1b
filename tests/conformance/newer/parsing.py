"""Fields that say how long, in all spellings: Age, Expires, Date, max-age."""

from __future__ import annotations

from tests.conformance.newer.common import FRESH, again
from tests.conformance.trial import Line

OLD = 120  # an age beyond FRESH

AGE = "RFC 9111 section 5.1"
for _name, _values, _reused in (
    ("word", ("abc",), True),
    ("negative", (f"-{OLD}",), True),
    ("fraction", (f"{OLD}.0",), True),
    ("empty", ("",), True),
    ("sign", (f"+{OLD}",), True),
    ("digits-of-another-script", ("\xb2\xb2\xb2",), True),
    ("padded", (f"  {OLD}  ",), False),
    ("zeros-before", (f"000{OLD}",), False),
    ("list-old-first", (f"{OLD}, 0",), False),
    ("list-old-last", (f"0, {OLD}",), True),
    ("list-equal", ("0, 0",), True),
    ("list-word-first", (f"abc, {OLD}",), True),
    ("lines-old-first", (str(OLD), "0"), False),
    ("lines-old-last", ("0", str(OLD)), True),
    ("lines-equal", ("0", "0"), True),
):
    again("required", AGE, f"age-{_name}", FRESH, *(("Age", _value) for _value in _values), reused=_reused)
for _huge in (2**31 - 1, 2**31, 2**31 + 1, 2**32, 2**63, 2**64, 10**30):
    again("required", "RFC 9111 section 1.2.2", f"age-{_huge}", FRESH, ("Age", str(_huge)), reused=False)
for _name, _value in (("word", "a=b"), ("number", "a=1")):
    again("check", AGE, f"age-with-parameter-{_name}-is-ignored", FRESH, ("Age", f"{OLD};{_value}"), reused=True)

EXPIRES = "RFC 9111 sections 4.2 and 5.3"
for _name, _date in (
    ("32-bits", "Tue, 19 Jan 2038 14:14:08 GMT"),
    ("far", "Sun, 21 Nov 2286 04:46:39 GMT"),
    ("last-year", "Fri, 31 Dec 9999 23:59:59 GMT"),
    ("leap-day", "Tue, 29 Feb 2056 12:00:00 GMT"),
    ("rfc850", "Saturday, 29-Nov-36 02:01:18 GMT"),
    ("asctime", "Thu Aug 18 02:01:18 2050"),
    ("asctime-padded", "Mon Aug  8 02:01:18 2050"),
    ("day-upper", "THU, 18 Aug 2050 02:01:18 GMT"),
    ("month-upper", "Thu, 18 AUG 2050 02:01:18 GMT"),
    ("zone-mixed", "Thu, 18 Aug 2050 02:01:18 gMt"),
):
    again("optimal", EXPIRES, f"expires-{_name}", ("Expires", _date), reused=True)
for _name, _dates in (
    ("utc", ("Thu, 18 Aug 2050 02:01:18 UTC",)),
    ("other-zone", ("Thu, 18 Aug 2050 02:01:18 AEST",)),
    ("offset", ("Thu, 18 Aug 2050 02:01:18 +0000",)),
    ("no-zone", ("Thu, 18 Aug 2050 02:01:18",)),
    ("two-digit-year", ("Thu, 18 Aug 50 02:01:18 GMT",)),
    ("five-digit-year", ("Thu, 18 Aug 20500 02:01:18 GMT",)),
    ("no-comma", ("Thu 18 Aug 2050 02:01:18 GMT",)),
    ("no-day-name", ("18 Aug 2050 02:01:18 GMT",)),
    ("spaces", ("Thu, 18  Aug  2050 02:01:18 GMT",)),
    ("dashes", ("Thu, 18-Aug-2050 02:01:18 GMT",)),
    ("full-stops", ("Thu, 18 Aug 2050 02.01.18 GMT",)),
    ("one-digit-hour", ("Thu, 18 Aug 2050 2:01:18 GMT",)),
    ("one-digit-day", ("Mon, 8 Aug 2050 02:01:18 GMT",)),
    ("no-such-day", ("Wed, 30 Feb 2050 02:01:18 GMT",)),
    ("no-such-hour", ("Thu, 18 Aug 2050 25:01:18 GMT",)),
    ("no-such-month", ("Thu, 18 Foo 2050 02:01:18 GMT",)),
    ("more-behind", ("Thu, 18 Aug 2050 02:01:18 GMT; x",)),
    ("quoted", ('"Thu, 18 Aug 2050 02:01:18 GMT"',)),
    ("iso", ("2050-08-18T02:01:18Z",)),
    ("number", ("4102444800",)),
    ("zero", ("0",)),
    ("minus-one", ("-1",)),
    ("empty", ("",)),
    ("lines-past-first", ("Sun, 06 Nov 1994 08:49:37 GMT", "Thu, 18 Aug 2050 02:01:18 GMT")),
    ("lines-malformed", ("Thu, 18 Aug 2050 2:01:18 GMT", "Thu, 18 Aug 2050 2:01:19 GMT")),
):
    again("required", EXPIRES, f"expires-{_name}", *(("Expires", _date) for _date in _dates), reused=False)
    _stale: tuple[Line, ...] = (("Last-Modified", -1_000_000), ("Expires", _dates[0]))
    if len(_dates) == 1:
        again("required", EXPIRES, f"expires-{_name}-is-no-reason-for-heuristics", *_stale, reused=False)

DATE = "RFC 9110 section 6.6.1"
for _name, _date in (("word", "foo"), ("empty", ""), ("malformed", "Thu, 18 Aug 2050 2:01:18 GMT")):
    again("optimal", DATE, f"date-{_name}-receipt-time-stands-in", FRESH, ("Date", _date), reused=True)
    again("optimal", DATE, f"date-{_name}-with-expires", ("Date", _date), ("Expires", 60), reused=True)

CC = "RFC 9111 section 4.2.1"
for _name, _value in (
    ("two-stale-first", "max-age=0, max-age=60"),
    ("empty", "max-age="),
    ("none", "max-age"),
    ("unit", "max-age=60s"),
    ("junk-first", "max-age=x, max-age=60"),
    ("other-zeros", "max-age=6\xb2"),
    ("unclosed-quote", 'max-age="60'),
    ("strict-line", "max-age=60, no-cache"),
):
    again("required", CC, f"max-age-{_name}", ("Cache-Control", _value), reused=False)
_lines: tuple[Line, ...] = (("Cache-Control", "max-age=0"), FRESH)
again("required", CC, "max-age-two-lines-stale-first", *_lines, reused=False)
again("required", CC, "max-age-lines-strictest-counts", FRESH, ("Cache-Control", "no-store"), reused=False)
again("optimal", CC, "max-age-after-empty-members", ("Cache-Control", ",, ,max-age=60,"), reused=True)
again("optimal", "RFC 9111 section 1.2.2", "max-age-huge", ("Cache-Control", f"max-age={10**30}"), reused=True)
