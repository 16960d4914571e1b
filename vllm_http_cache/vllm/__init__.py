"""The plugin: vLLM's own HTTP clients and its media connector, over the cache.

vLLM calls :func:`register` in each of its processes, for every ``vllm`` command. Without ``VLLM_MEDIA_CACHE`` it reads
a variable and returns; with it, it puts our functions in place and opens nothing: that is left to the first fetch.
"""

from __future__ import annotations

import os

__all__ = ["register"]


def register() -> None:
    """Put the cache under vLLM's media. Idempotent; raises nothing, as that would end vLLM."""
    if not os.environ.get("VLLM_MEDIA_CACHE", "").strip() or os.environ.get("MEDIA_CACHE_MODE", "").strip() == "off":
        return
    try:
        from .install import install

        install()
    except Exception as error:
        import logging

        logging.getLogger("vllm_http_cache").warning("not active: this vLLM is not as expected: %r", error)
