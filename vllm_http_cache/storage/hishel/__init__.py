"""hishel 2 and this package, either under the other. Needs the extra ``vllm-http-cache[hishel]``.

:func:`as_hishel` and :func:`as_hishel_async` put a storage of ours under hishel's own transports:

    httpx.Client(transport=hishel.httpx.CacheTransport(httpx.HTTPTransport(), as_hishel(FileStorage(path))))

:class:`HishelStorage` puts a synchronous storage of hishel's under our cache:

    Cache(HishelStorage(hishel.SqliteStorage(database_path=path)))

What is lost on each way stands with each of them.
"""

from __future__ import annotations

try:
    from .ours import as_hishel, as_hishel_async
    from .theirs import HishelStorage
except ImportError as error:
    raise ImportError("vllm_http_cache.storage.hishel needs hishel 2: pip install vllm-http-cache[hishel]") from error

__all__ = ["HishelStorage", "as_hishel", "as_hishel_async"]
