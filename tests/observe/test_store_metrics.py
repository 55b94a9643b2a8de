import asyncio

import pytest

from antiphon.errors import InvalidValue, Unavailable
from antiphon.observe.prometheus import Registry
from antiphon.observe.spans import Watched
from antiphon.observe.store_metrics import measured
from tests.observe.test_metrics import samples
from tests.observe.test_spans import Listener

pytestmark = pytest.mark.anyio


class Thing:
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


async def test_operations_are_counted_timed_and_otherwise_the_same() -> None:
    registry, inner = Registry(), Thing()
    thing = measured(inner, "store", registry)
    assert thing.name == "a thing"
    assert thing.healthy()
    assert await thing.get("a") == "a"
    inner.error = Unavailable("It is away.")
    with pytest.raises(Unavailable):
        await thing.get("b", deep=True)
    inner.error = InvalidValue("It is wrong.", param="x")
    with pytest.raises(InvalidValue):
        await thing.get("c")
    found = samples(registry.text())
    get = (("operation", "get"),)
    assert found["antiphon_store_operation_seconds_count", get] == 3
    assert found["antiphon_store_failures_total", get] == 1  # who asks for what is wrong is answered


async def test_within_a_trace_an_operation_is_a_span_and_outside_there_is_none() -> None:
    listener = Listener()
    thing = measured(Thing(), "store", Registry(), listener)
    await thing.get("a")
    assert listener.spans == []
    with Watched(listener, "above", "server", {}) as above:
        await thing.get("a")
    assert [span.name for span in listener.spans] == ["store get", "above"]
    assert listener.spans[0].parent == above.span.origin
