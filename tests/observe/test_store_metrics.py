"""Tests the proxy that measures and traces the operations of a store."""

import asyncio

import pytest

from antiphon.errors import InvalidValue, Unavailable
from antiphon.observe.metrics import MeasuredProxy
from antiphon.observe.prometheus import Registry
from antiphon.observe.spans import ActiveSpan
from tests.observe.test_metrics import parse_samples
from tests.observe.test_spans import RecordingTracer

pytestmark = pytest.mark.anyio


class ExampleStore:
    name = "a thing"

    def __init__(self) -> None:
        self.error: Exception | None = None

    def healthy(self) -> bool:
        return True

    async def get(self, key: str, deep: bool = False) -> str:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return key


async def test_operations_are_counted_and_timed_without_changing_their_results() -> None:
    registry, inner = Registry(), ExampleStore()
    store = MeasuredProxy(inner, "store", registry)
    assert store.name == "a thing"
    assert store.healthy()
    assert await store.get("a") == "a"
    inner.error = Unavailable("It is away.")
    with pytest.raises(Unavailable):
        await store.get("b", deep=True)
    inner.error = InvalidValue("It is wrong.", param="x")
    with pytest.raises(InvalidValue):
        await store.get("c")
    found = parse_samples(registry.text())
    get = (("operation", "get"),)
    assert found["antiphon_store_operation_seconds_count", get] == 3
    assert found["antiphon_store_failures_total", get] == 1  # an invalid request is not a failure of the store


async def test_an_operation_is_a_span_only_within_a_trace() -> None:
    tracer = RecordingTracer()
    store = MeasuredProxy(ExampleStore(), "store", Registry(), tracer)
    await store.get("a")
    assert tracer.spans == []
    with ActiveSpan(tracer, "above", "server", {}) as parent:
        await store.get("a")
    assert [span.name for span in tracer.spans] == ["store get", "above"]
    assert tracer.spans[0].parent == parent.span.context
