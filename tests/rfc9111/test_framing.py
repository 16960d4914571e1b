"""Where a body ends, as far as the head says."""

from __future__ import annotations

import pytest

from vllm_http_cache.rfc9111.framing import announced_length, is_framed
from vllm_http_cache.rfc9111.message import Response

from .make import fields


@pytest.mark.parametrize(
    "status, lines, length, framed",
    [
        (200, ["Content-Length: 5"], 5, True),
        (200, ["Content-Length: 0"], 0, True),
        (200, [], None, False),
        (200, ["Content-Length: five"], None, False),
        (200, ["Content-Length: -5"], None, False),
        (200, ["Content-Length: \u0665"], None, False),
        (200, ["Content-Length: " + "9" * 5000], None, False),
        (200, ["Content-Length: " + "9" * 18], 10**18 - 1, True),
        (200, ["Content-Length: 1" + "0" * 18], None, False),
        (200, ["Transfer-Encoding: chunked"], None, True),
        (200, ["Transfer-Encoding: Chunked"], None, True),
        (200, ["Transfer-Encoding: gzip, chunked"], None, False),
        (200, ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"], None, False),
        (200, ["Transfer-Encoding: identity"], None, False),
        (200, ["Transfer-Encoding: x-gzip"], None, False),
        (200, ["Transfer-Encoding: deflate"], None, False),
        (200, ["Transfer-Encoding: x-compress, chunked"], None, False),
        (200, ["Transfer-Encoding: never-registered"], None, True),
        (200, ["Transfer-Encoding:", "Content-Length: 5"], None, True),
        (200, ["Transfer-Encoding: chunked", "Content-Length: 5"], None, True),
        (204, ["Content-Length: 5"], 0, True),
        (304, [], 0, True),
    ],
)
def test_what_a_head_says_of_its_body(status: int, lines: list[str], length: int | None, framed: bool) -> None:
    response = Response(status, fields(*lines))
    assert announced_length(response) == length
    assert is_framed("GET", response) is framed


def test_the_answer_to_a_head_has_no_body() -> None:
    assert is_framed("HEAD", Response(200))
