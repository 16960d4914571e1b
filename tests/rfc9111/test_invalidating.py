"""RFC 9111 section 4.4."""

from __future__ import annotations

import pytest

from vllm_http_cache.rfc9111.invalidating import invalidated

from .make import URI, answer, get


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "M-SEARCH", "get", "FOO"])
@pytest.mark.parametrize(
    "status, expected", [(199, ()), (200, (URI,)), (302, (URI,)), (399, (URI,)), (400, ()), (500, ())]
)
def test_an_unsafe_method_that_succeeded_invalidates_the_target(
    method: str, status: int, expected: tuple[str, ...]
) -> None:
    assert invalidated(get(method=method), answer(status=status)) == expected


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "TRACE"])
def test_safe_methods_invalidate_nothing(method: str) -> None:
    assert invalidated(get(method=method), answer("Location: /x")) == ()


def test_location_and_content_location_of_the_same_origin() -> None:
    response = answer("Location: dog.png", "Content-Location: https://EXAMPLE.test:443/fish.png")
    assert invalidated(get(method="POST"), response) == (
        URI,
        "https://example.test/dog.png",
        "https://EXAMPLE.test:443/fish.png",
    )
    assert invalidated(get(method="POST"), answer("Location: cat.png", "Content-Location: /cat.png")) == (URI,)


@pytest.mark.parametrize(
    "location",
    ["https://other.test/", "http://example.test/", "https://example.test:444/", "//x", "http://[", "a b", "mailto:x"],
)
def test_nothing_of_another_origin(location: str) -> None:
    for name in ("Location", "Content-Location"):
        assert invalidated(get(method="POST"), answer(f"{name}: {location}")) == (URI,)


def test_a_target_that_has_no_key_has_nothing_stored() -> None:
    assert invalidated(get(method="POST", uri="http://a b/"), answer("Location: /x")) == ()


def test_the_fragment_is_no_part_of_the_target() -> None:
    (uri,) = invalidated(get(method="POST", uri="http://a/b?c#d"), answer())
    assert uri.startswith("http://a/b?c")
