"""The contract suite of engines (`tests/contracts/test_engine.py`) over pools of engines that need no model."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from antiphon.config import Config
from antiphon.engines.base import Engine
from tests.contracts import test_engine as contract
from tests.engines.http.stubs.chat_stub import run_stub
from tests.support.engines import build_engine

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

SERVERS = ("sglang", "llamacpp-server")  # each replaced by a stub
CONFIGS = {
    "one": Config.from_settings(engine=("fake",)),
    "two chat engines": Config.from_settings(engine=("fake", "fake")),
    "three text engines": Config.from_settings(engine=("fake",) * 3, fake_level="text"),
    "two servers": Config.from_settings(engine=SERVERS),
}
# A pool is not in the registry and has no name of its own.
_EXCLUDED = {"test_every_registered_engine_is_tested_here", "test_the_engine_lists_its_models"}

globals().update(
    {name: test for name, test in vars(contract).items() if name.startswith("test_") and name not in _EXCLUDED}
)


@pytest.fixture(scope="module", params=CONFIGS)
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    async with AsyncExitStack() as stack:
        config = CONFIGS[request.param]
        if config.inference.engine == SERVERS:
            stubs = [await stack.enter_async_context(run_stub(name)) for name in SERVERS]
            config = config.with_settings(engine=tuple(stub.url for stub in stubs))
        pool = build_engine(config)
        await pool.open()
        yield pool
        await pool.close()


async def test_the_pool_lists_the_models_of_its_members(engine: Engine) -> None:
    (model,) = engine.models()
    assert engine.serves(model.id)
    assert engine.is_healthy()
    assert [state.models for state in engine.statuses()] == [(model.id,)] * len(engine.statuses())
