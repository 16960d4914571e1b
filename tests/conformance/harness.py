"""Does the gateway hide or add anything? What passes through it without a cache is compared with what went in."""

from __future__ import annotations

import asyncio

from tests.conformance.http1 import Got, Lines, ask, end_to_end
from tests.conformance.processes import gateway
from tests.conformance.trial import Now
from tests.origin import Answer, Origin, Seen

__all__ = ["differences"]

ASKED: Lines = [
    (b"X-Spelling", b"as it came"),
    (b"x-lower", b"a  b, c"),
    (b"Cookie", b"a=b"),
    (b"Authorization", b"FOO"),
    (b"If-None-Match", b'"a", W/"b"'),
    (b"Cache-Control", b"nothing-known"),
    (b"Accept-Encoding", b"gzip,deflate"),
    (b"Range", b"bytes=-5"),
]
REPEATED: Lines = [(b"X-Two", b"1"), (b"X-Two", b"2")]
NOT_FOR_THE_ORIGIN: Lines = [(b"Connection", b"X-Hop"), (b"X-Hop", b"1"), (b"Keep-Alive", b"x")]

ANSWERS = {
    "fields": Answer(200, [("X-Two", "1"), ("X-Two", "2"), ("Set-Cookie", "a=b"), ("Set-Cookie", "c=d")], b"12345"),
    "octets-above-127": Answer(200, [("X-Octets", "\xfc\xff")], b"\x00\xff"),
    "coded": Answer(200, [("Content-Encoding", "gzip"), ("Content-Type", "x")], b"not gzip at all"),
    "chunked": Answer(200, body=[b"123", b"45"], framing="chunked"),
    "until-close": Answer(200, body=b"12345", framing="close"),
    "unknown-success": Answer(299, body=b"12345"),
    "unknown-error": Answer(599, body=b"12345"),
    "redirect": Answer(302, [("Location", "/elsewhere")], b"12345"),
    "no-content": Answer(204),
    "not-modified": Answer(304, [("ETag", '"a"'), ("Content-Length", "10")]),
    "malformed-dates": Answer(200, [("Date", "foo"), ("Expires", "0")], date=False),
    "reason": Answer(body=b"HTTP/1.1 200 Quite  good!\r\nContent-Length: 1\r\n\r\n1", framing="raw"),
    "no-reason": Answer(body=b"HTTP/1.1 200 \r\nContent-Length: 1\r\n\r\n1", framing="raw"),
}


def differences(client: str) -> list[str]:
    """What does not come through as it went in; empty when all is well."""
    with Origin(Now()) as origin, gateway(client, origin.port, "none") as port:
        return asyncio.run(_compare(origin, port))


async def _compare(origin: Origin, port: int) -> list[str]:
    found = []
    for method, body in (("GET", b""), ("POST", b"12345"), ("DELETE", b"abc"), ("M-SEARCH", b"abc"), ("HEAD", b"")):
        origin.on("/asked", Answer())
        target = "/asked?a=%2F%28b&c=d+e"
        await ask(port, method, target, [*ASKED, *REPEATED, *NOT_FOR_THE_ORIGIN], body)
        seen = origin.seen("/asked")[-1]
        expected = _combined([*ASKED, *REPEATED, *([(b"Content-Length", b"%d" % len(body))] if body else [])])
        if (seen.method, seen.target, seen.body, _asked(seen)) != (method, target, body, expected):
            found.append(f"{method}: the origin saw {seen}")
    for name, answer in ANSWERS.items():
        origin.on(f"/{name}", answer)
        for method in ("GET", "HEAD"):
            if answer.framing == "raw" and method == "HEAD":
                continue
            direct, through = [_given(await ask(to, method, f"/{name}", [])) for to in (origin.port, port)]
            if direct != through:
                found.append(f"{name}: {direct} became {through}")
    return found


def _combined(fields: Lines) -> dict[bytes, bytes]:
    """Fields as RFC 9110 section 5.3 lets any recipient see them."""
    combined: dict[bytes, bytes] = {}
    for name, value in fields:
        known = name.lower()
        combined[known] = b"%b, %b" % (combined[known], value) if known in combined else value
    return combined


def _asked(seen: Seen) -> dict[bytes, bytes]:
    fields = _combined(end_to_end([(name.encode(), value.encode("latin-1")) for name, value in seen.fields]))
    fields.pop(b"host")
    return fields


def _given(got: Got) -> Got:
    dated = any(name.lower() == b"date" and value != b"foo" for name, value in got.fields)
    fields = [line for line in end_to_end(got.fields) if not (dated and line[0].lower() == b"date")]
    return Got(got.status, got.reason, fields, got.body, got.interim)
