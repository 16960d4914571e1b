"""Puts our functions in vLLM's place, and opens the cache at the first fetch."""

from __future__ import annotations

import logging
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .connection import Seam
from .connector import wrapped_load, wrapped_load_async

if TYPE_CHECKING:
    from .media import Media

__all__ = ["install"]

log = logging.getLogger("vllm_http_cache")

CONNECTORS = ("vllm.multimodal.media.connector", "vllm.multimodal.utils")  # homes of MediaConnector; the latter to 0.18
MARK = "vllm_http_cache"


def install() -> None:
    """Replace what fetches in ``vllm.connections`` and what loads in ``MediaConnector``; once.

    :raises ImportError, AttributeError: this vLLM has none; nothing has been replaced.
    """
    from vllm import envs
    from vllm.connections import global_http_connection

    if hasattr(global_http_connection, MARK):
        return
    connector = _media_connector()
    load, load_async = connector.load_from_url, connector.load_from_url_async
    seam = Seam(global_http_connection, _Opening())
    setattr(global_http_connection, MARK, seam)
    envs.VLLM_MEDIA_CACHE = ""  # the built-in cache would answer before us; this shadows what vLLM reads at each use
    connector.load_from_url = wrapped_load(load)
    connector.load_from_url_async = wrapped_load_async(load_async)
    seam.take()
    _log_as_vllm()


def _media_connector() -> Any:
    for name in CONNECTORS:
        try:
            return import_module(name).MediaConnector
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"no MediaConnector in {' or '.join(CONNECTORS)}")


class _Opening:
    """The cache of this process, opened at the first fetch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened = False
        self._media: Media | None = None

    def __call__(self) -> Media | None:
        """None: there is none, because the settings are not in order."""
        if not self._opened:
            with self._lock:
                if not self._opened:
                    self._media = _open()
                    self._opened = True
        return self._media


def _open() -> Media | None:
    try:
        from ..settings import Settings, open_cache
        from .media import Media

        settings = Settings()
        cache = open_cache(settings)
    except Exception as error:
        log.warning("no cache: %s", error)
        return None
    if cache is None:
        return None
    log.info(
        "the media cache is active in %s: at most %d MiB, at most %g h, mode %s",
        settings.path,
        settings.max_size_mb,
        settings.ttl_hours,
        settings.mode,
    )
    return Media(cache, settings)


def _log_as_vllm() -> None:
    """vLLM sets up its own logger alone; ours would say nothing below a warning."""
    if not log.handlers:
        log.parent = logging.getLogger("vllm")
        log.setLevel(log.level)  # forgets what was enabled so far
