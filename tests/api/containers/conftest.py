"""A sandbox process for all tests of a file, and an application that uses it."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.api.app import run_api
from tests.api.containers.container_api import ContainerApi
from tests.support.sandboxes import keep_sandbox


@pytest.fixture(scope="module")
def sandbox_options() -> Iterator[dict[str, Any]]:
    """Settings of a server that uses one sandbox process with the others."""
    with keep_sandbox("auto") as found:
        if isinstance(found, str):
            pytest.skip(f"permission: no sandbox: {found}")
        yield {"sandbox_folder": found.folder, "sandbox_python": found.python}


@pytest.fixture
async def api(sandbox_options: dict[str, Any]) -> AsyncIterator[ContainerApi]:
    async with run_api(**sandbox_options) as server:
        yield ContainerApi(server)
