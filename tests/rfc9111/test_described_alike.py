"""Two answers that may have the same octets (RFC 9110 section 8.8)."""

from __future__ import annotations

import pytest

from vllm_http_cache.rfc9111.message import Response
from vllm_http_cache.rfc9111.validators import described_alike

from .make import fields, kept

DATED = "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT"


@pytest.mark.parametrize(
    "status, lines, alike",
    [
        (200, ['ETag: "1"'], True),
        (200, ['ETag: "1"', "Content-Type: image/png", "Content-Length: 5", DATED], True),
        (203, ['ETag: "1"'], False),
        (200, ['ETag: "2"'], False),
        (200, ['ETag: W/"1"'], False),
        (200, [], False),
        (200, ['ETag: "1"', "Content-Encoding: gzip"], False),
        (200, ['ETag: "1"', "Content-Range: bytes 0-1/2"], False),
    ],
)
def test_a_strong_tag_tells_all_of_one_form(status: int, lines: list[str], alike: bool) -> None:
    assert described_alike(kept('ETag: "1"'), Response(status, fields(*lines))) is alike


@pytest.mark.parametrize("tag", [[], ['ETag: W/"1"']])
@pytest.mark.parametrize(
    "lines, alike",
    [
        ([], True),
        (["Vary: Accept"], True),
        (["Content-Length: 5"], False),
        (["Content-Type: image/png"], False),
        (["Content-Encoding: gzip"], False),
        (["Content-Range: bytes 0-1/2"], False),
        ([DATED], False),
    ],
)
def test_without_one_all_counts_that_is_told_of_a_content(tag: list[str], lines: list[str], alike: bool) -> None:
    assert described_alike(kept(*tag), Response(200, fields(*tag, *lines))) is alike
    assert described_alike(kept(*tag, *lines), Response(200, fields(*tag))) is alike


def test_weak_tags_that_differ() -> None:
    assert not described_alike(kept('ETag: W/"1"'), Response(200, fields('ETag: W/"2"')))


def test_coded_octets_are_not_those_of_the_uncoded() -> None:
    assert not described_alike(kept('ETag: "1"', "Content-Encoding: gzip"), Response(200, fields('ETag: "1"')))
