"""Opens the cache at the first fetch, and says so."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .media import Media

__all__ = ["Opening", "log_as_vllm"]

log = logging.getLogger("vllm_http_cache")


class Opening:
    """The cache of this process, opened at the first fetch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened = False
        self.media: Media | None = None  # None also before the first fetch

    def __call__(self) -> Media | None:
        """None: there is none, because the settings are not in order."""
        if not self._opened:
            with self._lock:
                if not self._opened:
                    self.media = _open()
                    self._opened = True
        return self.media

    async def soon(self) -> Media | None:
        """The same for a task: opening takes a tenth of a second."""
        return self.media if self._opened else await asyncio.to_thread(self)


def _open() -> Media | None:
    try:
        from ..settings import Settings, open_cache
        from ..storage.files import FileStorage
        from .media import Media
        from .seeds import Seeds

        settings = Settings()
        cache = open_cache(settings)
    except Exception as error:
        log.warning("vllm-http-cache is off, media are fetched without it: %s", error)
        return None
    if cache is None:
        return None
    if (complaint := Seeds.complaint(settings)) is not None:
        log.warning("vllm-http-cache: %s", complaint)
    log.info(
        "vllm-http-cache is active in %s: at most %d MiB, at most %g h, mode %s"
        if isinstance(cache.storage, FileStorage) and cache.storage.open()
        else "vllm-http-cache cannot use %s yet: at most %d MiB, at most %g h, mode %s",
        Path(settings.path or "").absolute(),
        settings.max_size_mb,
        settings.ttl_hours,
        settings.mode,
    )
    return Media(cache, settings)


def log_as_vllm() -> None:
    """vLLM sets up its own logger alone; ours would say nothing below a warning."""
    if not log.handlers:
        log.parent = logging.getLogger("vllm")
        log.setLevel(log.level)  # forgets what was enabled so far
