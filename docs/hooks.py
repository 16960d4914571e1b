"""What the pages show of the code: the tables of settings and of metrics, and docstrings without Sphinx's roles.

The tables are checked in, so that the pages can be read without a build: ``python docs/hooks.py`` writes them anew, in
the README too.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from vllm_http_cache.metrics import Metrics
from vllm_http_cache.settings import Settings

__all__ = ["TABLES", "between", "metrics", "on_page_content", "variables"]

ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):<code>(~?)\.*([\w.]+)</code>")


def on_page_content(html: str, **_: object) -> str:
    return ROLE.sub(lambda role: f"<code>{role[2].rpartition('.')[2] if role[1] else role[2]}</code>", html)


def variables(*, arguments: bool = True) -> str:
    """:param arguments: with the names as arguments of ``Settings``."""
    titles = ["Variable", "`Settings(...)`", "Default", "What it sets", "Allowed"]
    rows = [titles, ["---"] * len(titles)]
    for name, field in Settings.model_fields.items():
        extra: Any = field.json_schema_extra
        meaning = field.description or ""
        rows.append([f"`{field.validation_alias}`", f"`{name}`", extra["shown"], meaning, extra["allowed"]])
    if not arguments:
        for row in rows:
            del row[1]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def metrics() -> str:
    registry = CollectorRegistry()
    told = Metrics(registry)
    told.forwarded(0)
    told.holds(octets=0, keys=0)
    rows = ["| Metric | Type | What it tells |", "| --- | --- | --- |"]
    for family in registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        rows.append(f"| `{name}` | {family.type} | {family.documentation} |")
    return "\n".join(rows)


TABLES = (
    ("../README.md", "variables", partial(variables, arguments=False)),
    ("variables.md", "variables", variables),
    ("operating.md", "metrics", metrics),
)


def between(page: str, name: str) -> tuple[str, str, str]:
    """What stands before the table *name* of a page, the table, and what stands behind it."""
    before, begin, rest = page.partition(f"<!-- {name} -->\n")
    table, end, after = rest.partition(f"\n<!-- end of {name} -->")
    return before + begin, table, end + after


def write() -> None:
    for page, name, table in TABLES:
        path = Path(__file__).parent / page
        before, _, after = between(path.read_text("utf-8"), name)
        path.write_text(before + table() + after, "utf-8")


if __name__ == "__main__":
    write()
