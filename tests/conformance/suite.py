"""The public suite: installed from npm, its own origin started, its own client run."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.conformance.processes import ROOT, server

__all__ = ["NAME", "VERSION", "Suite", "Test"]

NAME, VERSION = "http-cache-tests", "0.4.5"
FOLDER = ROOT / ".nox" / f"{NAME}-{VERSION}"
LIMIT = 150.0  # seconds for all tests; they take about 40

SHARED_ONLY = frozenset(
    {
        "cc-resp-private-shared",
        "freshness-max-age-s-maxage-shared-longer",
        "freshness-max-age-s-maxage-shared-longer-multiple",
        "freshness-max-age-s-maxage-shared-longer-reversed",
        "freshness-max-age-s-maxage-shared-shorter",
        "freshness-max-age-s-maxage-shared-shorter-expires",
        "freshness-s-maxage-shared",
        "other-authorization",
        "other-authorization-must-revalidate",
        "other-authorization-public",
        "other-authorization-smaxage",
        "stale-close-proxy-revalidate",
        "stale-close-s-maxage=2",
    }
)
BROWSER_ONLY = frozenset({"cc-resp-immutable-fresh", "cc-resp-immutable-stale"})  # about modes of a browser's fetch()


@dataclass(frozen=True)
class Test:
    """:param private: it is about private caches only."""

    id: str
    kind: str
    private: bool = False

    def applies(self, *, shared: bool) -> bool:
        return self.id not in BROWSER_ONLY and not (self.private if shared else self.id in SHARED_ONLY)


class Suite:
    """:param folder: where it is, or will be, installed."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._home = folder / "node_modules" / NAME
        if not self._home.exists():
            _install(folder)

    def tests(self) -> list[Test]:
        """All tests but those about CDNs."""
        told = self._run({})["tests"]
        return [Test(test["id"], test["kind"], test["browser"]) for test in told]

    @contextmanager
    def origin(self) -> Iterator[int]:
        """Its server; the port."""
        options = {"npm_config_protocol": "http", "npm_config_port": "0", "npm_config_pidfile": os.devnull}
        with server(["node", "server/server.mjs"], self._home, {**os.environ, **options}) as port:
            yield port

    def results(self, gateway: int, ids: Collection[str], *, dump: bool = False) -> dict[str, str]:
        """Run these tests. Empty for a test that passed, otherwise what was wrong.

        :param dump: show each message on standard error.
        """
        job = {"base": f"http://127.0.0.1:{gateway}", "ids": sorted(ids), "dump": dump}
        results: dict[str, Any] = self._run(job)["results"]
        return {test: "" if told is True else ": ".join(map(str, told)) for test, told in results.items()}

    def _run(self, job: dict[str, Any]) -> dict[str, Any]:
        command = ["node", "--no-warnings", str(Path(__file__).with_name("runner.mjs"))]
        given = json.dumps({"suite": str(self._home), **job})
        ended = subprocess.run(command, input=given, stdout=subprocess.PIPE, text=True, timeout=LIMIT, check=True)
        told: dict[str, Any] = json.loads(ended.stdout)
        return told


def _install(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as partial:
        command = ["npm", "install", "--prefix", partial, "--ignore-scripts", "--no-audit", "--no-fund", "--no-save"]
        subprocess.run([*command, f"{NAME}@{VERSION}"], check=True, stdout=subprocess.DEVNULL, timeout=300)
        whole = Path(partial) / "whole"
        whole.mkdir()
        (Path(partial) / "node_modules").rename(whole / "node_modules")
        try:
            whole.rename(folder)
        except OSError:
            if not folder.exists():  # otherwise another run was faster
                raise
