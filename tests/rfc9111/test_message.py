"""Field lines: what all rules read (RFC 9110 section 5)."""

from __future__ import annotations

from vllm_http_cache.rfc9111.message import Fields

LINES = (("A", "1"), ("b", "2"), ("a", "3"))


def test_fields_are_found_in_any_case_and_keep_their_spelling_and_order() -> None:
    found = Fields(LINES)
    assert found.get_all("a") == ("1", "3") and found.get("a") == "1, 3" and found.get("b") == "2"
    assert found.get("c") is None and found.get_all("c") == ()
    assert "a" in found and "c" not in found
    assert tuple(found) == LINES and len(found) == 3


def test_fields_are_values() -> None:
    assert Fields(LINES) == Fields(iter(LINES)) and hash(Fields(LINES)) == hash(Fields(LINES))
    assert Fields(LINES) != Fields(LINES[:2]) and Fields() != ()
    assert repr(Fields(LINES[:1])) == "Fields([('A', '1')])"


def test_fields_are_removed_and_replaced() -> None:
    assert Fields(LINES).without(("a",)) == Fields(LINES[1:2])
    assert Fields(LINES).replaced(("A", "4"), ("C", "5")) == Fields([("b", "2"), ("A", "4"), ("C", "5")])
