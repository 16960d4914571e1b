"""RFC 9211, RFC 8941."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_http_cache.rfc9111.cachestatus import CacheStatus


@pytest.mark.parametrize(
    "status, expected",
    [
        (CacheStatus(), ""),
        (CacheStatus(hit=True), "; hit"),
        (CacheStatus(hit=True, ttl=376), "; hit; ttl=376"),
        (CacheStatus(hit=True, ttl=-412), "; hit; ttl=-412"),
        (CacheStatus(hit=True, ttl=0), "; hit; ttl=0"),
        (CacheStatus(forward="uri-miss"), "; fwd=uri-miss"),
        (CacheStatus(forward="stale", forward_status=304), "; fwd=stale; fwd-status=304"),
        (
            CacheStatus(forward="uri-miss", forward_status=200, ttl=5, stored=True, collapsed=True, detail="x"),
            "; fwd=uri-miss; fwd-status=200; ttl=5; stored; collapsed; detail=x",
        ),
        (CacheStatus(hit=True, stored=True, collapsed=True, forward_status=200), "; hit"),  # meaningless without fwd
        (CacheStatus(detail="only-if-cached"), "; detail=only-if-cached"),
        (CacheStatus(detail="*a:/!#$%&'+-.^_`|~0"), "; detail=*a:/!#$%&'+-.^_`|~0"),
        (CacheStatus(detail=""), '; detail=""'),
        (CacheStatus(detail="1a"), '; detail="1a"'),
        (CacheStatus(detail="a b"), '; detail="a b"'),
        (CacheStatus(detail='a"\\'), '; detail="a\\"\\\\"'),
        (CacheStatus(detail="é\n\x7f~ "), '; detail="???~ "'),
        (CacheStatus(hit=True, ttl=10**16), "; hit; ttl=999999999999999"),
        (CacheStatus(hit=True, ttl=-(10**16)), "; hit; ttl=-999999999999999"),
    ],
)
def test_field_value(status: CacheStatus, expected: str) -> None:
    assert str(status) == "vllm-http-cache" + expected


PARAMETER = r'; [a-z-]+(=(-?\d{1,15}|[A-Za-z*][A-Za-z0-9:/!#$%&\'*+.^_`|~-]*|"([ !#-\[\]-~]|\\["\\])*"))?'


@given(st.text(), st.text(), st.integers())
def test_every_value_is_a_structured_item(forward: str, detail: str, ttl: int) -> None:
    value = str(CacheStatus(forward=forward, detail=detail, ttl=ttl, stored=True))
    assert re.fullmatch(f"vllm-http-cache({PARAMETER})*", value)
