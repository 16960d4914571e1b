"""The tables of expected results: one line a test."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["KINDS", "Table", "column"]

KINDS = ("required", "optimal", "check")
COLUMNS = tuple(f"{client}{mode}" for mode in ("", "-private") for client in ("httpx", "aiohttp", "requests"))
NOT_RUN = "-"


def column(client: str, *, shared: bool) -> str:
    return client if shared else f"{client}-private"


@dataclass
class Row:
    """:param results: ``pass``, ``fail`` or ``-`` (not run) for each column.
    :param why: the reason of what does not pass."""

    kind: str
    results: dict[str, str] = field(default_factory=dict)
    why: str = ""


class Table:
    """A file with a line for each test: id, kind, a column for each client and mode, and the reason why not."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: dict[str, Row] = {}
        if path.exists():
            with path.open(newline="") as lines:
                for line in csv.DictReader(lines, delimiter="\t"):
                    self.rows[line["id"]] = Row(line["kind"], {name: line[name] for name in COLUMNS}, line["why"])

    def worse(self, name: str, results: Mapping[str, str]) -> set[str]:
        """What failed and is expected to pass."""
        rows = self.rows
        return {
            test for test, wrong in results.items() if wrong and test in rows and rows[test].results[name] == "pass"
        }

    def differences(self, name: str, results: Mapping[str, str]) -> dict[str, str]:
        """Which results (empty: passed) are not those expected in this column, and why that will not do."""
        found: dict[str, str] = {}
        for test, wrong in results.items():
            row = self.rows.get(test)
            expected = row.results[name] if row else NOT_RUN
            if row is None or expected == NOT_RUN:
                found[test] = f"new, record it{f' ({wrong})' if wrong else ''}"
            elif wrong and expected == "pass":
                found[test] = f"got worse: {wrong}"
            elif not wrong and expected == "fail":
                found[test] = "got better, record it"
            elif wrong and row.kind != "check" and not row.why:
                found[test] = f"fails, and the table does not say why: {wrong}"
        for test, row in self.rows.items():
            if row.results[name] != NOT_RUN and test not in results:
                found[test] = "was not run, record it"
        return found

    def record(self, name: str, kinds: Mapping[str, str], results: Mapping[str, str]) -> None:
        """Make these the expected results of the column. Reasons stay."""
        for test, kind in kinds.items():
            row = self.rows.setdefault(test, Row(kind, dict.fromkeys(COLUMNS, NOT_RUN)))
            row.kind = kind
        for test, row in self.rows.items():
            row.results[name] = NOT_RUN if test not in results else "fail" if results[test] else "pass"
        self.save()

    def save(self) -> None:
        with self._path.open("w", newline="") as lines:
            writer = csv.writer(lines, delimiter="\t", lineterminator="\n")
            writer.writerow(["id", "kind", *COLUMNS, "why"])
            for test, row in self.rows.items():
                writer.writerow([test, row.kind, *(row.results[known] for known in COLUMNS), row.why])


def score(kinds: Mapping[str, str], results: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """How many passed, of how many, by kind."""

    def count(kind: str, tests: Iterable[str]) -> tuple[int, int]:
        mine = [test for test in tests if kinds[test] == kind]
        return sum(not results[test] for test in mine), len(mine)

    return {kind: count(kind, results) for kind in KINDS}
