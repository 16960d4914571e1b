"""``vllm-http-cache demo``: one picture's life, seen from the origin, with each client."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console as RichConsole
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from vllm_http_cache import Cache, FileStorage
from vllm_http_cache.storage.layout import OWN

from ..terminal import printable, writing
from .clients import CLIENTS, Fetch
from .origin import Exchange, Origin, Resource, picture

__all__ = ["run"]

MAX_SIZE = 50_000_000
NARROWEST = 60  # columns
SECRET = picture("secret")


@dataclass(frozen=True)
class Scene:
    """A request, what the origin has for it, and what is to come of it."""

    title: str
    path: str
    resource: Resource
    wire: str  # what goes over the wire: "", "GET 200", "If-None-Match 304" ...
    cache_status: str  # to be found in the answer's Cache-Status


FRESH = Resource(picture("fresh"), "max-age=3600")
BEFORE = Resource(picture("before"), "no-cache")
AFTER = Resource(picture("after"), "no-cache")
KEPT_BY_NOBODY = Resource(SECRET, "no-store")
SCENES = (
    Scene("max-age=3600: a miss", "fresh.png", FRESH, "GET 200", "fwd=uri-miss"),
    Scene("the same again: a hit", "fresh.png", FRESH, "", "hit"),
    Scene("no-cache: a miss", "checked.png", BEFORE, "GET 200", "fwd=uri-miss"),
    Scene("the same, not changed", "checked.png", BEFORE, "If-None-Match 304", "fwd-status=304"),
    Scene("the same, changed", "checked.png", AFTER, "If-None-Match 200", "fwd-status=200"),
    Scene("no-store", "secret.png", KEPT_BY_NOBODY, "GET 200", "fwd="),
    Scene("no-store again", "secret.png", KEPT_BY_NOBODY, "GET 200", "fwd="),
)
TOGETHER = Resource(picture("together"), "max-age=3600", delay=0.5)


@dataclass(frozen=True)
class Cell:
    """What came of a scene with one client."""

    wire: list[Exchange]
    cache_status: str = ""
    complaint: str = ""

    def __str__(self) -> str:
        seen = ", ".join(decimal(each.octets) if each.status == 200 else str(each.status) for each in self.wire)
        return f"[{'red' if self.complaint else 'green'}]{seen or 'nothing'}[/]"


class Console(RichConsole):
    """One whose output, where it cannot be written, ends the command."""

    def print(self, *objects: Any, **options: Any) -> None:
        with writing():
            super().print(*objects, **options)


def run(folder: Path | None) -> bool:
    """Play all scenes, print what happened, and tell whether everything was as it should be."""
    console = Console()
    console.width = max(console.width, NARROWEST)  # rather lines that the terminal wraps than columns left out
    if complaint := _unfit(folder):
        console.print(f"vllm-http-cache: {printable(complaint)}", highlight=False, soft_wrap=True, markup=False)
        return False
    start = time.monotonic()
    with ExitStack() as stack:
        kept = folder is not None
        folder = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vllm-http-cache-demo-")))
        origin = stack.enter_context(Origin())
        columns = {name: _play(origin, folder, name) for name in CLIENTS}
        together = _play_together(origin, folder)
        console.print(_wire_table(columns, together))
        complaints = [cell.complaint for cells in [*columns.values(), [together]] for cell in cells if cell.complaint]
        complaints += _look_into(folder, console, kept=kept)
    for complaint in complaints:
        console.print(f"[red]{escape(complaint)}")
    verdict = "[red]Not everything was as it should be" if complaints else "Everything was as it should be"
    console.print(f"{verdict} ({time.monotonic() - start:.1f} s).")
    return not complaints


def _unfit(folder: Path | None) -> str:
    """Why the demo must not run there; empty when it may."""
    if folder is None:
        return ""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
    if there.is_dir() and not os.access(there, os.W_OK):
        return f"{there} cannot be written: name another, or none"
    if there != folder.absolute():
        return ""
    if not folder.is_dir():
        return f"{folder} is not a folder: name another, or none"
    if os.path.lexists(folder / OWN):
        bound = decimal(MAX_SIZE)
        return f"{folder} holds a cache already, which the demo's bound of {bound} would empty: name another, or none"
    return ""


def _open(folder: Path) -> Cache:
    return Cache(FileStorage(folder, max_size=MAX_SIZE))


def _play(origin: Origin, folder: Path, name: str) -> list[Cell]:
    """All scenes with one client, on pictures of its own."""
    with _open(folder) as cache, CLIENTS[name](cache) as fetch:
        return [_act(origin, fetch, name, scene) for scene in SCENES]


def _act(origin: Origin, fetch: Fetch, name: str, scene: Scene) -> Cell:
    path = f"/{name.replace(', ', '-')}/{scene.path}"
    origin.resources[path] = scene.resource
    answer = fetch(origin.url + path)
    wire = origin.news()
    seen = ", ".join(f"{'If-None-Match' if each.conditional else 'GET'} {each.status}" for each in wire)
    problems = []
    if answer.body != scene.resource.body:
        problems.append("the wrong picture")
    if seen != scene.wire:
        problems.append(f"{seen or 'nothing'} on the wire instead of {scene.wire or 'nothing'}")
    if scene.cache_status not in answer.cache_status:
        problems.append(f"Cache-Status: {answer.cache_status} without {scene.cache_status}")
    return Cell(wire, answer.cache_status, f"{name}, {scene.title}: {'; '.join(problems)}" if problems else "")


def _play_together(origin: Origin, folder: Path) -> Cell:
    """Two processes ask for one picture at once."""
    origin.resources["/together.png"] = TOGETHER
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        asked = [pool.submit(_fetch_in_process, folder, f"{origin.url}/together.png") for _ in range(2)]
        bodies = [process.result() for process in asked]
    wire = origin.news()
    complaint = ""
    if bodies != [TOGETHER.body] * 2 or [each.status for each in wire] != [200]:
        complaint = f"two processes: bodies of {[len(body) for body in bodies]} octets, {wire} on the wire"
    return Cell(wire, "one download for both", complaint)


def _fetch_in_process(folder: Path, url: str) -> bytes:
    with _open(folder) as cache, CLIENTS["httpx"](cache) as fetch:
        return fetch(url).body


def _wire_table(columns: dict[str, list[Cell]], together: Cell) -> Table:
    table = Table(
        title="What went over the wire",
        caption="The body's size as the origin sent it; 304: not modified, no body. Dim: the answer's Cache-Status.",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        show_lines=True,
    )
    table.add_column("request", overflow="fold")
    for name in columns:
        table.add_column(name, width=8, overflow="fold")
    for scene, *cells in zip(SCENES, *columns.values(), strict=True):
        _, _, status = cells[0].cache_status.partition("; ")
        table.add_row(f"{scene.title}\n[dim]{escape(status)}[/]", *map(str, cells))
    table.add_row(f"two processes at once\n[dim]{together.cache_status}[/]", str(together))
    return table


def _look_into(folder: Path, console: Console, *, kept: bool) -> list[str]:
    """Print the folder's sizes. The complaints: above its bound, or it holds what was not to be stored."""
    where = printable(str(folder))
    files = [path for path in folder.rglob("*") if path.is_file()]
    folders = [path for path in folder.rglob("*") if path.is_dir()]
    occupied = sum(path.stat().st_blocks * 512 for path in [*files, *folders])
    with _open(folder) as cache:
        responses = sum(1 for _ in cache.storage.scan())
    console.print(
        f"{where} {'holds' if kept else 'held'} {responses} responses in {len(files)} files and {len(folders)} folders"
        f": {decimal(occupied)} on disk, of {decimal(MAX_SIZE)} at most{'' if kept else ' (removed)'}.",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )
    complaints = []
    if occupied > MAX_SIZE:
        complaints.append(f"{folder} occupies {occupied} octets, more than {MAX_SIZE}")
    if any(SECRET in path.read_bytes() for path in files):
        complaints.append(f"{folder} holds a no-store response")
    return complaints
