"""What a result depends on: the machine and the versions."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["about"]

LIBRARIES = (
    "vllm-http-cache",
    "vllm",
    "httpx",
    "aiohttp",
    "requests",
    "hishel",
    "aiohttp-client-cache",
    "CacheControl",
    "requests-cache",
    "anyio",
    "xxhash",
)


def about(command: str, origin: str, folder: Path) -> dict[str, Any]:
    """:param folder: where subjects keep what they keep."""
    return {
        "command": command,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": _commit(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "system": f"{platform.system()} {platform.release()}",
        "file system": _file_system(folder),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "origin": origin,
        "versions": {name: _version(name) for name in LIBRARIES},
    }


def _version(name: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return None


def _commit() -> str | None:
    command = ["git", "describe", "--always", "--dirty"]
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    return None


def _processor() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _file_system(folder: Path) -> str:
    """Its type, where the system says so."""
    folder = folder.resolve()
    best, kind = Path("/"), "unknown"
    with suppress(OSError):
        for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
            _, point, name, *_ = line.split(" ")
            mounted = Path(point)
            if folder.is_relative_to(mounted) and (len(mounted.parts) >= len(best.parts) or kind == "unknown"):
                best, kind = mounted, name
    return kind
