"""What the tests of CachedSession share."""

from __future__ import annotations

from typing import Any

import pytest
from yarl import URL

from vllm_http_cache import Cache

pytest.importorskip("aiohttp_client_cache")

from vllm_http_cache.aiohttp_client_cache import CachedSession

KEPT = {"Cache-Control": "max-age=60", "ETag": '"1"'}


def session_of(cache: Cache, **session: Any) -> Any:
    """As users have it: what that library adds to responses has no types."""
    return CachedSession(cache=cache, **session)


async def fetched(session: Any, url: str | URL, **request: Any) -> tuple[bytes, bool]:
    async with session.get(url, **request) as response:
        return await response.read(), response.from_cache
