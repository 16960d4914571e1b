"""What importing costs, and what the distribution says."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

import vllm_http_cache

README = Path(__file__).parent.parent / "README.md"
HEAVY = {
    "aiohttp",
    "aiohttp_client_cache",
    "hishel",
    "httpx",
    "prometheus_client",
    "pydantic",
    "pydantic_settings",
    "requests",
    "rich",
    "typer",
    "vllm",
}


def loaded_by(statement: str) -> set[str]:
    """The heavy modules that a fresh interpreter has after *statement*."""
    program = f"import sys\n{statement}\nprint(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    return HEAVY & set(out.split())


@pytest.mark.parametrize(
    "statement, loaded",
    [
        ("import vllm_http_cache", set()),
        ("from vllm_http_cache import Cache, CacheOptions, FileStorage", set()),
        ("from vllm_http_cache.vllm import register", set()),
        ("import vllm_http_cache.metrics", set()),
        ("import vllm_http_cache.httpx", {"httpx"}),
        ("import vllm_http_cache.aiohttp", {"aiohttp"}),
        ("import vllm_http_cache.requests", {"requests"}),
        ("import vllm_http_cache.cli", {"typer"}),
    ],
)
def test_an_import_loads_only_what_it_is_for(statement: str, loaded: set[str]) -> None:
    may_bring_rich = {"rich"} if loaded & {"httpx", "typer"} else set()  # httpx has a command line of its own
    assert loaded <= loaded_by(statement) <= loaded | may_bring_rich


def test_import_without_optional_parts_loads_no_own_part() -> None:
    program = "import sys, vllm_http_cache; print(*(m for m in sys.modules if m.startswith('vllm_http_cache')))"
    out = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert out.split() == ["vllm_http_cache"]


@pytest.mark.parametrize("name", vllm_http_cache.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(vllm_http_cache, name)


def test_no_other_name_is_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'CacheControl'"):
        vllm_http_cache.CacheControl  # type: ignore[attr-defined] # noqa: B018


def test_the_version_is_the_distributions() -> None:
    assert vllm_http_cache.__version__ == version("vllm-http-cache")


def test_vllm_finds_the_plugin() -> None:
    (plugin,) = entry_points(group="vllm.general_plugins", name="vllm_http_cache")
    assert plugin.load().__name__ == "register"


def test_what_the_readme_imports_is_there() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        program = compile(block, "README.md", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        imports = [node for node in ast.walk(program) if isinstance(node, ast.Import | ast.ImportFrom)]
        exec("\n".join(map(ast.unparse, imports)), {})


def test_another_hishel_is_told(tmp_path: Path) -> None:
    (tmp_path / "hishel.py").touch()
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import vllm_http_cache.storage.hishel"
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.stderr.endswith("needs hishel 2: pip install vllm-http-cache[hishel]\n")
