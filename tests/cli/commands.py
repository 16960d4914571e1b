"""Typing a command."""

from __future__ import annotations

from typer.testing import CliRunner

from vllm_http_cache.cli import app

__all__ = ["run"]


def run(*arguments: str, columns: int = 120, **environ: str) -> tuple[int, str]:
    """Exit code and output; an error that a person would see as a traceback is raised."""
    environ = {"COLUMNS": str(columns), "NO_COLOR": "1", **environ}
    result = CliRunner().invoke(app, arguments, env=environ)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output
