"""The demo shows what it says, and tells when it is not so."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.cli.commands import run
from vllm_http_cache import Cache, CacheOptions, FileStorage, __version__
from vllm_http_cache.cli import app
from vllm_http_cache.cli.demo.clients import CLIENTS


def test_the_console_script_is_installed() -> None:
    script = Path(sys.executable).with_name("vllm-http-cache")
    out = subprocess.run([script, "--version"], check=True, capture_output=True, text=True).stdout
    assert out.strip() == __version__


def test_no_command_shows_the_commands() -> None:
    _, output = run()
    assert "demo" in output
    assert "explain" in output


def test_the_docs_know_every_command() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operating.md").read_text("utf-8")
    for command in app.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "")
        assert f"`{name} " in page or f"`{name}`" in page


def test_demo(tmp_path: Path) -> None:
    code, output = run("demo", "--folder", str(tmp_path))
    assert code == 0, output
    assert "Everything was as it should be" in output
    assert all(word in output for name in CLIENTS for word in name.split())
    assert sum(line.split().count("304") for line in output.splitlines()) == len(CLIENTS)
    assert f"{tmp_path} holds 9 responses" in output
    assert any(tmp_path.rglob("*")), "a folder that was given is kept"


def test_demo_where_nothing_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    code, output = run("demo", "--folder", str(tmp_path / "not" / "there"))
    assert code == 1
    assert f"{tmp_path} cannot be written: name another, or none" in output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("columns", [80, 60])
def test_demo_fits_a_narrow_terminal(columns: int) -> None:
    _, output = run("demo", columns=columns)
    table, _, rest = output.partition("The body's size")
    assert max(map(len, table.splitlines())) <= columns
    assert "…" not in table
    heading, _, body = table.partition("───")
    assert {"request", "httpx", "httpx,", "async", "aiohttp", "requests"} <= set(heading.split())
    assert sum(line.split().count("304") for line in body.splitlines()) == len(CLIENTS)
    (folder,) = re.findall(r"^(/\S+) held 9 responses .* at most \(removed\)\.$", rest, re.MULTILINE)
    assert not Path(folder).exists()


def test_demo_leaves_a_cache_alone(tmp_path: Path) -> None:
    (tmp_path / ".vllm-http-cache").mkdir()
    code, output = run("demo", "--folder", str(tmp_path))
    assert code == 1
    assert f"{tmp_path} holds a cache already" in output
    assert not list((tmp_path / ".vllm-http-cache").iterdir())
    (tmp_path / "file").touch()
    assert run("demo", "--folder", str(tmp_path / "file"))[0] == 1


@pytest.mark.parametrize(
    "mode, complaint", [("force-cache", "the wrong picture"), ("reload", "GET 200 on the wire instead of nothing")]
)
def test_demo_tells_when_something_is_wrong(monkeypatch: pytest.MonkeyPatch, mode: str, complaint: str) -> None:
    def wrong(folder: Path) -> Cache:
        return Cache(FileStorage(folder), CacheOptions(mode=mode))  # type: ignore[arg-type]

    monkeypatch.setattr(import_module("vllm_http_cache.cli.demo"), "_open", wrong)
    code, output = run("demo")
    assert code == 1
    assert "Not everything was as it should be" in output
    assert complaint in output
