"""Default fixtures of the service tests: a fake engine, an instrumented store, and a service over both."""

from collections.abc import AsyncIterator

import pytest

from antiphon.engines.fake import FakeEngine
from tests.service.instrumented_store import InstrumentedStore
from tests.service.requests import ServiceStack, start_service


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def instrumented_store() -> AsyncIterator[InstrumentedStore]:
    store = InstrumentedStore()
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def service(engine: FakeEngine, instrumented_store: InstrumentedStore) -> AsyncIterator[ServiceStack]:
    async with start_service(engine, instrumented_store.as_store()) as service:
        yield service
