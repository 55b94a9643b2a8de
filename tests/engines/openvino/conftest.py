"""One engine with the default model for all tests of this folder; the model is converted once, in the user's cache."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon.config.base_folders import cache_home
from antiphon.engines.embedded.known_models import DEFAULT_MODEL
from antiphon.engines.embedded.model_files import fetch_model
from antiphon.engines.openvino.engine import OpenVino, OpenVinoSettings


@pytest.fixture(scope="session")
def model_file() -> Path:
    return fetch_model(DEFAULT_MODEL, cache_home())


@pytest.fixture(scope="session")
async def engine(model_file: Path) -> AsyncIterator[OpenVino]:
    engine = OpenVino(OpenVinoSettings(model=(f"small={model_file}",), context=1024, slots=8, cache_tokens=2048))
    await engine.open()
    yield engine
    await engine.close()
