"""Imported once in the process from which vLLM's subjects are forked."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def _silence() -> Iterator[None]:
    """vLLM says much at its import, past all of Python's ways to keep it quiet."""
    kept = os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.dup2(kept, 2)
        os.close(nothing)
        os.close(kept)


with _silence(), suppress(ImportError):
    import vllm.multimodal.media  # noqa: F401
