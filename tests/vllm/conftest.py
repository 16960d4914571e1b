"""The plugin in this process, taken out again after each test; and real servers, started once."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.folders import holds

with suppress(ImportError), warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own, at its import

FOREIGN = ("VLLM_MEDIA", "MEDIA_CACHE_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "NETRC")
METHODS = ("get_response", "get_async_response", "get_sync_client", "get_async_client", "vllm_http_cache")


class Plugin:
    """The plugin as vLLM loads it: with a folder and an environment."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._patch = patch

    def start(self, **environ: str) -> None:
        """Register, once more if need be, with *environ* and the folder."""
        from vllm_http_cache.vllm import register

        self.stop()
        for name, value in {"VLLM_MEDIA_CACHE": str(self.folder), **environ}.items():
            self._patch.setenv(name, value)
        register()

    def stop(self) -> None:
        """As it was before; what is stored stays."""
        from vllm import envs
        from vllm.connections import global_http_connection as connection
        from vllm.multimodal.media import MediaConnector

        seam = vars(connection).get("vllm_http_cache")
        if seam is None:
            return
        media = seam._opening.media
        if media is not None:
            media.cache.close()
        for name in METHODS:
            vars(connection).pop(name)
        vars(envs).pop("VLLM_MEDIA_CACHE")
        for name in ("load_from_url", "load_from_url_async"):
            setattr(MediaConnector, name, getattr(MediaConnector, name).__wrapped__)

    def stored(self, octets: bytes) -> bool:
        """Whether any file in the folder holds *octets*."""
        return holds(self.folder, octets)


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugin]:
    for name in list(os.environ):
        if name.upper().startswith(FOREIGN):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))  # and no netrc but the test's
    plugin = Plugin(tmp_path / "cache", monkeypatch)
    yield plugin
    plugin.stop()


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def fetch(request: pytest.FixtureRequest) -> Any:
    """vLLM's fetching, on both its paths."""
    from tests.vllm.media import Fetch

    return Fetch(asynchronous=request.param)
