"""A pool keeps what every engine keeps: the contract suite, over pools of engines that need no model."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from msgspec.structs import replace

from antiphon.config import Config
from antiphon.engines.base import Engine
from antiphon.wiring import build_engine
from tests.contracts import test_engine as contract
from tests.engines.http.stubs.chat_stub import standing_in

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

SERVERS = ("sglang", "llamacpp-server")  # each a stand-in for it
WAYS = {
    "one": Config(engine=("fake",)),
    "two of a chat": Config(engine=("fake", "fake")),
    "three of a text": Config(engine=("fake",) * 3, fake_level="text"),
    "two servers": Config(engine=SERVERS),
}
# A pool is not in the registry, nor under a name of its own.
_OTHERS = {"test_every_registered_engine_is_tested_here", "test_it_says_which_models_it_has"}

globals().update(
    {name: test for name, test in vars(contract).items() if name.startswith("test_") and name not in _OTHERS}
)


@pytest.fixture(scope="module", params=WAYS)
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    async with AsyncExitStack() as standing:
        config = WAYS[request.param]
        if config.engine == SERVERS:
            stubs = [await standing.enter_async_context(standing_in(name)) for name in SERVERS]
            config = replace(config, engine=tuple(stub.url for stub in stubs))
        pool = build_engine(config)
        await pool.open()
        yield pool
        await pool.close()


async def test_it_says_which_models_are_there(engine: Engine) -> None:
    (model,) = engine.models()
    assert engine.serves(model.id)
    assert engine.healthy()
    assert [state.models for state in engine.states()] == [(model.id,)] * len(engine.states())
