"""Puts our functions in the place of vLLM's."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .connection import MARK, Seam
from .connector import wrapped_load, wrapped_load_async
from .opening import Opening, log_as_vllm

__all__ = ["install"]

CONNECTORS = ("vllm.multimodal.media.connector", "vllm.multimodal.utils")  # homes of MediaConnector; the latter to 0.18


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
    seam = Seam(global_http_connection, Opening())
    envs.VLLM_MEDIA_CACHE = ""  # the built-in cache would answer before us; this shadows what vLLM reads at each use
    connector.load_from_url = wrapped_load(load)
    connector.load_from_url_async = wrapped_load_async(load_async)
    seam.take()
    log_as_vllm()


def _media_connector() -> Any:
    for name in CONNECTORS:
        try:
            return import_module(name).MediaConnector
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"no MediaConnector in {' or '.join(CONNECTORS)}")
