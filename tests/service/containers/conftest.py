"""A sandbox process of its own for each test, the containers in it, and a store with a clock that tests can set."""

from collections.abc import AsyncIterator
from pathlib import Path
from time import time

import pytest

from antiphon.config import Config
from antiphon.egress import EgressClient
from antiphon.errors import SandboxUnavailable
from antiphon.sandbox.local import LocalSandbox
from antiphon.service.containers.code_runner import CodeRunner
from antiphon.service.containers.live_containers import LiveContainers
from antiphon.service.files import Files
from antiphon.stores.base import FileQuota
from antiphon.stores.contents.folder import FolderContents
from antiphon.stores.sql.store import Store
from antiphon.testing.rows.response_rows import Clock
from tests.support.sandboxes import run_sandbox


@pytest.fixture
def clock() -> Clock:
    clock = Clock()
    clock.now = time()
    return clock


@pytest.fixture
async def files(store: Store, tmp_path: Path) -> Files:
    contents = FolderContents(tmp_path)
    await contents.open()
    return Files(store, contents, FileQuota(100, 1000))


@pytest.fixture
async def sandbox() -> AsyncIterator[LocalSandbox]:
    async with run_sandbox("auto") as sandbox:
        try:
            await sandbox.status()
        except SandboxUnavailable as error:
            pytest.skip(f"permission: no sandbox: {error}")
        yield sandbox


@pytest.fixture
def live(store: Store, files: Files, sandbox: LocalSandbox) -> LiveContainers:
    return LiveContainers(store, files, sandbox, Config.from_settings(code_seconds=30.0).tools, EgressClient())


@pytest.fixture
def runner(live: LiveContainers) -> CodeRunner:
    return CodeRunner(live)
