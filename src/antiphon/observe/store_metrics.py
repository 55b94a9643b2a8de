"""Around a store or a live log: how often each operation is asked for, how long it takes, and how often it fails.

Whoever uses it sees what is inside. Within a trace each operation is a span of it.
"""

from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from time import perf_counter
from typing import Any, TypeVar, cast

from antiphon.errors import Unavailable
from antiphon.observe.prometheus import Counter, Family, Histogram, Registry
from antiphon.observe.spans import CURRENT, Tracer, Watched

T = TypeVar("T")

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


def measured(inner: T, what: str, registry: Registry, tracer: Tracer | None = None) -> T:
    """`what`: in the names of the series, `store` or `live`."""
    return cast(T, _Measured(inner, what, registry, tracer))


class _Measured:
    def __init__(self, inner: Any, what: str, registry: Registry, tracer: Tracer | None) -> None:
        said = {"store": "the store", "live": "the live log"}[what]
        self._inner = inner
        self._what = what
        self._tracer = tracer
        self._seconds: Family[Histogram] = registry.histogram(
            f"antiphon_{what}_operation_seconds", f"How long operations of {said} took.", ("operation",), bounds=SECONDS
        )
        self._failures: Family[Counter] = registry.counter(
            f"antiphon_{what}_failures_total", f"Operations of {said} that it did not carry out.", ("operation",)
        )

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not iscoroutinefunction(found):
            return found
        watched = self._watched(name, found)
        setattr(self, name, watched)
        return watched

    def _watched(self, name: str, carry_out: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        seconds, failures = self._seconds[(name,)], self._failures[(name,)]

        async def operation(*given: Any, **named: Any) -> Any:
            began = perf_counter()
            try:
                return await carry_out(*given, **named)
            except Unavailable:
                failures.value += 1.0
                raise
            finally:
                seconds.observe(perf_counter() - began)

        tracer, span = self._tracer, f"{self._what} {name}"
        if tracer is None:
            return operation

        async def traced(*given: Any, **named: Any) -> Any:
            if CURRENT.get() is None:
                return await operation(*given, **named)
            with Watched(tracer, span, "client", {"db.operation.name": name}):
                return await operation(*given, **named)

        return traced
