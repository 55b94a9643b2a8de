"""The default model, fetched once into the user's cache, and one engine with its shallow copy for these tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon.config.base_folders import cache_home
from antiphon.engines.embedded.known_models import DEFAULT_MODEL
from antiphon.engines.embedded.model_files import fetch_model
from antiphon.engines.llamacpp.engine import LlamaCpp, LlamaCppSettings


@pytest.fixture(scope="session")
def model_file() -> Path:
    return fetch_model(DEFAULT_MODEL, cache_home())


@pytest.fixture(scope="session")
async def engine(shallow_model: Path) -> AsyncIterator[LlamaCpp]:
    engine = LlamaCpp(LlamaCppSettings(model=(f"small={shallow_model}",), context=1024, slots=2))
    await engine.open()
    yield engine
    await engine.close()
