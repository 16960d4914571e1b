"""Modes, the files of vLLM's built-in cache, its eviction, and what the log says."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm.connections")

from vllm.exceptions import GracefulHTTPError
from vllm.multimodal.media import MediaConnector

from tests.origin import Answer, Origin
from tests.vllm.conftest import Plugin
from tests.vllm.media import Fetch, picture

FRESH = {"Cache-Control": "max-age=600", "ETag": '"1"'}
STALE = {"Cache-Control": "max-age=0", "ETag": '"1"'}


def seed(folder: Path, url: str, octets: bytes) -> Path:
    """A file as vLLM's built-in cache writes it."""
    folder.mkdir(exist_ok=True)
    path = folder / (sha256(url.encode()).hexdigest()[:20] + Path(url.split("?", 1)[0]).suffix)
    path.write_bytes(octets)
    os.utime(path, (1.0, 1.0))
    return path


def test_only_if_cached(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    url = origin.on("/a.png", Answer(fields=STALE, body=picture(1)))
    plugin.start()
    assert fetch.grey(url) == 1
    plugin.start(MEDIA_CACHE_MODE="only-if-cached")
    assert fetch.grey(url) == 1
    begun = time.monotonic()
    with pytest.raises(GracefulHTTPError, match="not in the media cache") as raised:
        fetch("image", origin.url("/b.png?token=secret"))
    assert raised.value.http_status == 504
    assert "secret" not in str(raised.value)
    assert time.monotonic() - begun < 0.5
    assert origin.count() == 1


def test_an_origins_504_is_its_own(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    plugin.start()
    url = origin.on("/a.png", Answer(504, {"Cache-Control": "max-age=600"}, b"busy"))
    for _ in range(2):
        with pytest.raises(Exception, match="504") as raised:
            _once(fetch, url)
        assert not isinstance(raised.value, GracefulHTTPError)


def _once(fetch: Fetch, url: str) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_MEDIA_FETCH_MAX_RETRIES", "1")
        return fetch.octets(url)


@pytest.mark.parametrize("mode, grey, asked", [("only-if-cached", 2, 0), ("force-cache", 2, 0), ("default", 1, 1)])
def test_files_of_the_built_in_cache(
    plugin: Plugin, origin: Origin, fetch: Fetch, mode: str, grey: int, asked: int
) -> None:
    url = origin.on("/a.png", Answer(fields=FRESH, body=picture(1))) + "?b=1&a=%7e"
    path = seed(plugin.folder, url, picture(2))
    plugin.start(MEDIA_CACHE_MODE=mode)
    for _ in range(2):
        assert fetch.grey(url) == grey
    assert origin.count() == asked
    assert (path.read_bytes(), path.stat().st_mtime) == (picture(2), 1.0)


def test_what_is_stored_goes_before_a_seed(plugin: Plugin, origin: Origin, fetch: Fetch) -> None:
    url = origin.on("/a.png", Answer(fields=STALE, body=picture(1)))
    plugin.start()
    fetch.grey(url)
    seed(plugin.folder, url, picture(2))
    for mode in ("only-if-cached", "force-cache"):
        plugin.start(MEDIA_CACHE_MODE=mode)
        assert fetch.grey(url) == 1
    assert origin.count() == 1


def test_seed_folder(plugin: Plugin, origin: Origin, fetch: Fetch, tmp_path: Path) -> None:
    url = origin.on("/a.png", Answer(fields=FRESH, body=picture(1)))
    seed(tmp_path / "seed", url, picture(2))
    (tmp_path / "seed").chmod(0o500)
    for mode in ("default", "force-cache", "only-if-cached"):
        plugin.start(MEDIA_CACHE_SEED=str(tmp_path / "seed"), MEDIA_CACHE_MODE=mode)
        assert fetch.grey(url) == 2
    assert origin.count() == 0
    plugin.start(MEDIA_CACHE_SEED=str(tmp_path / "seed"), MEDIA_CACHE_MODE="reload")
    assert fetch.grey(url) == 1


def test_a_seed_does_not_stand_in_for_where_a_redirect_leads(
    plugin: Plugin, origin: Origin, fetch: Fetch, tmp_path: Path
) -> None:
    url = origin.on("/a.png", Answer(301, {"Location": "/b.png", "Cache-Control": "max-age=600"}))
    origin.on("/b.png", Answer(fields={"Cache-Control": "no-store"}, body=picture(1)))
    plugin.start()
    assert fetch.grey(url) == 1
    seed(tmp_path / "seed", url, picture(2))
    plugin.start(MEDIA_CACHE_SEED=str(tmp_path / "seed"))
    assert fetch.grey(url) == 1
    assert (origin.count("/a.png"), origin.count("/b.png")) == (1, 2)


def test_a_bad_seed_is_passed_over(plugin: Plugin, origin: Origin, fetch: Fetch, tmp_path: Path) -> None:
    url = origin.on("/a.png", Answer(fields=FRESH, body=picture(1)))
    path = seed(tmp_path / "seed", url, b"garbage")
    plugin.start(MEDIA_CACHE_SEED=str(tmp_path / "seed"))
    assert [fetch.grey(url) for _ in range(2)] == [1, 1]
    assert origin.count() == 1
    assert path.read_bytes() == b"garbage"


def test_seeds_are_held_to_limits(
    plugin: Plugin, origin: Origin, fetch: Fetch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = origin.url("/a.png")
    seed(tmp_path / "seed", url, bytes(2_000_000))
    plugin.start(MEDIA_CACHE_SEED=str(tmp_path / "seed"), MEDIA_CACHE_MODE="only-if-cached")
    monkeypatch.setenv("VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB", "1")
    with pytest.raises(ValueError, match="MAX_MEDIA_DOWNLOAD_SIZE_MB"):
        fetch.octets(url)


def test_off_is_as_if_the_plugin_were_not_there(plugin: Plugin) -> None:
    from vllm import envs
    from vllm.connections import global_http_connection

    plugin.start(MEDIA_CACHE_MODE="off")
    assert str(plugin.folder) == envs.VLLM_MEDIA_CACHE
    assert "get_response" not in vars(global_http_connection)


def test_the_built_in_cache_is_off_and_silent(
    plugin: Plugin, origin: Origin, fetch: Fetch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    url = origin.on("/a.png", Answer(fields={"Cache-Control": "no-store"}, body=picture(1)))
    old = seed(plugin.folder, "http://another.test/b.png", picture(2))
    plugin.start()
    connector: Any = MediaConnector()
    assert connector._media_cache_dir is None
    fetch.on(connector, "image", url)
    assert old.exists()
    assert [path.name for path in plugin.folder.iterdir() if path != old] in ([], [".vllm-http-cache"])
    assert "Media cache enabled" not in caplog.text


def test_one_line_says_that_it_is_active(
    plugin: Plugin, origin: Origin, fetch: Fetch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    plugin.start(VLLM_MEDIA_CACHE_MAX_SIZE_MB="100", VLLM_MEDIA_CACHE_TTL_HOURS="2")
    assert not caplog.records
    url = origin.on("/a.png", Answer(fields=FRESH, body=picture(1)))
    for _ in range(3):
        fetch.grey(url)
    (line,) = [record.getMessage() for record in caplog.records if "active" in record.getMessage()]
    assert all(words in line for words in (str(plugin.folder), "100 MiB", "2 h", "default"))


def test_no_line_says_so_of_a_folder_that_cannot_be_used(
    plugin: Plugin, origin: Origin, fetch: Fetch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    plugin.folder.write_bytes(b"a file where the folder should be")
    plugin.start()
    fetch.grey(origin.on("/a.png", Answer(fields=FRESH, body=picture(1))))
    said = [record.getMessage() for record in caplog.records if "vllm-http-cache" in record.getMessage()]
    assert not [line for line in said if "active" in line]
    assert [line for line in said if "cannot use" in line]


@pytest.mark.parametrize(
    "mode, there, complaint",
    [
        ("default", False, "is no folder that can be read"),
        ("no-cache", True, "MEDIA_CACHE_SEED is not looked at in mode no-cache"),
        ("only-if-cached", True, None),
    ],
)
def test_seeds_that_cannot_answer_are_complained_of(
    plugin: Plugin,
    origin: Origin,
    fetch: Fetch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    mode: str,
    there: bool,
    complaint: str,
) -> None:
    seeds = seed(tmp_path / "seeds", "http://another.test/a.png", picture(2)).parent
    plugin.start(MEDIA_CACHE_SEED=str(seeds if there else tmp_path / "typo"), MEDIA_CACHE_MODE=mode)
    with suppress(Exception):
        fetch.grey(origin.on("/a.png", Answer(404)))
    said = " ".join(record.getMessage() for record in caplog.records if record.levelname == "WARNING")
    assert complaint in said if complaint else "SEED" not in said


def test_the_built_in_cache_evicts_over_our_folder(
    plugin: Plugin, origin: Origin, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some servers of a folder have the plugin, some have not."""
    ours = origin.on("/a.png", Answer(fields=FRESH, body=picture(1)))
    theirs = origin.on("/b.png", Answer(fields=FRESH, body=picture(2)))
    plugin.start()
    fetch.grey(ours)
    plugin.stop()
    past = time.time() - 90_000
    for path in (plugin.folder, *plugin.folder.rglob("*")):
        os.utime(path, (past, past))
    connector: Any = MediaConnector()
    assert connector._media_cache_dir == str(plugin.folder)
    connector.fetch_image(theirs)  # stores, and evicts
    plugin.start()
    assert fetch.grey(ours) == 1
    assert origin.count("/a.png") == 1


def test_bad_bounds(plugin: Plugin, origin: Origin, fetch: Fetch, caplog: pytest.LogCaptureFixture) -> None:
    """What vLLM makes of its own is its business; we stop nothing."""
    plugin.start(VLLM_MEDIA_CACHE_MAX_SIZE_MB="abc", MEDIA_CACHE_STALE_IF_ERROR="-1")
    url = origin.on("/a.png", Answer(fields=FRESH, body=picture(1)))
    assert fetch.grey(url) == 1
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "VLLM_MEDIA_CACHE_MAX_SIZE_MB='abc'" in warning
    assert "MEDIA_CACHE_STALE_IF_ERROR='-1'" in warning
