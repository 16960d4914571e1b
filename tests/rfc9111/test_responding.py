"""RFC 9111 section 4, RFC 9110 sections 13.2, 14 and 15."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vllm_http_cache.rfc9111.message import Response
from vllm_http_cache.rfc9111.responding import gateway_timeout, respond

from .make import T, date, fields, get, head, kept, part

LENGTH = "Content-Length: 10"
ONE = 'ETag: "1"'


def test_a_whole_response() -> None:
    stored = kept("A: 1", LENGTH, length=10)
    response, span = respond(get(), stored, T + 7.9)
    assert response == Response(200, fields(f"Date: {date()}", "A: 1", LENGTH, "Age: 7"), "Reason")
    assert span == (0, 10)


def test_the_age_replaces_one_received() -> None:
    stored = kept("Age: 5", "age: 99", f"Date: {date(-100)}", length=10)
    response, _ = respond(get(), stored, T + 7)
    assert response.fields.get_all("age") == ("107",)


def test_other_statuses() -> None:
    response, span = respond(get(), kept(LENGTH, status=404, length=10), T)
    assert (response.status, response.reason, span) == (404, "Reason", (0, 10))


def test_a_length_is_added_and_corrected() -> None:
    for lines in ((), ("Content-Length: 99",), ("Content-Length: 9", "Content-Length: 9")):
        response, _ = respond(get(), kept(*lines, length=10), T)
        assert response.fields.get_all("content-length") == ("10",)
    response, span = respond(get(), kept(status=204, length=0), T)
    assert "content-length" not in response.fields and span is None


def test_an_empty_body_is_no_body() -> None:
    response, span = respond(get(), kept(length=0), T)
    assert response.fields.get("content-length") == "0" and span is None


def test_a_body_still_on_its_way_has_no_length_yet() -> None:
    response, span = respond(get(), replace(kept("A: 1"), body=None), T)
    assert response.fields == fields(f"Date: {date()}", "A: 1", "Age: 0") and span is None


def test_head() -> None:
    response, span = respond(head("Range: bytes=0-1"), kept(length=10), T)
    assert response.status == 200 and span is None
    assert response.fields.get("content-length") == "10"


# 304


CONTENT = ["Content-Encoding", "Content-Language", "Content-Length", "Content-Range", "Content-Type", "Content-MD5"]


@pytest.mark.parametrize("line", ['If-None-Match: "1"', "If-None-Match: *", f"If-Modified-Since: {date()}"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_who_has_it_is_told_so(line: str, method: str) -> None:
    others = ["Content-Location: /x", "Vary: Foo", "Cache-Control: max-age=5", f"Expires: {date()}", "A: 1"]
    more = [f"{name}: x" for name in (*CONTENT, "Content-Digest", "Digest", "Repr-Digest")]
    stored = kept(ONE, f"Last-Modified: {date()}", *others, *more)
    response, span = respond(get(line, method=method), stored, T + 3)
    assert (response.status, response.reason, span) == (304, "Not Modified", None)
    assert response.fields == fields(f"Date: {date()}", ONE, f"Last-Modified: {date()}", *others, "Age: 3")


def test_who_has_something_else_gets_it() -> None:
    assert respond(get('If-None-Match: "2"'), kept(ONE), T)[0].status == 200
    assert respond(get(f"If-Modified-Since: {date(-1)}"), kept(), T)[0].status == 200


def test_preconditions_are_for_representations() -> None:
    """RFC 9110 section 13.2.1, RFC 9111 section 4.3.2: of a 200 or 206."""
    assert respond(get("If-None-Match: *"), kept(status=404), T)[0].status == 404
    assert respond(get("If-None-Match: *", "Range: bytes=0-1"), part("0-4/10"), T)[0].status == 304


# Ranges


def test_a_range_of_a_whole() -> None:
    stored = kept("A: 1", LENGTH, "Content-Type: image/png", ONE, length=10)
    response, span = respond(get("Range: bytes=2-4"), stored, T)
    assert (response.status, response.reason, span) == (206, "Partial Content", (2, 5))
    assert response.fields == fields(
        f"Date: {date()}",
        "A: 1",
        "Content-Type: image/png",
        ONE,
        "Age: 0",
        "Content-Length: 3",
        "Content-Range: bytes 2-4/10",
    )


def test_content_range_means_nothing_in_a_whole() -> None:
    response, span = respond(get("Range: bytes=2-4"), kept("Content-Range: bytes 4-8/20", length=10), T)
    assert span == (2, 5) and response.fields.get_all("content-range") == ("bytes 2-4/10",)


def test_a_range_that_is_all_of_it() -> None:
    response, span = respond(get("Range: bytes=0-"), kept(LENGTH, length=10), T)
    assert (response.status, span) == (206, (0, 10))
    assert response.fields.get("content-range") == "bytes 0-9/10"
    assert response.fields.get_all("content-length") == ("10",)


@pytest.mark.parametrize("name", ["Content-Digest", "Content-MD5", "Repr-Digest", "Digest"])
@pytest.mark.parametrize("span", ["0-8", "1-9", "0-9"])
def test_a_digest_of_the_content_goes_with_no_other_octets(name: str, span: str) -> None:
    """RFC 9530 sections 2 and 3."""
    whole = kept(f"{name}: x", length=10)
    for stored in (whole, part("0-9/20", f"{name}: x")):
        response, _ = respond(get(f"Range: bytes={span}"), stored, T)
        assert response.status == 206
        assert (name.lower() in response.fields) is (span == "0-9" or not name.startswith("Content"))
    assert name.lower() in respond(get(), whole, T)[0].fields


def test_a_range_of_a_part() -> None:
    response, span = respond(get("Range: bytes=5-6"), part("4-8/20", "Content-Length: 5"), T)
    assert (response.status, span) == (206, (1, 3))
    assert response.fields.get_all("content-range") == ("bytes 5-6/20",)
    assert response.fields.get_all("content-length") == ("2",)
    response, span = respond(get("Range: bytes=4-8"), part("4-8/*"), T)
    assert span == (0, 5) and response.fields.get("content-range") == "bytes 4-8/*"


def test_a_range_outside() -> None:
    stored = kept(LENGTH, "Content-Type: image/png", "A: 1", length=10)
    response, span = respond(get("Range: bytes=10-"), stored, T)
    assert (response.status, response.reason, span) == (416, "Range Not Satisfiable", None)
    assert response.fields == fields(
        f"Date: {date()}", "A: 1", "Age: 0", "Content-Range: bytes */10", "Content-Length: 0"
    )


@pytest.mark.parametrize("line", ["Range: bytes=0-1,3-4", "Range: lines=1-2", "Range: bytes=4-3", "Range: junk"])
def test_ranges_that_are_answered_with_the_whole(line: str) -> None:
    response, span = respond(get(line), kept(length=10), T)
    assert (response.status, span) == (200, (0, 10))


def test_if_range() -> None:
    stored = kept(ONE, length=10)
    assert respond(get("Range: bytes=0-1", 'If-Range: "1"'), stored, T)[1] == (0, 2)
    response, span = respond(get("Range: bytes=0-1", 'If-Range: "2"'), stored, T)
    assert (response.status, span) == (200, (0, 10))


def test_a_304_goes_before_a_range() -> None:
    response, span = respond(get("Range: bytes=0-1", 'If-None-Match: "1"'), kept(ONE, length=10), T)
    assert (response.status, span) == (304, None)


def test_gateway_timeout() -> None:
    assert gateway_timeout() == Response(504, fields("Content-Length: 0"), "Gateway Timeout")
