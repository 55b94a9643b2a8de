"""An application that uses a sandbox process."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.api.app import run_api
from tests.api.containers.container_api import ContainerApi


@pytest.fixture
async def api(sandbox_options: dict[str, Any]) -> AsyncIterator[ContainerApi]:
    async with run_api(**sandbox_options) as server:
        yield ContainerApi(server)
