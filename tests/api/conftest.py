"""A sandbox process for all tests of a file."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.sandboxes import keep_sandbox


@pytest.fixture(scope="module")
def sandbox_options() -> Iterator[dict[str, Any]]:
    """Settings of a server that uses one sandbox process with the others."""
    with keep_sandbox("auto") as found:
        if isinstance(found, str):
            pytest.skip(f"permission: no sandbox: {found}")
        yield {"sandbox_folder": found.folder, "sandbox_python": found.python}
