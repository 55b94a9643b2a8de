"""What tests of the service stand on, unless they bring their own: an engine, a store that is watched, both served."""

from collections.abc import AsyncIterator

import pytest

from antiphon.engines.fake import FakeEngine
from tests.service.instrumented_store import Watched
from tests.service.requests import Service, serving


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    store = Watched()
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def made(engine: FakeEngine, watched: Watched) -> AsyncIterator[Service]:
    async with serving(engine, watched.as_store()) as service:
        yield service
