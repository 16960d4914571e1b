"""RFC 9111 sections 3, 3.1 and 3.5."""

from __future__ import annotations

import pytest

from vllm_http_cache.rfc9111.freshness import lifetime
from vllm_http_cache.rfc9111.message import Fields, Response
from vllm_http_cache.rfc9111.options import CacheOptions
from vllm_http_cache.rfc9111.storing import kept_fields, storable, stored_response
from vllm_http_cache.rfc9111.updating import updated

from .make import PRIVATE, SHARED, T, answer, date, fields, get, kept

FRESH = "Cache-Control: max-age=60"


def test_a_plain_answer_is_stored() -> None:
    assert storable(get(), answer(), SHARED)
    assert storable(get(), answer(FRESH), SHARED)


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "OPTIONS", "DELETE", "get"])
def test_methods_that_are_not_understood(method: str) -> None:
    assert not storable(get(method=method), answer(FRESH), SHARED)


@pytest.mark.parametrize(
    "location, lines, status, expected",
    [
        ("/cat.png", (FRESH,), 200, True),
        ("https://example.test/cat.png", (f"Expires: {date(5)}",), 200, True),
        ("HTTPS://EXAMPLE.test:443/cat.png#x", (FRESH,), 200, True),
        ("/dog.png", (FRESH,), 200, False),
        ("http://example.test/cat.png", (FRESH,), 200, False),
        ("/cat.png", (), 200, False),
        ("/cat.png", (FRESH,), 201, False),
        ("http://[", (FRESH,), 200, False),
        ("/cat.png", ("Cache-Control: max-age=60, no-store",), 200, False),
    ],
)
def test_a_post_that_answers_with_the_target_itself(
    location: str, lines: tuple[str, ...], status: int, expected: bool
) -> None:
    """RFC 9110 section 9.3.3."""
    response = answer(f"Content-Location: {location}", *lines, status=status)
    assert storable(get(method="POST"), response, SHARED) is expected
    assert not storable(get(method="PUT"), response, SHARED)


HEURISTIC = {200, 203, 204, 300, 301, 308, 404, 405, 410, 414, 501}
NEVER = {304, 412, 416}


@pytest.mark.parametrize(
    "status", [*range(200, 210), *range(300, 309), *range(400, 432), 451, 499, *range(500, 512), 599]
)
def test_statuses(status: int) -> None:
    ranged = status == 206
    request = get("Range: bytes=0-1") if ranged else get()
    extra = ("Content-Range: bytes 0-1/5",) if ranged else ()
    assert storable(request, answer(*extra, status=status), SHARED) is (status in HEURISTIC or ranged)
    for line in (FRESH, "Cache-Control: s-maxage=1", "Expires: 0", "Cache-Control: public"):
        assert storable(request, answer(line, *extra, status=status), SHARED) is (status not in NEVER)


@pytest.mark.parametrize("status", [0, 100, 101, 103, 199, 600, 999])
def test_no_final_status(status: int) -> None:
    assert not storable(get(), answer(FRESH, status=status), SHARED)


def test_the_bounds_of_final_statuses() -> None:
    assert storable(get(), answer(FRESH, status=200), SHARED)
    assert storable(get(), answer(FRESH, status=599), SHARED)


def test_what_a_shared_cache_may_store_a_private_one_may_not_always() -> None:
    assert storable(get(), answer("Cache-Control: s-maxage=1", status=403), SHARED)
    assert not storable(get(), answer("Cache-Control: s-maxage=1", status=403), PRIVATE)
    assert storable(get(), answer("Cache-Control: private", status=403), PRIVATE)
    assert not storable(get(), answer('Cache-Control: private="x"', status=403), PRIVATE)


@pytest.mark.parametrize(
    "request_line, response_line",
    [
        ("X: y", "Cache-Control: max-age=60, no-store"),
        ("Cache-Control: no-store", FRESH),
        ("X: y", "Cache-Control: NO-STORE;"),
    ],
)
def test_no_store(request_line: str, response_line: str) -> None:
    for options in (SHARED, PRIVATE):
        assert not storable(get(request_line), answer(response_line), options)


def test_the_mode_no_store() -> None:
    assert not storable(get(), answer(FRESH), CacheOptions(mode="no-store"))
    for mode in ("default", "reload", "no-cache", "force-cache"):
        assert storable(get(), answer(FRESH), CacheOptions(mode=mode))


def test_private() -> None:
    response = answer("Cache-Control: private, max-age=60")
    assert not storable(get(), response, SHARED)
    assert storable(get(), response, PRIVATE)
    assert storable(get(), answer('Cache-Control: private="Set-Cookie"'), SHARED)


@pytest.mark.parametrize(
    "value, expected",
    [
        ("max-age=60", False),
        ("public", True),
        ("must-revalidate", True),
        ("s-maxage=60", True),
        ("proxy-revalidate, max-age=5", False),
        ("public, private", False),
        ("public=1", False),
        ("s-maxage=x", False),
        ("max-age=60; must-revalidate", False),
    ],
)
def test_authorization(value: str, expected: bool) -> None:
    request = get("Authorization: Basic eA==")
    assert storable(request, answer(f"Cache-Control: {value}"), SHARED) is expected
    assert storable(request, answer(f"Cache-Control: {value}"), PRIVATE)


@pytest.mark.parametrize(
    "value, status, expected",
    [
        ("max-age=60, must-understand", 200, True),
        ("max-age=60, must-understand, no-store", 200, True),
        ("max-age=60, must-understand, no-store", 404, True),
        ("max-age=60, must-understand, no-store", 302, True),
        ("max-age=60, must-understand", 599, False),
        ("max-age=60, must-understand, no-store", 599, False),
        ("max-age=60, must-understand=1, no-store", 200, False),
        ("max-age=60, must-understand", 299, False),
        ("private, must-understand, no-store", 200, False),
    ],
)
def test_must_understand(value: str, status: int, expected: bool) -> None:
    assert storable(get(), answer(f"Cache-Control: {value}", status=status), SHARED) is expected


UNDERSTOOD = {*HEURISTIC, 201, 202, 302, 303, 307, *range(400, 410), 411, 413, 415, 417, 421, 422, 426}
UNDERSTOOD |= {500, 502, 503, 504, 505}


@pytest.mark.parametrize("status", [status for status in range(200, 600) if status != 206])
def test_which_statuses_are_understood(status: int) -> None:
    response = answer("Cache-Control: max-age=60, must-understand, no-store", status=status)
    assert storable(get(), response, SHARED) is (status in UNDERSTOOD)


@pytest.mark.parametrize(
    "asked, came, expected",
    [
        ("Range: bytes=0-1", "Content-Range: bytes 0-1/5", True),
        ("Range: bytes=0-1", "Content-Range: bytes 0-1/*", True),
        ("Range: bytes=0-1", "Content-Range: bytes 1-0/5", False),
        ("Range: bytes=0-1", "Content-Type: multipart/byteranges; boundary=x", False),
        ("Range: bytes=0-1,3-4", "Content-Range: bytes 0-1/5", False),
        ("X: y", "Content-Range: bytes 0-1/5", False),
    ],
)
def test_parts(asked: str, came: str, expected: bool) -> None:
    assert storable(get(asked), answer(FRESH, came, status=206), SHARED) is expected
    assert storable(get(asked), answer(FRESH, came), SHARED)


def test_a_varying_response_is_stored_even_if_on_everything() -> None:
    assert storable(get(), answer(FRESH, "Vary: *"), SHARED)


def test_targeted_fields_decide() -> None:
    options = CacheOptions(targeted=("X",))
    assert storable(get(), answer("X: max-age=5", "Cache-Control: no-store"), options)
    assert not storable(get(), answer("X: no-store", FRESH), options)
    assert not storable(get(), answer("X: private", FRESH), options)


@pytest.mark.parametrize(
    "lines",
    [
        ("X-CC: max-age=5", "Connection: x-cc"),
        ('X-CC: max-age=5, no-cache="x-cc"',),
        ('X-CC: max-age=5, private="X-CC"',),
    ],
)
def test_a_targeted_field_decides_on_what_is_stored_too(lines: tuple[str, ...]) -> None:
    """RFC 9213 section 2.2: and Cache-Control does not."""
    options = CacheOptions(targeted=("X-Cc",))
    stored = kept(*lines, "Cache-Control: max-age=600", options=options)
    for again in (stored, updated(stored, get(), answer(*lines, status=304), T, T, options)):
        assert lifetime(again, options).seconds == 5


def test_which_fields_are_kept() -> None:
    given = fields(
        'Cache-Control: no-cache="A", private="b"',
        "A: 1",
        "B: 2",
        "C: 3",
        "Connection: d",
        "D: 4",
        "Upgrade: x",
        "X-E: ü",
    )
    assert kept_fields(given, SHARED) == fields('Cache-Control: no-cache="A", private="b"', "C: 3", "X-E: ü")
    assert kept_fields(given, PRIVATE) == fields('Cache-Control: no-cache="A", private="b"', "B: 2", "C: 3", "X-E: ü")


def test_a_stored_response() -> None:
    request = get("Foo: 1", "Cookie: secret", uri="https://user:pw@example.test/x#y")
    response = Response(404, fields("Vary: Accept, foo", "TE: x", f"Date: {date(-3)}", "A: 1", "a: 2"), "No")
    stored = stored_response(request, response, T - 2, T, SHARED)
    assert stored.uri == "https://example.test/x"
    assert (stored.status, stored.reason) == (404, "No")
    assert stored.fields == fields("Vary: Accept, foo", f"Date: {date(-3)}", "A: 1", "a: 2")
    assert [name for name, _ in stored.selecting] == ["foo"]
    assert (stored.request_time, stored.response_time, stored.confirmed) == (T - 2, T, T)
    assert (stored.body, stored.first) == (None, 0)


def test_a_date_is_added_where_there_is_none() -> None:
    """RFC 9110 section 6.6.1."""
    stored = stored_response(get(), Response(200, Fields()), T, T + 0.75, SHARED)
    assert stored.fields == fields(f"Date: {date()}")
    assert stored_response(get(), Response(200, fields("Date: x")), T, T, SHARED).fields == fields("Date: x")


def test_a_stored_part() -> None:
    request = get("Range: bytes=4-8")
    stored = stored_response(request, answer("Content-Range: bytes 4-8/20", status=206), T, T, SHARED)
    assert stored.first == 4
    # Content-Range means nothing in a 200 (RFC 9110 section 14.4), and is kept.
    whole = stored_response(request, answer("Content-Range: bytes 4-8/20"), T, T, SHARED)
    assert whole.first == 0
    assert "content-range" in whole.fields


def test_a_length_that_a_transfer_coding_overrides_is_not_stored() -> None:
    """RFC 9112 section 6.3."""
    lines = ("Transfer-Encoding: chunked", "Content-Length: 10", 'Cache-Control: no-cache="foo"', "Foo: 1")
    assert not {"content-length", "foo"}.intersection(name.lower() for name, _ in kept(*lines).fields)
    assert kept("Content-Length: 10").fields.get("content-length") == "10"


@pytest.mark.parametrize("coding, expected", [("gzip, chunked", False), ("gzip", False), ("chunked", True)])
def test_what_is_left_in_a_transfer_coding_is_not_stored(coding: str, expected: bool) -> None:
    """RFC 9112 section 6.1."""
    assert storable(get(), answer("Cache-Control: max-age=60", f"Transfer-Encoding: {coding}"), SHARED) is expected
