"""An HTTP cache (RFC 9111) for vLLM's media and for httpx, aiohttp and requests.

Importing this package loads none of its parts; each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cache import Cache as Cache
    from .rfc9111.options import CacheOptions as CacheOptions
    from .settings import Settings as Settings
    from .settings import open_cache as open_cache
    from .storage.files import FileStorage as FileStorage

__version__ = "0.1.0"
__all__ = ["Cache", "CacheOptions", "FileStorage", "Settings", "__version__", "open_cache"]

_HOMES = {
    "Cache": ".cache",
    "CacheOptions": ".rfc9111.options",
    "FileStorage": ".storage.files",
    "Settings": ".settings",
    "open_cache": ".settings",
}


def __getattr__(name: str) -> Any:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(import_module(home, __name__), name)
