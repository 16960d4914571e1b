"""The rules alone: nothing here opens a file or a socket."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(scope="session", autouse=True)
def _forget_what_was_parsed() -> None:
    """A mutated parser is to be asked again, not remembered from before it was mutated."""
    for name, module in tuple(sys.modules.items()):
        if name.startswith("vllm_http_cache.rfc9111."):
            for value in vars(module).values():
                if callable(clear := getattr(value, "cache_clear", None)):
                    clear()
