"""What the plugin costs every vLLM process that did not ask for a cache."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from statistics import median

from ..results import Row
from ..stage import Stage

__all__ = ["starts"]

MOST = 5.0  # milliseconds
REGISTER = "from vllm_http_cache.vllm import register; register()"


def starts(stage: Stage) -> None:
    """Interpreters that do nothing, and that register the plugin with its variable unset, in turn."""
    environ = {name: value for name, value in os.environ.items() if name != "VLLM_MEDIA_CACHE"}

    def seconds(program: str) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", program], check=True, env=environ)
        return time.perf_counter() - began

    seconds(REGISTER)
    pairs = [(seconds("pass"), seconds(REGISTER)) for _ in range(stage.plan.starts)]
    differences = [(registered - bare) * 1e3 for bare, registered in pairs]
    stage.results.facts.append({"contest": "starts", "milliseconds": differences})
    stage.report(
        Row(
            "starts",
            "register() with the variable unset",
            MOST,
            median(differences),
            unit=" ms",
            against="a bare interpreter",
            note=f"which takes {median(bare for bare, _ in pairs) * 1e3:.0f} ms",
        )
    )
