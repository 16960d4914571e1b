"""What the site's build makes from the code: the tables of environment variables and of metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from vllm_http_cache.metrics import Metrics
from vllm_http_cache.settings import reference


def on_page_markdown(markdown: str, **_: object) -> str:
    return markdown.replace("<!-- variables -->", reference()).replace("<!-- metrics -->", metrics())


def metrics() -> str:
    registry = CollectorRegistry()
    Metrics(registry).holds(octets=0, keys=0)
    rows = ["| Metric | Type | What it tells |", "| --- | --- | --- |"]
    for family in registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        rows.append(f"| `{name}` | {family.type} | {family.documentation} |")
    return "\n".join(rows)
