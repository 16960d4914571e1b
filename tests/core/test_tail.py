"""What has come of a body and is not written yet, against the whole body."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.storage.helpers import patched
from vllm_http_cache import tail
from vllm_http_cache.tail import Tail

CHUNKS = st.binary(min_size=1, max_size=9)


class Writing(RuleBasedStateMachine):
    """Chunks come at its end and go at its start, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.tail = Tail(3)
        self.body = b"..."  # what came before it
        self.ends = [3]  # where its chunks end, and where the first begins

    @rule(chunk=CHUNKS)
    def comes(self, chunk: bytes) -> None:
        self.tail.append(chunk)
        self.body += chunk
        self.ends.append(len(self.body))

    @precondition(lambda self: len(self.ends) > 1)
    @rule(data=st.data())
    def is_written(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(1, len(self.ends) - 1))
        self.tail.shift(number)
        del self.ends[:number]

    @rule(offset=st.integers(0, 99))
    def is_taken(self, offset: int) -> None:
        left = [end for end in self.ends[1:] if end > offset]
        gone = len(self.ends) - 1 - len(left)
        assert self.tail.shift_to(offset) == (gone > 0)
        del self.ends[:gone]

    @invariant()
    def holds_the_end_of_the_body(self) -> None:
        start = self.ends[0]
        assert (self.tail.start, self.tail.end, len(self.tail)) == (start, len(self.body), len(self.body) - start)
        assert b"".join(self.tail.chunks()) == self.body[start:]
        for offset in range(len(self.body) + 2):
            expected = self.body[offset:] if start <= offset < len(self.body) else None
            assert self.tail.read(offset) == expected


TestWriting = Writing.TestCase


@given(st.lists(CHUNKS, min_size=1), st.data())
def test_it_gives_out_the_rest_of_a_chunk_and_as_many_whole_ones_as_may_be_joined(
    chunks: list[bytes], data: st.DataObject
) -> None:
    body = b"".join(chunks)
    offset = data.draw(st.integers(0, len(body) - 1))
    filled = Tail(0)
    for chunk in chunks:
        filled.append(chunk)
    with patched(tail, "JOINED", 10):
        given = filled.read(offset)
    ends = [end for end in accumulate(map(len, chunks)) if end > offset]
    fitting = [end for end in ends if end - offset <= 10]
    assert given == body[offset : fitting[-1] if fitting else ends[0]]


def test_a_large_chunk_is_given_out_as_it_is() -> None:
    filled = Tail(0)
    chunks = [bytes(tail.JOINED), bytes(1)]
    for chunk in chunks:
        filled.append(chunk)
    assert filled.read(0) is chunks[0]


@given(st.lists(CHUNKS))
def test_batches_are_as_large_as_allowed(chunks: list[bytes]) -> None:
    with patched(tail, "BATCH", 10):
        groups = list(tail.batches(chunks))
    assert [chunk for group in groups for chunk in group] == chunks
    sizes = [sum(map(len, group)) for group in groups]
    assert all(size <= 10 or len(group) == 1 for size, group in zip(sizes, groups, strict=True))
    assert all(size + len(after[0]) > 10 for size, after in zip(sizes, groups[1:], strict=False))


def test_what_is_cleared_has_gone() -> None:
    cleared = Tail(0)
    cleared.append(b"abc")
    cleared.clear()
    assert (cleared.start, cleared.end, cleared.chunks(), cleared.read(0)) == (3, 3, (), None)
