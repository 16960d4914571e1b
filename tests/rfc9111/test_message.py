"""Field lines: what all rules read (RFC 9110 section 5)."""

from __future__ import annotations

from time import process_time

from hypothesis import given
from hypothesis import strategies as st

from vllm_http_cache.rfc9111.directives import response_directives
from vllm_http_cache.rfc9111.message import Fields

from .make import SHARED

LINES = (("A", "1"), ("b", "2"), ("a", "3"))

names = st.sampled_from(["A", "a", "B", "b", "c"])
lines = st.lists(st.tuples(names, st.sampled_from("123")), max_size=6)


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


@given(lines, st.lists(lines | st.sets(names.map(str.lower)), max_size=4))
def test_a_change_leaves_what_it_was_made_from_as_it_is(
    given: list[tuple[str, str]], changes: list[list[tuple[str, str]] | set[str]]
) -> None:
    made = [Fields(given)]
    for change in changes:
        made.append(made[-1].without(change) if isinstance(change, set) else made[-1].replaced(*change))
    for fields in made:
        for name in "abc":
            values = tuple(value for spelled, value in fields.lines if spelled.lower() == name)
            assert fields.get_all(name) == values
            assert (name in fields) == bool(values)
            assert fields.get(name) == (", ".join(values) if values else None)


def test_what_comes_again_and_again_costs_no_more_than_what_comes_once() -> None:
    """An origin says how many lines and members there are; a caller waits while they are read."""
    often = 100_000
    start = process_time()
    assert len(Fields([("A", "1")] * often).get_all("a")) == often
    assert response_directives(Fields([("Cache-Control", "max-age=9" + ",a" * often)]), SHARED).max_age == 9
    assert process_time() - start < 2, "seconds, of which the square of their number would take many"
