"""Looking into a folder that others are changing."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["holds"]


def holds(folder: Path, octets: bytes) -> bool:
    """Whether any file below *folder* has *octets* in it; a file that goes meanwhile has not."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                if octets in Path(parent, name).read_bytes():
                    return True
    return False
