"""The commands on what is stored."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import run
from vllm_http_cache import FileStorage
from vllm_http_cache.cli import stored
from vllm_http_cache.rfc9111.message import Fields, Request, Response
from vllm_http_cache.rfc9111.options import CacheOptions
from vllm_http_cache.rfc9111.storing import stored_response
from vllm_http_cache.rfc9111.target import cache_key
from vllm_http_cache.storage.toolbox import put, put_file
from vllm_http_cache.vllm.hops import first_hop

URL = "http://a.test/picture.png"
BODY = b"octets of a picture" * 1000


def stored_long_ago(folder: str, file: Path, hours: float) -> None:
    then = time.time() - hours * 3600
    request = Request("GET", "http://old.test/")
    old = stored_response(request, Response(200, Fields()), then, then, CacheOptions())
    storage = FileStorage(folder, ttl=float("inf"), clock=lambda: max(then, time.time()))
    assert put_file(storage, cache_key(request.uri, CacheOptions()), old, file)
    storage.close()


def test_the_folder_is_the_environments_unless_given(folder: str, tmp_path: Path) -> None:
    assert "http://a.test" in run("ls", VLLM_MEDIA_CACHE=folder)[1]
    (tmp_path / "empty").mkdir()
    code, output = run("ls", "--folder", str(tmp_path / "empty"), VLLM_MEDIA_CACHE=folder)
    assert (code, output) == (0, f"no cache here yet: {tmp_path / 'empty'}\n")


def test_no_folder() -> None:
    code, output = run("ls")
    assert code == 2
    assert "give --folder, or set VLLM_MEDIA_CACHE" in output
    code, output = run("ls", "--folder", "/nowhere")
    assert code == 1
    assert "/nowhere does not exist" in output


def test_a_bad_setting_is_explained() -> None:
    code, output = run("ls", MEDIA_CACHE_MODE="sometimes")
    assert code == 2
    assert "MEDIA_CACHE_MODE='sometimes'" in output


def test_ls(folder: str) -> None:
    _, output = run("ls", "--folder", folder)
    lines = sorted(output.splitlines(), key=lambda line: line.split()[-1])
    assert [line.split()[2:] for line in lines] == [
        ["fresh", "200", URL],
        ["stale", "200", "http://b.test/?sig=***"],
    ]
    assert all(int(line.split()[0]) >= len(BODY) for line in lines)
    assert "?sig=secret" in run("ls", "--folder", folder, "--full")[1]
    assert "a.test" not in run("ls", "--folder", folder, "--host", "b.test")[1]


def test_looking_removes_nothing_that_a_server_may_want(folder: str, file: Path) -> None:
    stored_long_ago(folder, file, hours=100)
    assert "old.test" in run("ls", "--folder", folder)[1]
    assert run("verify", "--folder", folder)[1] == "3 read, 0 damaged\n"
    assert "old.test" in run("ls", "--folder", folder)[1]


@pytest.mark.parametrize("hours", [100, -2], ids=["past the ttl", "in the future"])
@pytest.mark.parametrize("ttl", [{}, {"VLLM_MEDIA_CACHE_TTL_HOURS": "24"}], ids=["unstated", "stated"])
def test_what_can_no_longer_answer_is_seen_and_removed(
    folder: str, file: Path, tmp_path: Path, hours: float, ttl: dict[str, Any]
) -> None:
    where, tar = ("--folder", folder), str(tmp_path / "all.tar")
    ways = [("--all",), ("http://old.test/",), ("--host", "old.test")]
    if hours > 0:
        ways.append(("--older-than", "48"))
    for way in ways:
        stored_long_ago(folder, file, hours)
        (line,) = (line for line in run("ls", *where, **ttl)[1].splitlines() if "old.test" in line)
        assert line.split()[2] == "expired"
        assert run("verify", *where, **ttl)[1].endswith(
            "1 read, 0 damaged\n" if way != ways[0] else "3 read, 0 damaged\n"
        )
        assert "not used without validation" in run("explain", "http://old.test/", *where, **ttl)[1]
        assert run("export", tar, *where, **ttl)[1].startswith("3" if way == ways[0] else "1")
        assert run("purge", *way, *where, **ttl) == (0, f"{3 if way == ways[0] else 1} removed\n")
        assert not [path for path in Path(folder).rglob("*") if path.is_file() and path.stat().st_size == len(BODY)]


def test_what_lies_under_another_key_is_found_by_its_uri(folder: str) -> None:
    storage = FileStorage(folder)
    stored = stored_response(
        Request("GET", f"{URL}?1"), Response(200, Fields()), time.time(), time.time(), CacheOptions()
    )
    assert put(storage, "0" * 64, stored)
    storage.close()
    code, output = run("explain", f"{URL}?1", "--folder", folder)
    assert code == 0
    assert "under another key" in output
    assert re.findall("a GET .*", output) == ["a GET is forwarded: uri-miss (RFC 9211 section 2.2)"]
    assert run("purge", "HTTP://A.test:80/picture.png?1#x", "--folder", folder) == (0, "1 removed\n")


def test_stat(folder: str) -> None:
    _, output = run("stat", "--folder", folder, VLLM_MEDIA_CACHE_MAX_SIZE_MB="10")
    stated = dict(line.split(maxsplit=1) for line in output.splitlines() if not line.startswith("at most"))
    assert stated["folder"] == folder
    assert stated["keys"] == "2"
    assert "at most   10.0 MiB" in output


def test_purge(folder: str, file: Path) -> None:
    assert run("purge", "--folder", folder)[0] == 2
    assert run("purge", "--folder", folder, "--older-than", "1") == (0, "0 removed\n")
    assert run("purge", "http://A.test:80/picture.png#x", "--folder", folder, "--host", "b.test") == (0, "0 removed\n")
    assert run("purge", "http://A.test:80/picture.png#x", "--folder", folder) == (0, "1 removed\n")
    assert run("purge", "--folder", folder, "--host", "b.test") == (0, "1 removed\n")
    stored_long_ago(folder, file, hours=2)
    assert run("purge", "--folder", folder, "--older-than", "1") == (0, "1 removed\n")
    assert run("seed", URL, str(file), "--folder", folder)[0] == 0
    assert run("purge", "--folder", folder, "--all") == (0, "1 removed\n")
    assert run("ls", "--folder", folder) == (0, "")


def test_verify(folder: str) -> None:
    assert run("verify", "--folder", folder) == (0, "2 read, 0 damaged\n")
    body = next(path for path in Path(folder).rglob("*") if path.is_file() and path.stat().st_size == len(BODY))
    damaged = bytearray(body.read_bytes())
    damaged[100] ^= 1
    body.write_bytes(damaged)
    code, output = run("verify", "--folder", folder, "--drop")
    assert code == 1
    assert output.endswith("2 read, 1 damaged, removed\n")
    assert run("verify", "--folder", folder) == (0, "1 read, 0 damaged\n")


def test_verify_finds_a_damaged_record(folder: str) -> None:
    record = next(path for path in Path(folder).rglob("*") if len(path.name) == 64)
    record.chmod(0o600)
    record.write_bytes(record.read_bytes()[:-1])
    assert run("verify", "--folder", folder) == (1, f"damaged: record {record.name}\n2 read, 1 damaged\n")
    assert run("verify", "--folder", folder, "--drop")[1].endswith("2 read, 1 damaged, removed\n")
    assert run("verify", "--folder", folder) == (0, "1 read, 0 damaged\n")
    assert "keys      1\n" in run("stat", "--folder", folder)[1]


def test_trim(folder: str) -> None:
    code, output = run("trim", "0", "--folder", folder)
    assert code == 0
    assert output.endswith("freed\n")
    assert run("ls", "--folder", folder) == (0, "")


def test_seed_without_room(tmp_path: Path, file: Path) -> None:
    folder = str(tmp_path / "cache")
    file.write_bytes(bytes(2 * 1024**2))
    where = (URL, str(file), "--folder", folder)
    code, output = run("seed", *where, VLLM_MEDIA_CACHE_MAX_SIZE_MB="2")
    assert (code, "there is no room for it" in output) == (1, True)
    code, output = run("seed", *where, MEDIA_CACHE_MAX_ENTRY_SIZE_MB="1")
    assert (code, "larger than what is kept, 1.0 MiB" in output) == (1, True)


@pytest.mark.parametrize(
    "url, content, options, why",
    [
        ("ftp://a.test/a.png", b"x", (), "is not an HTTP URL"),
        ("http://a%2f.test/", b"x", (), "ambiguous"),
        (URL, b"x", ("--content-type", "a\nb"), "is not a media type"),
        (URL, b"x", ("--content-type", ""), "is not a media type"),
        (URL, b"", (), "is empty"),
    ],
)
def test_seed_takes_nothing_that_could_never_answer(
    tmp_path: Path, file: Path, url: str, content: bytes, options: tuple[str, ...], why: str
) -> None:
    file.write_bytes(content)
    code, output = run("seed", url, str(file), "--folder", str(tmp_path / "cache"), *options)
    assert (code in (1, 2), why in " ".join(output.split())) == (True, True), output
    assert not (tmp_path / "cache").exists()


def test_user_information_in_a_url_does_not_count(tmp_path: Path, file: Path) -> None:
    """Clients send it as a field, and ask the cache without it."""
    folder, url = str(tmp_path / "cache"), URL.replace("//", "//user:word@")
    assert run("seed", url, str(file), "--folder", folder) == (0, "stored\n")
    assert run("explain", URL, "--folder", folder)[0] == 0
    assert run("explain", url, "--folder", folder)[0] == 0
    assert run("purge", url, "--folder", folder) == (0, "1 removed\n")


def test_seed_takes_no_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    code, output = run("seed", URL, str(tmp_path / "pipe"), "--folder", str(tmp_path / "cache"))
    assert code == 1
    assert f"{tmp_path / 'pipe'} is not a regular file" in output


@pytest.mark.parametrize("url", ["http://a.test/ü.png", "http://a.test/[1].png", "http://a.test/a b.png"])
def test_a_url_is_named_as_vllm_dials_it(tmp_path: Path, file: Path, url: str) -> None:
    folder = str(tmp_path / "cache")
    storage = FileStorage(folder)
    hop = first_hop(url, {})
    stored = stored_response(hop.request, Response(200, Fields()), time.time(), time.time(), CacheOptions())
    assert put_file(storage, cache_key(hop.request.uri, CacheOptions()), stored, file)
    storage.close()
    assert run("explain", url, "--folder", folder)[0] == 0
    assert run("purge", url, "--folder", folder) == (0, "1 removed\n")
    assert run("seed", url, str(file), "--folder", folder)[0] == 0
    assert run("purge", hop.request.uri, "--folder", folder) == (0, "1 removed\n")


SIGNED = URL + "?sig=a&se=b&sp=c&sv=d"


@pytest.mark.parametrize("variable", ["MEDIA_CACHE_SHARED", "MEDIA_CACHE_SIGNED_URLS"])
def test_what_a_server_with_other_variables_stored_is_found(tmp_path: Path, file: Path, variable: str) -> None:
    where = ("--folder", str(tmp_path / "cache"))
    theirs: dict[str, Any] = {variable: "false"}
    assert run("seed", SIGNED, str(file), *where, **theirs)[0] == 0
    code, output = run("explain", SIGNED, *where)
    told = re.findall("a GET .*", output)
    assert (code, f"{variable}=false" in told[0], "unlike here, is answered from the cache" in told[0]) == (
        0,
        True,
        True,
    )
    assert told[1:] == ["a GET is forwarded: uri-miss (RFC 9211 section 2.2)"]
    output = run("explain", SIGNED, *where, **theirs)[1]
    assert re.findall("a GET .*", output) == ["a GET is answered from the cache"]
    assert run("purge", SIGNED, *where) == (0, "1 removed\n")


def test_purge_takes_hours(folder: str) -> None:
    for hours in ("nan", "-1"):
        code, output = run("purge", "--folder", folder, "--older-than", hours)
        assert code == 2
        assert "0 or more" in output


@pytest.mark.parametrize("command", ["ls", "purge"])
@pytest.mark.parametrize("host", ["a.test:80", "http://a.test", "a.test/x", "", "user@a.test"])
def test_a_host_alone(folder: str, command: str, host: str) -> None:
    code, output = run(command, "--folder", folder, "--host", host)
    assert code == 2
    assert "is not a host alone" in output


def test_a_host_may_be_an_address(folder: str, file: Path) -> None:
    assert run("seed", "http://[::1]:8000/", str(file), "--folder", folder)[0] == 0
    for host in ("::1", "[::1]"):
        assert "[::1]" in run("ls", "--folder", folder, "--host", host)[1]


def test_headings_on_a_terminal(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "occupied" not in run("ls", "--folder", folder)[1]
    monkeypatch.setattr(stored, "_on_terminal", lambda: True)
    heading, *lines = run("ls", "--folder", folder)[1].splitlines()
    assert heading.split() == ["occupied", "age", "state", "status", "URI"]
    assert {line.index("200") for line in lines} == {heading.index("status")}
    assert {line.index("http") for line in lines} == {heading.index("URI")}


def test_explain(folder: str) -> None:
    code, output = run("explain", URL, "--folder", folder, "--header", "Accept: image/*")
    assert code == 0
    assert re.search(r"  fresh: [01] s old, fresh for 86400 s\n", output)  # Date knows whole seconds only
    assert "max-age (RFC 9111 section 5.2.2.1)" in output
    assert "Content-Type: image/png" in output
    assert "stale: " in run("explain", "http://b.test/?sig=secret", "--folder", folder)[1]


def test_explain_asks_as_vllm_does(tmp_path: Path, file: Path) -> None:
    folder = str(tmp_path / "cache")
    storage = FileStorage(folder)
    request = first_hop(URL, {}).request
    fields = Fields([("Vary", "Accept-Encoding, Accept"), ("Cache-Control", "max-age=60")])
    stored = stored_response(request, Response(200, fields), time.time(), time.time(), CacheOptions())
    assert put_file(storage, cache_key(URL, CacheOptions()), stored, file)
    storage.close()
    output = run("explain", URL, "--folder", folder)[1]
    assert "a GET is answered from the cache" in output
    assert "a GET with Accept: */*, Accept-Encoding: gzip, deflate" in output
    assert "forwarded: vary-miss" in run("explain", URL, "--folder", folder, "--header", "Accept: text/html")[1]
    assert "forwarded: bypass" in run("explain", URL, "--folder", folder, "--header", "Host: other.test")[1]


def test_explain_is_no_use(folder: str) -> None:
    def used() -> set[float]:
        return {stat.used for stat in FileStorage(folder).scan()}

    records = [path for path in Path(folder).rglob("*") if len(path.name) == 64]
    for path in records:
        os.utime(path, (1, 1))
    run("explain", URL, "--folder", folder)
    assert used() == {1.0}


def test_explain_nothing(folder: str) -> None:
    code, output = run("explain", "http://a.test/other", "--folder", folder)
    assert (code, output) == (1, "nothing is stored\na GET is forwarded: uri-miss (RFC 9211 section 2.2)\n")
    output = run("explain", "http://a.test/other", "--folder", folder, MEDIA_CACHE_MODE="only-if-cached")[1]
    assert "a GET is refused with 504: only-if-cached" in output
    assert run("explain", "not a URL", "--folder", folder)[0] == 2


def test_explain_in_mode_off(folder: str) -> None:
    _, output = run("explain", URL, "--folder", folder, MEDIA_CACHE_MODE="off")
    assert "a GET is forwarded: the mode is off" in output
    assert "answered from the cache" not in output


@pytest.mark.parametrize("header", ["Accept", ": x", "Na me: x", "X: a\nb"])
def test_explain_a_malformed_header(folder: str, header: str) -> None:
    code, output = run("explain", URL, "--folder", folder, "--header", header)
    assert code == 2
    assert "is not 'Name: value'" in output
