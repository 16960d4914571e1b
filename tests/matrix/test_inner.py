"""What lies below: inner transports and adapters, wrong ones and users' own."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from requests.adapters import HTTPAdapter

from vllm_http_cache import Cache
from vllm_http_cache.httpx import AsyncCacheTransport, CacheTransport
from vllm_http_cache.requests import CacheAdapter

NO_CACHE = r"cache has to be a Cache \(where open_cache\(\) gives None, do without\), not "


@pytest.mark.only("httpx")
def test_what_could_not_fetch_is_refused_at_once(cache: Cache) -> None:
    inner: Any = httpx.HTTPTransport()
    ours: Any = cache
    with pytest.raises(TypeError, match=r"inner has to be a transport, such as httpx.HTTPTransport\(\), not <vllm"):
        CacheTransport(ours, inner)
    with pytest.raises(TypeError, match=r"inner has to be a transport, .*, not <class 'httpx.HTTPTransport'>"):
        CacheTransport(type(inner), cache)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"inner has to be an asynchronous transport, .*, not <httpx.HTTPTransport"):
        AsyncCacheTransport(inner, cache)
    for transport in (CacheTransport, AsyncCacheTransport):
        with pytest.raises(TypeError, match=NO_CACHE + "None"):
            transport(httpx.MockTransport(print), None)  # type: ignore[arg-type]


@pytest.mark.only("requests")
def test_what_could_not_send_is_refused_at_once(cache: Cache) -> None:
    ours: Any = cache
    with pytest.raises(TypeError, match=NO_CACHE + "<requests.adapters.HTTPAdapter"):
        CacheAdapter(HTTPAdapter(), ours)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"inner has to be an adapter, such as HTTPAdapter\(\), not <vllm_http_cache"):
        CacheAdapter(cache, ours)
