"""What operators watch: Prometheus counters of what a cache does.

Importing this module imports no ``prometheus_client``; making :class:`Metrics` does. All caches of a process count
into the same metrics, :func:`default`, unless they are given their own. Label values come from small fixed sets: no
URL, host or key is ever a label.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Gauge

__all__ = ["Metrics", "Outcome", "default"]

Outcome = Literal["hit", "stale", "forwarded", "collapsed", "refused", "failed"]
Validation = Literal["confirmed", "replaced", "failed"]

HEAD_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Counts what caches do. Each method is safe to call from any thread and costs about a microsecond.

    :param registry: where the metrics are registered; None: prometheus_client's default registry, which vLLM shows at
        ``/metrics``, with several API servers (multiprocess mode) too.
    :raises ValueError: *registry* has metrics of these names already.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        from prometheus_client import REGISTRY, Counter, Histogram

        registry = registry or REGISTRY

        def counter(name: str, meaning: str, *labels: str) -> _Children:
            return _Children(Counter(f"vllm_http_cache_{name}", meaning, labels, registry=registry).labels)

        self._requests = counter(
            "requests",
            "Requests by outcome and, where the cache forwarded, by why (RFC 9211 fwd).",
            "outcome",
            "forward",
        )
        self._octets = counter("body_bytes", "Octets of bodies given to callers, by where they came from.", "source")
        self._validations = counter("validations", "Validations of stored responses, by result.", "result")
        self._evictions = counter("evictions", "Keys, or single stored responses, removed, by reason.", "reason")
        self._storage_errors = counter("storage_errors", "Storage operations that failed.", "operation")
        self._head_seconds = Histogram(
            "vllm_http_cache_forward_seconds",
            "Seconds from forwarding a request to the head of the origin's response.",
            buckets=HEAD_SECONDS,
            registry=registry,
        )
        self._registry = registry
        self._lock = threading.Lock()
        self._gauges: dict[str, Gauge] = {}

    def answered(self, outcome: Outcome, forward: str | None = None, octets_from_cache: int = 0) -> None:
        """A caller has its answer. *forward*: why the request was forwarded (RFC 9211 section 2.2), if it was."""
        self._requests[outcome, forward or ""].inc()
        if octets_from_cache:
            self._octets["cache",].inc(octets_from_cache)

    def received(self, octets: int) -> None:
        """*octets* of a body came from an origin."""
        self._octets["origin",].inc(octets)

    def forwarded(self, seconds: float) -> None:
        """An origin answered *seconds* after the request was forwarded to it."""
        self._head_seconds.observe(seconds)

    def validated(self, result: Validation) -> None:
        """A stored response was confirmed (304) or replaced by the origin, or the origin failed to tell."""
        self._validations[result,].inc()

    def evicted(self, reason: str, number: int = 1) -> None:
        """*number* keys or stored responses were removed: ``size``, ``age``, ``damaged``, ``refused``."""
        self._evictions[reason,].inc(number)

    def storage_failed(self, operation: str) -> None:
        """The storage could not do *operation*, in the log's words: ``keeping a record``, ``opening a body``…"""
        self._storage_errors[operation,].inc()

    def holds(self, *, octets: int | None = None, keys: int | None = None) -> None:
        """What the storage occupies, and for how many keys it has something, as just counted."""
        if octets is not None:
            self._gauge("held_bytes", "Octets that the storage occupies.").set(octets)
        if keys is not None:
            self._gauge("held_keys", "Keys with stored responses, as counted about once an hour.").set(keys)

    def _gauge(self, name: str, meaning: str) -> Gauge:
        """Made when it is first set: until then it would say 0."""
        found = self._gauges.get(name)
        if found is not None:
            return found
        from prometheus_client import Gauge

        with self._lock:
            if name not in self._gauges:
                # Processes share a folder: the latest that one of them saw is right, a sum is not.
                self._gauges[name] = Gauge(
                    f"vllm_http_cache_{name}", meaning, registry=self._registry, multiprocess_mode="mostrecent"
                )
            return self._gauges[name]


class _Children(dict[tuple[str, ...], Any]):
    """A labelled metric's children. Binding one takes longer than counting, so each is bound once."""

    def __init__(self, bind: Callable[..., Any]) -> None:
        super().__init__()
        self._bind = bind

    def __missing__(self, labels: tuple[str, ...]) -> Any:
        child = self[labels] = self._bind(*labels)
        return child


_default: Metrics | None = None
_lock = threading.Lock()


def default() -> Metrics:
    """The metrics of this process, made at the first call."""
    global _default  # noqa: PLW0603
    with _lock:
        if _default is None:
            _default = Metrics()
        return _default
