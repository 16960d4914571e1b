"""Two answers whose octets may be joined (RFC 9110 section 8.8.1)."""

from __future__ import annotations

import pytest

from vllm_http_cache.rfc9111.message import Response
from vllm_http_cache.rfc9111.validators import same_representation

from .make import fields, kept


@pytest.mark.parametrize(
    "status, lines, same",
    [
        (200, ['ETag: "1"'], True),
        (203, ['ETag: "1"'], False),
        (200, ['ETag: "2"'], False),
        (200, ['ETag: W/"1"'], False),
        (200, [], False),
        (200, ['ETag: "1"', "Content-Encoding: gzip"], False),
        (200, ['ETag: "1"', "Content-Range: bytes 0-1/2"], False),
    ],
)
def test_a_strong_tag_and_the_same_form_vouch_for_the_octets(status: int, lines: list[str], same: bool) -> None:
    assert same_representation(kept('ETag: "1"'), Response(status, fields(*lines))) is same


def test_coded_octets_are_not_those_of_the_uncoded() -> None:
    assert not same_representation(kept('ETag: "1"', "Content-Encoding: gzip"), Response(200, fields('ETag: "1"')))
