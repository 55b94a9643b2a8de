"""Metrics and spans around a store or a live log: calls, durations and failures per operation.

The wrapper passes all other attributes through. The names of the coroutine methods are the values of the label
`operation`. Within a trace, each operation is a span.
"""

from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from time import perf_counter
from typing import Any, TypeVar, cast

from antiphon.errors import Unavailable
from antiphon.observe.prometheus import Counter, Histogram, MetricFamily, Registry
from antiphon.observe.spans import CURRENT_SPAN, ActiveSpan, Tracer

T = TypeVar("T")

DURATION_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


def add_store_metrics(inner: T, subsystem: str, registry: Registry, tracer: Tracer | None = None) -> T:
    """Wrap a store or live log. `subsystem` is the part of the metric names: `store` or `live`."""
    return cast(T, _MeasuredProxy(inner, subsystem, registry, tracer))


class _MeasuredProxy:
    """A proxy that measures every coroutine method."""

    def __init__(self, inner: Any, subsystem: str, registry: Registry, tracer: Tracer | None) -> None:
        label = {"store": "the store", "live": "the live log"}[subsystem]
        self._inner = inner
        self._subsystem = subsystem
        self._tracer = tracer
        self._seconds: MetricFamily[Histogram] = registry.histogram(
            f"antiphon_{subsystem}_operation_seconds",
            f"Duration of operations of {label}.",
            ("operation",),
            bounds=DURATION_BOUNDS,
        )
        self._failures: MetricFamily[Counter] = registry.counter(
            f"antiphon_{subsystem}_failures_total",
            f"Operations of {label} that failed because it was unavailable.",
            ("operation",),
        )

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not iscoroutinefunction(found):
            return found
        wrapped = self._wrap(name, found)
        setattr(self, name, wrapped)
        return wrapped

    def _wrap(self, name: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        seconds, failures = self._seconds[(name,)], self._failures[(name,)]

        async def operation(*args: Any, **kwargs: Any) -> Any:
            began = perf_counter()
            try:
                return await method(*args, **kwargs)
            except Unavailable:
                failures.value += 1.0
                raise
            finally:
                seconds.observe(perf_counter() - began)

        tracer, span = self._tracer, f"{self._subsystem} {name}"
        if tracer is None:
            return operation

        async def traced(*args: Any, **kwargs: Any) -> Any:
            if CURRENT_SPAN.get() is None:
                return await operation(*args, **kwargs)
            with ActiveSpan(tracer, span, "client", {"db.operation.name": name}):
                return await operation(*args, **kwargs)

        return traced
