"""An HTTP cache (RFC 9111) for vLLM's media and for httpx, aiohttp and requests.

Importing this package loads none of its parts; each name is loaded when it is first used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as checkers know it; importing typing takes longer than all of this
if TYPE_CHECKING:
    from .cache import Cache as Cache
    from .rfc9111.options import CacheOptions as CacheOptions
    from .settings import Settings as Settings
    from .settings import SettingsError as SettingsError
    from .settings import open_cache as open_cache
    from .storage.files import FileStorage as FileStorage

__version__ = "0.1.0"
__all__ = ["Cache", "CacheOptions", "FileStorage", "Settings", "SettingsError", "__version__", "open_cache"]

_HOMES = {
    "Cache": ".cache",
    "CacheOptions": ".rfc9111.options",
    "FileStorage": ".storage.files",
    "Settings": ".settings",
    "SettingsError": ".settings",
    "open_cache": ".settings",
}


if not TYPE_CHECKING:  # a checker that sees it believes any name to be there

    def __getattr__(name: str) -> object:
        try:
            home = _HOMES[name]
        except KeyError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
        from importlib import import_module

        return getattr(import_module(home, __name__), name)
