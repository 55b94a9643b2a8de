"""The contract suite of engines over pools of engines that need no model."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from antiphon.config import Config
from antiphon.engines.base import Engine
from antiphon.engines.factory import build_engine
from antiphon.testing.contracts import EngineContract
from tests.engines.http.stubs.chat_stub import run_stub

pytestmark = pytest.mark.timeout(120)

SERVERS = ("sglang", "llamacpp-server")  # each replaced by a stub
CONFIGS = {
    "one": Config.from_settings(engine=("fake",)),
    "two chat engines": Config.from_settings(engine=("fake", "fake")),
    "three text engines": Config.from_settings(engine=("fake",) * 3, fake_level="text"),
    "two servers": Config.from_settings(engine=SERVERS),
}


class TestPool(EngineContract):
    test_the_engine_lists_its_models = None  # a pool is not in the registry and has no name of its own
    counts_cached_tokens = True

    @pytest.fixture(scope="class", params=CONFIGS)
    @classmethod
    async def engine(cls, request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
        async with AsyncExitStack() as stack:
            config = CONFIGS[request.param]
            if config.inference.engine == SERVERS:
                stubs = [await stack.enter_async_context(run_stub(name)) for name in SERVERS]
                config = config.with_settings(engine=tuple(stub.url for stub in stubs))
            pool = build_engine(config)
            await pool.open()
            yield pool
            await pool.close()

    async def test_the_pool_lists_the_models_of_its_members(self, engine: Engine) -> None:
        (model,) = engine.models()
        assert engine.serves(model.id)
        assert engine.is_healthy()
        assert [state.models for state in engine.statuses()] == [(model.id,)] * len(engine.statuses())
