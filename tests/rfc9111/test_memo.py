"""What is remembered, and what is not."""

from __future__ import annotations

from vllm_http_cache.rfc9111.memo import LONGEST, memo


def test_a_text_is_looked_at_once_and_a_long_one_each_time() -> None:
    calls: list[tuple[str, int]] = []

    @memo(2)
    def told(text: str, number: int, *, sign: int = 1) -> tuple[int, int]:
        """As it was."""
        calls.append((text, number))
        return len(text), sign * number

    for _ in range(3):
        assert told("a", 1) == (1, 1)
        assert told("a", 2, sign=-1) == (1, -2)
    assert calls == [("a", 1), ("a", 2)]
    longest, longer = "x" * LONGEST, "x" * (LONGEST + 1)
    for _ in range(3):
        assert told(longest, 1) == (LONGEST, 1)
        assert told(longer, 2, sign=-1) == (LONGEST + 1, -2)
    assert calls[2:] == [(longest, 1), *[(longer, 2)] * 3]
    assert told("a", 1) == (1, 1) and told("b", 1) == (1, 1) and told("a", 2, sign=-1) == (1, -2)
    assert calls[-2:] == [("b", 1), ("a", 2)], "two are remembered"
    assert (told.__name__, told.__doc__) == ("told", "As it was.")
