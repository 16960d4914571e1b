"""The environment is read as documented, and bad values are explained."""

from __future__ import annotations

import ast
import inspect
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from docs.hooks import TABLES, between, on_page_content
from vllm_http_cache import FileStorage, Settings, SettingsError, open_cache
from vllm_http_cache.settings import misspelt
from vllm_http_cache.vllm import register

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
NAMES = [str(field.validation_alias) for field in Settings.model_fields.values()]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_unset_is_off() -> None:
    assert Settings().path is None
    assert open_cache() is None


def test_empty_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "")
    assert Settings() == Settings.model_construct()
    assert open_cache() is None


def test_space_around_a_value_does_not_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, " ")
    assert Settings() == Settings.model_construct()
    monkeypatch.setenv("VLLM_MEDIA_CACHE", f" {tmp_path} ")
    monkeypatch.setenv("VLLM_MEDIA_CACHE_MAX_SIZE_MB", " 100 ")
    monkeypatch.setenv("MEDIA_CACHE_SHARED", " false")
    monkeypatch.setenv("MEDIA_CACHE_MODE", "off\n")
    settings = Settings()
    assert (settings.path, settings.max_size_mb, settings.shared, settings.mode) == (tmp_path, 100, False, "off")


@pytest.mark.parametrize("folder, mode", [("", "default"), (" ", "default"), ("/srv/cache", " off")])
def test_the_plugin_is_off_for_the_same_values(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, folder: str, mode: str
) -> None:
    monkeypatch.setenv("VLLM_MEDIA_CACHE", folder)
    monkeypatch.setenv("MEDIA_CACHE_MODE", mode)
    monkeypatch.setitem(sys.modules, "vllm_http_cache.vllm.install", None)  # importing it is told
    register()
    assert not caplog.records


@pytest.mark.parametrize("name", ["path", "seed"])
def test_an_empty_path_is_not_the_current_folder(name: str) -> None:
    values: dict[str, Any] = {name: ""}
    with pytest.raises(SettingsError, match=f"{name}='': allowed is the path of a folder"):
        Settings(**values)
    with pytest.raises(ValueError, match="empty"):
        FileStorage("")


@pytest.mark.parametrize("bound", ["max_size_mb", "max_entry_size_mb", "free_space_floor_mb"])
def test_the_largest_bounds_can_be_used(tmp_path: Path, bound: str) -> None:
    values: dict[str, Any] = {"path": tmp_path, bound: 10**12}
    cache = open_cache(Settings(**values))
    assert cache is not None
    with cache:
        cache.storage.create_body("0" * 64, 1)


def test_every_variable_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said = {
        "VLLM_MEDIA_CACHE": str(tmp_path),
        "VLLM_MEDIA_CACHE_MAX_SIZE_MB": "100",
        "VLLM_MEDIA_CACHE_TTL_HOURS": "1.5",
        "MEDIA_CACHE_MODE": "force-cache",
        "MEDIA_CACHE_SHARED": "false",
        "MEDIA_CACHE_STALE_IF_ERROR": "60",
        "MEDIA_CACHE_MAX_ENTRY_SIZE_MB": "10",
        "MEDIA_CACHE_FREE_SPACE_FLOOR_MB": "0",
        "MEDIA_CACHE_FSYNC": "true",
        "MEDIA_CACHE_GROUP": "true",
        "MEDIA_CACHE_SIGNED_URLS": "false",
        "MEDIA_CACHE_SEED": "/srv/seed",
    }
    assert set(said) == set(NAMES)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    assert settings.path == tmp_path
    assert settings.max_size_mb == 100
    assert settings.max_entry_size_mb == 10
    assert (settings.free_space_floor_mb, settings.fsync, settings.group) == (0, True, True)
    assert settings.seed == Path("/srv/seed")
    options = settings.options
    assert (options.ttl, options.mode, options.shared) == (5400.0, "force-cache", False)
    assert (options.stale_if_error, options.signed_urls) == (60.0, False)


def test_the_cache_is_as_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VLLM_MEDIA_CACHE", str(tmp_path))
    monkeypatch.setenv("VLLM_MEDIA_CACHE_TTL_HOURS", "inf")
    monkeypatch.setenv("MEDIA_CACHE_MODE", "only-if-cached")
    cache = open_cache()
    assert cache is not None
    with cache:
        assert cache.options.mode == "only-if-cached"
        assert cache.options.ttl == cache.storage.ttl == math.inf


def test_an_argument_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VLLM_MEDIA_CACHE", "/srv/other")
    monkeypatch.setenv("MEDIA_CACHE_MODE", "reload")
    settings = Settings(path=tmp_path)
    assert (settings.path, settings.mode) == (tmp_path, "reload")


def test_mode_off_opens_nothing(tmp_path: Path) -> None:
    assert open_cache(Settings(path=tmp_path / "cache", mode="off")) is None
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "name, value, allowed",
    [
        ("VLLM_MEDIA_CACHE_MAX_SIZE_MB", "abc", "a whole number, 1 to 10^12"),
        ("VLLM_MEDIA_CACHE_MAX_SIZE_MB", "0", "a whole number, 1 to 10^12"),
        ("VLLM_MEDIA_CACHE_MAX_SIZE_MB", "1" + "0" * 320, "a whole number, 1 to 10^12"),
        ("VLLM_MEDIA_CACHE_TTL_HOURS", "nan", "a number above 0, or inf"),
        ("VLLM_MEDIA_CACHE_TTL_HOURS", "-1", "a number above 0, or inf"),
        ("MEDIA_CACHE_MODE", "Default", "one of default, no-store,"),
        ("MEDIA_CACHE_SHARED", "perhaps", "true or false"),
        ("MEDIA_CACHE_STALE_IF_ERROR", "-1", "a number, 0 or more, or inf"),
        ("MEDIA_CACHE_STALE_IF_ERROR", "nan", "a number, 0 or more, or inf"),
        ("MEDIA_CACHE_MAX_ENTRY_SIZE_MB", "1.5", "a whole number, 1 to 10^12"),
        ("MEDIA_CACHE_MAX_ENTRY_SIZE_MB", "1000000000001", "a whole number, 1 to 10^12"),
        ("MEDIA_CACHE_FREE_SPACE_FLOOR_MB", "-1", "a whole number, 0 to 10^12"),
        ("MEDIA_CACHE_FREE_SPACE_FLOOR_MB", "1000000000001", "a whole number, 0 to 10^12"),
        ("MEDIA_CACHE_FSYNC", "sometimes", "true or false"),
        ("MEDIA_CACHE_GROUP", "staff", "true or false"),
        ("MEDIA_CACHE_SIGNED_URLS", "2", "true or false"),
    ],
)
def test_a_bad_value_is_explained(monkeypatch: pytest.MonkeyPatch, name: str, value: str, allowed: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=re.escape(f"{name}={value!r}: allowed is {allowed}")):
        open_cache()


def test_bad_values_are_reported_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEDIA_CACHE_MODE", "sometimes")
    monkeypatch.setenv("MEDIA_CACHE_SHARED", "perhaps")
    with pytest.raises(SettingsError, match=r"\AMEDIA_CACHE_MODE='sometimes': .*; MEDIA_CACHE_SHARED='perhaps': .*\Z"):
        Settings()


def test_a_bad_argument_is_explained() -> None:
    with pytest.raises(SettingsError, match=r"max_size_mb=0: allowed is a whole number, 1 to 10\^12"):
        Settings(max_size_mb=0)
    with pytest.raises(SettingsError, match="size=1: allowed is no setting of this name"):
        Settings(size=1)  # type: ignore[call-arg]


def test_a_misspelt_variable_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MEDIA_CACHE_FSNYC", "1")
    monkeypatch.setenv("MEDIA_CACHE_TTL_HOURS", "1")
    cache = open_cache(Settings(path=tmp_path))
    assert cache is not None
    cache.close()
    assert [record.getMessage() for record in caplog.records] == [
        "vllm-http-cache: MEDIA_CACHE_FSNYC is no setting: is MEDIA_CACHE_FSYNC meant?",
        "vllm-http-cache: MEDIA_CACHE_TTL_HOURS is no setting: is VLLM_MEDIA_CACHE_TTL_HOURS meant?",
    ]


@pytest.mark.parametrize(
    "name, meant",
    [
        ("VLLM_MEDIA_CACHE_DIR", "VLLM_MEDIA_CACHE"),
        ("VLLM_MEDIA_CAHCE", "VLLM_MEDIA_CACHE"),
        ("VLLM_MEDIA_CACHE_MODE", "MEDIA_CACHE_MODE"),
        ("VLLM_MEDIA_CACHE_MAX_SIZE_MB_", "VLLM_MEDIA_CACHE_MAX_SIZE_MB"),
        ("VLLM_MEDIA_CACHE_MAX_SIZE", "VLLM_MEDIA_CACHE_MAX_SIZE_MB"),
        ("VLLM_MEDIA_CACHE_TTL_HOUR", "VLLM_MEDIA_CACHE_TTL_HOURS"),
        ("MEDIACACHE_MODE", "MEDIA_CACHE_MODE"),
        ("media_cache_mode", "MEDIA_CACHE_MODE"),
        ("MEDIA_CACHE_TTL_HOURS", "VLLM_MEDIA_CACHE_TTL_HOURS"),
    ],
)
def test_a_misspelt_variable_is_told_where_there_is_no_cache(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, meant: str
) -> None:
    monkeypatch.setenv(name, "/x")
    assert open_cache() is None
    (record,) = caplog.records
    assert record.getMessage() == f"vllm-http-cache: {name} is no setting: is {meant} meant?"


def test_variables_of_others_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VLLM_MEDIA_CONNECTOR", "VLLM_CACHE_ROOT", "VLLM_MM_INPUT_CACHE_GIB", "CACHE", "MODE", "SCCACHE_DIR"):
        monkeypatch.setenv(name, "1")
    assert misspelt() == []


def test_checkers_know_each_setting(tmp_path: Path) -> None:
    methods = [node for node in ast.walk(ast.parse(inspect.getsource(Settings))) if isinstance(node, ast.FunctionDef)]
    known = [argument.arg for method in methods if method.name == "__init__" for argument in method.args.kwonlyargs]
    assert known == list(Settings.model_fields)
    assert Settings(path=str(tmp_path), seed=str(tmp_path)) == Settings(path=tmp_path, seed=tmp_path)


def test_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().mode = "off"  # type: ignore[misc]


@pytest.mark.parametrize("page, name, table", TABLES)
def test_the_docs_have_the_tables(page: str, name: str, table: Callable[[], str]) -> None:
    _, there, _ = between((ROOT / "docs" / page).read_text("utf-8"), name)
    assert there == table(), "run `python docs/hooks.py`"


def test_the_docs_show_no_roles() -> None:
    html = "as :meth:<code>~.files.FileStorage.read</code> and :class:<code>.protocol</code> say: <code>x</code>"
    assert on_page_content(html) == "as <code>read</code> and <code>protocol</code> say: <code>x</code>"
