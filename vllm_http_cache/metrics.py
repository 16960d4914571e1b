"""What operators watch: Prometheus counters of what a cache does.

Importing this module imports no ``prometheus_client``; making :class:`Metrics` does. All caches of a process count
into the same metrics, :func:`default`, unless they are given their own. Label values come from small fixed sets: no
URL, host or key is ever a label.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["Metrics", "Outcome", "default"]

log = logging.getLogger("vllm_http_cache")

Outcome = Literal["hit", "stale", "forwarded", "collapsed", "refused", "failed"]
Validation = Literal["confirmed", "replaced", "failed"]

HEAD_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Counts what caches do. Each method is safe to call from any thread and costs about a microsecond.

    What cannot be counted is not, after one warning, and no method raises: in multiprocess mode prometheus_client
    counts in files, whose folder may be gone.

    :param registry: where the metrics are registered; None: prometheus_client's default registry, which vLLM shows at
        ``/metrics``, with several API servers (multiprocess mode) too.
    :raises ValueError: *registry* has metrics of these names already.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        from prometheus_client import REGISTRY, Counter, Gauge, Histogram

        registry = registry or REGISTRY
        self._warned = False

        def counter(name: str, meaning: str, *labels: str) -> _Metric:
            metric = Counter(f"vllm_http_cache_{name}", meaning, labels, registry=registry)
            return _Metric(lambda *values: metric.labels(*values).inc, self._failed)

        def gauge(name: str, meaning: str) -> _Metric:
            def make() -> _Tell:
                # Processes share a folder: the latest that one of them saw is right, a sum is not.
                return Gauge(f"vllm_http_cache_{name}", meaning, registry=registry, multiprocess_mode="mostrecent").set

            return _Metric(make, self._failed)

        def histogram(name: str, meaning: str, bounds: tuple[float, ...]) -> _Metric:
            def make() -> _Tell:
                return Histogram(f"vllm_http_cache_{name}", meaning, buckets=bounds, registry=registry).observe

            return _Metric(make, self._failed)

        self._requests = counter(
            "requests",
            "Requests by outcome and, where the cache forwarded, by why (RFC 9211 fwd).",
            "outcome",
            "forward",
        )
        self._octets = counter(
            "body_bytes", "Octets of bodies by where they come from: as announced where they pass unstored.", "source"
        )
        self._validations = counter(
            "validations", "Requests sent with a validator of what is stored, by result.", "result"
        )
        self._evictions = counter("evictions", "Keys, or single stored responses, removed, by reason.", "reason")
        self._storage_errors = counter("storage_errors", "Storage operations that failed.", "operation")
        self._head_seconds = histogram(
            "forward_seconds", "Seconds from forwarding a request to the head of the origin's response.", HEAD_SECONDS
        )
        self._held_octets = gauge("held_bytes", "Octets that the storage occupies.")
        self._held_keys = gauge(
            "held_keys", "Keys with stored responses, as counted when room is made and about once an hour."
        )

    def answered(self, outcome: Outcome, forward: str | None = None, octets_from_cache: int = 0) -> None:
        """A caller has its answer. *forward*: why the request was forwarded (RFC 9211 section 2.2), if it was."""
        self._requests.tell(1, outcome, forward or "")
        if octets_from_cache:
            self._octets.tell(octets_from_cache, "cache")

    def received(self, octets: int) -> None:
        """*octets* of a body came from an origin, or are announced by one that passes through unstored."""
        self._octets.tell(octets, "origin")

    def forwarded(self, seconds: float) -> None:
        """An origin answered *seconds* after the request was forwarded to it."""
        self._head_seconds.tell(seconds)

    def validated(self, result: Validation) -> None:
        """A request was sent with a validator of a stored response, which was confirmed (304) or not, so that another
        answer replaces it, or of which the origin failed to tell: without an answer, or with a server error."""
        self._validations.tell(1, result)

    def evicted(self, reason: str, number: int = 1) -> None:
        """*number* keys or stored responses were removed: ``size``, ``age``, ``damaged``, ``refused``."""
        self._evictions.tell(number, reason)

    def storage_failed(self, operation: str) -> None:
        """The storage could not do *operation*, in the log's words: ``keeping a record``, ``opening a body``…"""
        self._storage_errors.tell(1, operation)

    def holds(self, *, octets: int | None = None, keys: int | None = None) -> None:
        """What the storage occupies, and for how many keys it has something, as just counted."""
        if octets is not None:
            self._held_octets.tell(octets)
        if keys is not None:
            self._held_keys.tell(keys)

    def _failed(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            log.warning("vllm-http-cache: counting for the metrics failed, going on without: %r", error)


_Tell = Callable[[float], None]


class _Metric(dict[tuple[str, ...], _Tell]):
    """One metric: for each set of label values, what takes its numbers. The only way to prometheus_client's.

    Binding that takes longer than counting, so it is done once, when there is something to tell: a gauge would say 0
    until then. What has failed is not tried again.
    """

    def __init__(self, bind: Callable[..., _Tell], failed: Callable[[Exception], None]) -> None:
        super().__init__()
        self._bind = bind
        self._failed = failed
        self._lock = threading.Lock()

    def __missing__(self, labels: tuple[str, ...]) -> _Tell:
        with self._lock:
            if labels not in self:
                self[labels] = self._bind(*labels)
            return self[labels]

    def tell(self, number: float, *labels: str) -> None:
        try:
            self[labels](number)
        except Exception as error:
            self[labels] = _ignore
            self._failed(error)


def _ignore(_: float) -> None:
    pass


_default: Metrics | None = None
_lock = threading.Lock()


def default() -> Metrics:
    """The metrics of this process, made at the first call."""
    global _default  # noqa: PLW0603
    with _lock:
        if _default is None:
            _default = Metrics()
        return _default
