"""The environment is read as documented, and bad values are explained."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from docs.hooks import TABLES, between, on_page_content
from vllm_http_cache import Settings, open_cache
from vllm_http_cache.settings import SettingsError

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
        ("VLLM_MEDIA_CACHE_MAX_SIZE_MB", "abc", "a whole number, 1 or more"),
        ("VLLM_MEDIA_CACHE_MAX_SIZE_MB", "0", "a whole number, 1 or more"),
        ("VLLM_MEDIA_CACHE_TTL_HOURS", "nan", "a number above 0, or inf"),
        ("VLLM_MEDIA_CACHE_TTL_HOURS", "-1", "a number above 0, or inf"),
        ("MEDIA_CACHE_MODE", "Default", "one of default, no-store,"),
        ("MEDIA_CACHE_SHARED", "perhaps", "true or false"),
        ("MEDIA_CACHE_STALE_IF_ERROR", "-1", "a number, 0 or more, or inf"),
        ("MEDIA_CACHE_STALE_IF_ERROR", "nan", "a number, 0 or more, or inf"),
        ("MEDIA_CACHE_MAX_ENTRY_SIZE_MB", "1.5", "a whole number, 1 or more"),
        ("MEDIA_CACHE_FREE_SPACE_FLOOR_MB", "-1", "a whole number, 0 or more"),
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
    with pytest.raises(SettingsError, match="max_size_mb=0: allowed is a whole number, 1 or more"):
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
