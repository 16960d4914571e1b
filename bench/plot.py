"""The results as a picture: what a fresh hit takes, and how far from each target we are."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from .results import Results, Timing
from .subjects.names import NONE, OURS

__all__ = ["draw"]

INK, OUR_INK, PLAIN_INK, MISSED_INK = "#8c9aa8", "#1769aa", "#c9d1d8", "#b3441e"
HEIGHT = 0.22  # inches for a line


def draw(results: Results, path: Path) -> None:
    """Write *path* with the endings ``.png`` and ``.svg``.

    :raises ModuleNotFoundError: there is no matplotlib.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"svg.hashsalt": "bench", "svg.fonttype": "none", "font.size": 8, "axes.axisbelow": True})
    from matplotlib import pyplot as plt

    hits = [timing for timing in results.timings if timing.contest == "hits" and timing.rounds]
    rows = [row for row in results.rows if row.value is not None]
    lines = max(len(hits) + len({timing.client for timing in hits}), len(rows), 5)
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 1.5 + HEIGHT * lines), width_ratios=(1, 1))
    _draw_hits(left, hits)
    _draw_targets(right, rows)
    about = results.about
    figure.suptitle(
        f"{about['command']} - {about['date']} - {about['processor']}, {about['file system']}, {about['python']}",
        fontsize=8,
        y=0.005,
        verticalalignment="bottom",
    )
    figure.tight_layout(rect=(0, 0.02, 1, 1))
    figure.savefig(path.with_suffix(".png"), dpi=120, metadata={"Software": None})
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    plt.close(figure)


def _draw_hits(axes: Any, hits: list[Timing]) -> None:
    labels: list[str] = []
    for client, group in groupby(hits, lambda timing: timing.client):
        for timing in group:
            ink = {OURS: OUR_INK, NONE: PLAIN_INK}.get(timing.cache, INK)
            axes.barh(len(labels), timing.wall * 1e6, color=ink)
            axes.text(timing.wall * 1e6, len(labels), f" {timing.wall * 1e6:,.0f}", va="center", fontsize=7)
            labels.append(f"{client}: {timing.cache}")
        labels.append("")
    axes.set(title="Fresh hit of 100 KB, µs (logarithmic)", xscale="log", yticks=range(len(labels)), yticklabels=labels)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.spines[["top", "right"]].set_visible(False)


def _draw_targets(axes: Any, rows: list[Any]) -> None:
    for place, row in enumerate(rows):
        share = max(row.value / row.target, 0.01)
        axes.plot([1, share], [place, place], color=OUR_INK if row.reached else MISSED_INK, linewidth=2)
        axes.plot(share, place, "o", color=OUR_INK if row.reached else MISSED_INK)
    labels = [f"{row.what}: {row.value:.2f}{row.unit} of {row.target:g}" for row in rows]
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set(
        title="Measured over target (left of the line: reached)",
        xscale="log",
        yticks=range(len(labels)),
        yticklabels=labels,
    )
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(axis="x", color="#e6e9ec")
    axes.spines[["top", "right", "left"]].set_visible(False)
