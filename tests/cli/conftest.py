"""What the commands' tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.commands import run

URL = "http://a.test/picture.png"
BODY = b"octets of a picture" * 1000


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("MEDIA_CACHE", "VLLM_MEDIA_CACHE")):
            monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "picture.png"
    path.write_bytes(BODY)
    return path


@pytest.fixture
def folder(tmp_path: Path, file: Path) -> str:
    """A folder in which two hosts' pictures are stored."""
    folder = str(tmp_path / "cache")
    assert run("seed", URL, str(file), "--folder", folder) == (0, "stored\n")
    assert run("seed", "http://b.test/?sig=secret", str(file), "--folder", folder, "--max-age", "0")[0] == 0
    return folder
