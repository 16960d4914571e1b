"""What the plugin costs those who do not use it: nothing imported, nothing opened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm.connections")

PROGRAM = """
import importlib, json, sys, typing  # as vLLM has, long before
before = set(sys.modules)
from vllm_http_cache.vllm import register
register()
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.mark.parametrize(
    "environ", [{}, {"VLLM_MEDIA_CACHE": ""}, {"VLLM_MEDIA_CACHE": "/x", "MEDIA_CACHE_MODE": "off"}]
)
def test_unused(environ: dict[str, str], tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "MEDIA_CACHE_"))}
    run = [sys.executable, "-c", PROGRAM]
    output = subprocess.run(run, env={**clean, **environ}, cwd=tmp_path, check=True, capture_output=True).stdout
    assert set(json.loads(output)) <= {"__future__", "vllm_http_cache", "vllm_http_cache.vllm"}
    assert list(tmp_path.iterdir()) == []


def test_idempotent(tmp_path: Path) -> None:
    """Once a process, and nothing is opened before the first fetch."""
    program = """
import os, sys
from vllm_http_cache.vllm import register
register()
from vllm.connections import global_http_connection as connection
first = connection.get_response
register()
assert connection.get_response == first
from vllm.multimodal.media import MediaConnector
assert not hasattr(MediaConnector.load_from_url.__wrapped__, "__wrapped__")
assert not os.path.exists("cache")
assert "vllm_http_cache.cache" not in sys.modules
"""
    environ = {**os.environ, "VLLM_MEDIA_CACHE": "cache", "VLLM_TARGET_DEVICE": "cpu"}
    subprocess.run([sys.executable, "-c", program], env=environ, cwd=tmp_path, check=True)


def test_a_vllm_that_is_different(tmp_path: Path) -> None:
    """One warning, and vLLM goes on."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    program = "from vllm_http_cache.vllm import register; register()"
    environ = {**os.environ, "VLLM_MEDIA_CACHE": "cache", "PYTHONPATH": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", program], env=environ, cwd=tmp_path, check=True, capture_output=True)
    (line,) = run.stderr.decode().splitlines()
    assert "not active: this vLLM is not as expected" in line
