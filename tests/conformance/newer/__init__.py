"""Our own list, written from the RFCs: what the release of the public suite on npm does not ask, or asks of a draft.

A case passes when the cache does what its rule says; of a ``check``, when the cache does what its name says.
"""

from tests.conformance.newer import asking, parsing, stale, storing, updating  # noqa: F401 - they fill the list
from tests.conformance.trial import CASES

__all__ = ["CASES"]
