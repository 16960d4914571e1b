"""A Host field of the caller's own makes a request another resource's (RFC 9110 section 7.1)."""

from __future__ import annotations

import pytest

from vllm_http_cache.rfc9111.message import Fields, Request
from vllm_http_cache.rfc9111.selecting import is_answerable


@pytest.mark.parametrize(
    "uri, host, answerable",
    [
        ("http://a.test/x", "a.test", True),
        ("http://a.test/x", "A.TEST:80", True),
        ("http://a.test:8080/x", " a.test:8080 ", True),
        ("http://u:p@a.test/x", "a.test", True),
        ("http://x.test/", "X.test", True),
        ("http://a.test/x", "a.test\xa0", False),
        ("http://a.test/x", "b.test", False),
        ("http://a.test/x", "a.test:8080", False),
        ("https://a.test/x", "a.test:80", False),
        ("http://a.test/x", "u@a.test", False),
        ("http://a.test/x", "a.test/x", False),
        ("http://a.test/x", "", False),
    ],
)
def test_a_host_field_names_the_targets_authority(uri: str, host: str, answerable: bool) -> None:
    assert is_answerable(Request("GET", uri, Fields([("Host", host)]))) is answerable


@pytest.mark.parametrize(
    "method, lines, answerable",
    [
        ("GET", (), True),
        ("HEAD", (), True),
        ("POST", (), False),
        ("get", (), False),
        ("GET", (("Content-Length", "0"),), True),
        ("GET", (("Content-Length", "1"),), False),
        ("GET", (("Content-Length", ""),), False),
        ("HEAD", (("Transfer-Encoding", "chunked"),), False),
    ],
)
def test_a_request_with_content_is_the_origins(
    method: str, lines: tuple[tuple[str, str], ...], answerable: bool
) -> None:
    assert is_answerable(Request(method, "http://a.test/", Fields(lines))) is answerable


def test_without_one_the_uri_says_it() -> None:
    assert is_answerable(Request("GET", "http://a.test/x"))
