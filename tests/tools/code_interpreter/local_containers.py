"""Containers for tests of the tool: those of a real sandbox process, without a store."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

import pytest

from antiphon.config import Config
from antiphon.core.skills import OfferedSkill
from antiphon.errors import ContainerExpired, SandboxUnavailable, UnknownContainer
from antiphon.protocol.types.parts import InputFile
from antiphon.protocol.types.tools import AutoContainer
from antiphon.sandbox.base import CodeEvent, CodeResult, Figure
from antiphon.sandbox.local import LocalSandbox
from antiphon.tools.base import ToolServices, WrittenFile
from antiphon.tools.code_interpreter.tool import CodeInterpreter
from antiphon.tools.hosted_shell.tool import HostedShell
from tests.egress.hosts import make_egress_client
from tests.support.media_files import png
from tests.support.sandboxes import LIMITS, run_sandbox

# What code needs of matplotlib for a figure, on an interpreter without packages.
PYPLOT = f"""
import sys, types
class Drawing:
    def savefig(self, buffer, format): buffer.write({png()!r})
drawn = [1]
sys.modules["matplotlib.pyplot"] = types.SimpleNamespace(
    get_fignums=lambda: [*drawn], figure=lambda number: Drawing(), close=lambda name: drawn.clear())
"""


class LocalContainers:
    """`expired` has containers that are gone. Clear `running` to make calls wait; `called` is set when one is made."""

    def __init__(self, sandbox: LocalSandbox) -> None:
        self.sandbox = sandbox
        self.tenants: dict[str, str] = {}
        self.expired: set[str] = set()
        self.wanted: list[str | AutoContainer] = []
        self.sent: list[str] = []  # names of files that were put into containers
        self.found: list[str | AutoContainer] = []
        self.called, self.running = asyncio.Event(), asyncio.Event()
        self.running.set()
        self._files: dict[str, dict[str, str]] = defaultdict(dict)  # ids by path and container

    @property
    def latest(self) -> str:
        return [*self.tenants][-1]

    async def add(self, tenant: str = "tenant", container_id: str | None = None) -> str:
        container_id = container_id or f"cntr_{len(self.tenants) + 1}"
        await self.sandbox.start(container_id, LIMITS)
        self.tenants[container_id] = tenant
        return container_id

    async def check(self, tenant: str, wanted: str | AutoContainer, param: str) -> None:
        self.wanted.append(wanted)
        if isinstance(wanted, str):
            self._find(tenant, wanted, param)

    async def find(self, tenant: str, wanted: str | AutoContainer, previous: Sequence[str], param: str) -> str | None:
        self.found.append(wanted)
        if isinstance(wanted, str):
            return self._find(tenant, wanted, param)
        alive = [one for one in previous if self.tenants.get(one) == tenant and one not in self.expired]
        return alive[0] if alive else None

    async def find_skills(
        self, tenant: str, wanted: str | AutoContainer, param: str
    ) -> tuple[str | AutoContainer, Sequence[OfferedSkill]]:
        return wanted, ()

    async def make(self, tenant: str, wanted: AutoContainer, container_id: str, param: str) -> None:
        await self.add(tenant, container_id)

    async def add_files(self, tenant: str, container_id: str, files: Sequence[InputFile]) -> None:
        self.sent += [file.filename or "" for file in files]

    async def run(
        self, tenant: str, container_id: str, code: str, seconds: float | None = None
    ) -> AsyncGenerator[CodeEvent | WrittenFile, None]:
        self._find(tenant, container_id, "container_id")
        self.called.set()
        await self.running.wait()
        async with aclosing(self.sandbox.run(container_id, code, seconds or 20.0)) as events:
            async for event in events:
                if isinstance(event, CodeResult):
                    for file in event.changed:
                        yield self._write(container_id, f"/mnt/data/{file.path}", file.size)
                yield event
                if isinstance(event, Figure):
                    path = f"/mnt/data/cfile_{len(self._files[container_id]) + 1}.png"
                    yield self._write(container_id, path, len(event.png), is_figure=True)

    def _find(self, tenant: str, container_id: str, param: str) -> str:
        if self.tenants.get(container_id) != tenant:
            raise UnknownContainer(f"There is no container {container_id!r}.", param=param)
        if container_id in self.expired:
            raise ContainerExpired(f"The container {container_id!r} has expired.", param=param)
        return container_id

    def _write(self, container_id: str, path: str, size: int, is_figure: bool = False) -> WrittenFile:
        ids = self._files[container_id]
        file_id = ids.setdefault(path, f"cfile_{len(ids) + 1}")
        return WrittenFile(file_id=file_id, container_id=container_id, path=path, size=size, is_figure=is_figure)


@asynccontextmanager
async def run_containers() -> AsyncIterator[LocalContainers]:
    """Containers of the strongest level that this machine allows; without any, the test is skipped."""
    async with run_sandbox("auto") as sandbox:
        try:
            await sandbox.status()
        except SandboxUnavailable as error:
            pytest.skip(f"permission: no sandbox: {error}")
        yield LocalContainers(sandbox)


def _make_services(containers: LocalContainers | None) -> ToolServices:
    return ToolServices(config=Config(), egress=make_egress_client(), containers=containers)


def make_tool(containers: LocalContainers | None) -> CodeInterpreter:
    return CodeInterpreter(_make_services(containers))


def make_shell(containers: LocalContainers | None) -> HostedShell:
    return HostedShell(_make_services(containers))
