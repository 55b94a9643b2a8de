"""Runs the contract suite of engines against every registered engine.

Covers `engines/base.py` and `testing/engine_tests.py`.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from antiphon.config import Config
from antiphon.engines.base import Engine
from antiphon.engines.factory import build_engine
from antiphon.engines.llamacpp.engine import LlamaCpp, LlamaCppSettings
from antiphon.engines.registry import ENGINES
from antiphon.testing.contracts import EngineContract
from antiphon.testing.engine_tests import SLOTS
from tests.engines.http.stubs.chat_stub import run_stub
from tests.real.engine_locations import REAL as REAL_ENGINES
from tools.engines_page import ENGINE_CLASSES

REAL_MODEL_MARKS = [pytest.mark.needs("llamacpp"), pytest.mark.real_model]
TOKEN_ENGINES = ("vllm", "sglang", "llamacpp-server")
# Every configuration in which an engine behaves differently for its callers.
CONFIGS = {
    "fake-chat": Config.from_settings(engine="fake", fake_level="chat"),
    "fake-text": Config.from_settings(engine="fake", fake_level="text"),
    "fake-tokens": Config.from_settings(engine="fake", fake_level="tokens"),
    "fake-harmony": Config.from_settings(engine="fake", fake_level="harmony"),
    "llamacpp": Config.from_settings(engine="llamacpp", context=1024, slots=SLOTS),
    "openvino": Config.from_settings(engine="openvino", context=1024, slots=SLOTS),
    **{name: Config.from_settings(engine=name) for name in ENGINES if name not in ("fake", "llamacpp", "openvino")},
    **{f"{name}, token prompts": Config.from_settings(engine=name, engine_level="tokens") for name in TOKEN_ENGINES},
    "llamacpp-server, real": Config.from_settings(engine="llamacpp-server"),
    "llamacpp-server, real, token prompts": Config.from_settings(engine="llamacpp-server", engine_level="tokens"),
}
for kind in [kind for kind, named in REAL_ENGINES.items() if named]:  # set by `make test-engines`
    CONFIGS[f"{kind}, real"] = Config.from_settings(engine=kind)
    CONFIGS[f"{kind}, real, token prompts"] = Config.from_settings(engine=kind, engine_level="tokens")
MODEL_CONFIGS = {"llamacpp", "openvino", "llamacpp-server, real", "llamacpp-server, real, token prompts"}
CACHE_COUNTERS = {"fake", "llamacpp", "vllm", "sglang", "llamacpp-server", "openai"}  # these report cached tokens

pytestmark = pytest.mark.timeout(400)


def get_marks(config_name: str) -> list[pytest.MarkDecorator]:
    if config_name == "openvino":
        return [pytest.mark.needs("openvino"), pytest.mark.real_model, pytest.mark.real_engine]
    if config_name in MODEL_CONFIGS:
        return REAL_MODEL_MARKS
    return [pytest.mark.real_engine] if ", real" in config_name else []


@asynccontextmanager
async def real_llamacpp_server(model: Path) -> AsyncIterator[str]:
    """Run the llama.cpp server that the embedded engine starts as its child process, and yield its URL."""
    embedded = LlamaCpp(LlamaCppSettings(model=(str(model),), context=1024, slots=SLOTS))
    await embedded.open()
    try:
        (loaded,) = embedded.loaded_models
        assert loaded.child is not None
        yield f"llamacpp-server+unix://{loaded.child.socket}"
    finally:
        await embedded.close()


def test_every_registered_engine_is_tested_here() -> None:
    assert {config.inference.engine for config in CONFIGS.values()} == ENGINES.keys()


class TestEngine(EngineContract):
    @pytest.fixture
    def counts_cache(self, engine: Engine) -> bool:
        return engine.name in CACHE_COUNTERS

    @pytest.fixture(scope="class", params=[pytest.param(name, marks=get_marks(name)) for name in CONFIGS])
    @classmethod
    async def engine(cls, request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
        config_name, config = request.param, CONFIGS[request.param]
        model: Path = request.getfixturevalue("shallow_model") if config_name in MODEL_CONFIGS else Path()
        async with AsyncExitStack() as stack:
            if (name := config_name.partition(", token prompts")[0]) in ENGINE_CLASSES:  # against a stub of its server
                config = config.with_settings(engine=(await stack.enter_async_context(run_stub(name))).url)
            elif config.inference.engine == "llamacpp-server":
                config = config.with_settings(engine=await stack.enter_async_context(real_llamacpp_server(model)))
            elif config_name == "llamacpp":
                config = config.with_settings(model=(str(model),))
            elif location := REAL_ENGINES.get(str(config.inference.engine)):
                if reason := location.explain_missing():
                    pytest.skip(f"real engine: {reason}")
                config = config.with_settings(engine=stack.enter_context(location.run()))
            engine = build_engine(config)
            await engine.open()
            yield engine
            await engine.close()
