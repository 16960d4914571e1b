"""What reaches a terminal, and what is said when the output cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import run
from vllm_http_cache import FileStorage
from vllm_http_cache.cli import terminal
from vllm_http_cache.rfc9111.message import Fields, Request, Response
from vllm_http_cache.rfc9111.options import CacheOptions
from vllm_http_cache.rfc9111.storing import stored_response
from vllm_http_cache.rfc9111.target import cache_key
from vllm_http_cache.storage.toolbox import put

URL = "http://a.test/picture.png"
PROGRAM = [sys.executable, "-c", "from vllm_http_cache.cli import main; main()"]
EVIL = "a\x1b]0;title\x07\r\x08\x7f\x9b31m\u202eb"
EVIL_VALUE = EVIL.translate({ord("\r"): None, 0x202E: None})  # as far as a field can have it


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A folder with a response whose origin attacks the operator's terminal."""
    folder = str(tmp_path / "cache")
    storage = FileStorage(folder)
    now = time.time()
    fields = Fields([("X-Evil", EVIL_VALUE), ("X-Name", "ümläut ñ"), ("ETag", '"a\x9bb"'), ("Vary", "X-Asked")])
    stored = stored_response(Request("GET", URL), Response(200, fields, EVIL_VALUE), now, now, CacheOptions())
    assert put(storage, cache_key(URL, CacheOptions()), stored)
    assert put(storage, "0" * 64, replace(stored, uri=f"http://{EVIL}.test/"))
    storage.close()
    return folder


def is_harmless(output: str) -> bool:
    return all(line.isprintable() for line in output.split("\n"))


def test_nothing_stored_acts_on_a_terminal(folder: str) -> None:
    code, output = run("explain", URL, "--folder", folder, "--header", f"X-Asked: {EVIL.replace(chr(13), '')}")
    assert code == 0
    assert is_harmless(output)
    for line in ("200 a", "    X-Evil: a", "  a GET with X-Asked: a"):
        assert f"\n{line}\\x1b]0;title\\x07" in "\n" + output
    assert '\n  to validate it: If-None-Match: "a\\x9bb"\n' in output
    assert "\\x7f\\x9b31m\\u202eb" in output
    assert "ümläut" in output
    code, output = run("ls", "--full", "--folder", folder)
    assert is_harmless(output)
    assert "http://a\\x1b]0;" in output


def test_no_name_or_error_acts_on_a_terminal(tmp_path: Path) -> None:
    there = tmp_path / EVIL
    for command in ("stat", "purge --all", f"seed {URL} {{file}}", "export {file}", "import {file}", "demo"):
        there.touch()
        arguments = [argument.format(file=there) for argument in command.split()]
        code, output = run(*arguments, "--folder", str(there))
        assert code == 1
        assert is_harmless(output)
    for evil in (EVIL, "\x9b", "\u202e"):
        code, output = run("explain", f"http://{evil}/", "--folder", str(tmp_path))
        assert code == 2
        assert is_harmless(output)


def piped(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    options = {"stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.run([*PROGRAM, *arguments], check=False, **options)


@pytest.mark.parametrize("command", ["ls", "stat", f"explain {URL}", "verify"])
def test_an_output_that_cannot_be_written_is_blamed_itself(folder: str, command: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = piped(*command.split(), "--folder", folder, stdout=full)
    assert (done.returncode, done.stderr) == (1, "vllm-http-cache: standard output: no space left on device\n")


def test_a_demo_whose_output_cannot_be_written() -> None:
    with Path("/dev/full").open("w") as full:
        done = piped("demo", stdout=full)
    assert (done.returncode, done.stderr) == (1, "vllm-http-cache: standard output: no space left on device\n")


def test_a_closed_output(folder: str) -> None:
    def closed(*arguments: str) -> subprocess.CompletedProcess[str]:
        return piped(*arguments, "--folder", folder, preexec_fn=lambda: os.close(1))

    done = closed("ls")
    assert (done.returncode, done.stderr) == (0, "")
    done = closed("export", "-")
    assert done.returncode == 2
    assert "standard output is closed" in done.stderr


def test_an_output_that_lacks_letters(folder: str) -> None:
    environ = {**os.environ, "PYTHONIOENCODING": "iso8859-2"}
    done = piped("explain", URL, "--folder", folder, stdout=subprocess.PIPE, env=environ, encoding="iso8859-2")
    assert (done.returncode, done.stderr) == (0, "")
    assert "X-Name: ümläut \\xf1" in done.stdout


def test_an_archive_is_not_written_to_a_terminal(folder: str) -> None:
    main, side = os.openpty()
    try:
        done = piped("export", "-", "--folder", folder, stdout=side)
    finally:
        os.close(side)
        os.close(main)
    assert done.returncode == 2
    assert done.stderr == "vllm-http-cache: standard output is a terminal: name a file, or use a pipe\n"


def test_what_is_printed_as_it_is() -> None:
    assert terminal.printable("ü 画像 🎞 'x' \\") == "ü 画像 🎞 'x' \\"
    assert terminal.printable("\n\t\udcff\u2028") == "\\n\\t\\udcff\\u2028"
