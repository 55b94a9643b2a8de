"""Containers of tenants: each is a row in the store and a container of the sandbox.

The row is written first and says how long the container lives. Its files and variables are in the sandbox alone: if the
sandbox process ends, or the container is stopped because it was not used, they are gone and the container has expired.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from time import time

import msgspec

from antiphon.config.areas import ToolSettings
from antiphon.core.documents import name_in_container
from antiphon.egress import EgressClient
from antiphon.errors import (
    AntiphonError,
    ContainerExpired,
    InvalidValue,
    SandboxDisabled,
    SandboxUnavailable,
    UnknownContainer,
    UnsupportedParameter,
)
from antiphon.ids import new_id, quote_id
from antiphon.protocol.types.containers import CreateContainer
from antiphon.sandbox.base import ContainerLimits
from antiphon.sandbox.client import CodeSandbox
from antiphon.service.containers.network import LEVEL, ContainerNetwork
from antiphon.service.files import ContentMeter, Files
from antiphon.service.persistence.stored_responses import check_store_enabled
from antiphon.service.skills.bundle import MANIFEST
from antiphon.service.skills.container_skills import FoundSkill, SkillFinder
from antiphon.stores.base import ContainerFileRow, ContainerRow, FileRow
from antiphon.stores.contents.base import yield_once
from antiphon.stores.sql.store import Store

log = logging.getLogger(__name__)

MEMORY_BYTES = {"1g": 1 << 30, "4g": 4 << 30, "16g": 16 << 30, "64g": 64 << 30}
_STARTING_SECONDS = 1.0


class LiveContainers:
    """Makes, uses and stops containers."""

    def __init__(
        self,
        store: Store,
        files: Files,
        sandbox: CodeSandbox,
        settings: ToolSettings,
        egress: EgressClient,
        store_enabled: bool = True,
    ) -> None:
        self.store = store
        self.sandbox = sandbox
        self.settings = settings
        self.skills = SkillFinder(store, files)
        self.network = ContainerNetwork(egress, settings.container_allowed_domains)
        self._files = files
        self._store_enabled = store_enabled
        self.starts: Counter[str] = Counter()  # by outcome
        self.lost = 0

    @property
    def is_enabled(self) -> bool:
        return self._store_enabled and self.settings.sandbox != "none"

    def check_enabled(self) -> None:
        check_store_enabled(self._store_enabled)
        if not self.is_enabled:
            raise SandboxDisabled("Code is not run on this server (--sandbox none).")

    async def check(self, tenant: str, request: CreateContainer, prefix: str = "") -> list[FileRow]:
        """Check what a new container is to be, and return its files. `prefix` is for the names of fields in errors."""
        self.check_enabled()
        limit = self.settings.container_max_memory
        if MEMORY_BYTES[request.memory_limit] > MEMORY_BYTES[limit]:
            message = f"A container has at most {limit} of memory on this server (--container-max-memory)."
            raise InvalidValue(message, param=f"{prefix}memory_limit")
        await self._check_network(request, prefix)
        files = [
            await self.find_file(tenant, file_id, f"{prefix}file_ids[{number}]")
            for number, file_id in enumerate(request.file_ids)
        ]
        return [*{file.id: file for file in files}.values()]

    async def _check_network(self, request: CreateContainer, prefix: str) -> None:
        if self.network.read_domains(request.network_policy, prefix):
            level = (await self.sandbox.status()).level
            if level != LEVEL:
                message = f"A network needs the sandbox level {LEVEL} (--sandbox), and this server has {level}."
                raise UnsupportedParameter(message, param=f"{prefix}network_policy")

    async def find_file(self, tenant: str, file_id: str, param: str) -> FileRow:
        row = await self.store.file(tenant, file_id)
        if row is None:
            raise InvalidValue(f"There is no file {quote_id(file_id)}.", param=param)
        return row

    async def create(
        self, tenant: str, request: CreateContainer, prefix: str = "", container_id: str | None = None
    ) -> ContainerRow:
        """Make a container with its files and skills. If that fails, nothing remains of it."""
        files = await self.check(tenant, request, prefix)
        skills = await self.skills.find(tenant, request.skills, f"{prefix}skills")
        row = self._make_row(request, container_id or new_id("cntr"), skills)
        await self.store.add_container(tenant, row, self.settings.containers_max_entries)
        async with AsyncExitStack() as cleanup:
            cleanup.push_async_callback(self._discard, tenant, row.id)
            await self._start(row)
            if not await self.store.note_container_start(tenant, row.id):
                raise _unknown_error(row.id)
            for file in files:
                await self.copy(tenant, row, file)
            await self.add_skills(tenant, row, skills)
            cleanup.pop_all()
        return row

    def _make_row(self, request: CreateContainer, container_id: str, skills: Sequence[FoundSkill]) -> ContainerRow:
        now, minutes = time(), request.expires_after.minutes
        return ContainerRow(
            id=container_id, created=now, name=request.name, memory=request.memory_limit, minutes=minutes,
            last_active=now, expires=now + minutes * 60, sandbox=self.sandbox.name,
            skills=msgspec.json.encode([skill.offered for skill in skills]).decode(),
            domains=self.network.read_domains(request.network_policy, ""),
        )  # fmt: skip

    async def _start(self, row: ContainerRow) -> None:
        try:
            limits = ContainerLimits(memory=MEMORY_BYTES[row.memory], network=bool(row.domains))
            await self.sandbox.start(row.id, limits)
        except AntiphonError:
            self.starts["failed"] += 1
            raise
        self.starts["started"] += 1

    async def find(
        self, tenant: str, container_id: str, seconds: float = 0.0, param: str = "container_id"
    ) -> ContainerRow:
        """Return a container, also if it has expired; otherwise this is a use of it. Raises UnknownContainer."""
        self.check_enabled()
        row = await self.store.use_container(tenant, container_id, seconds)
        if row is None:
            raise _unknown_error(container_id, param)
        return row

    async def use(
        self, tenant: str, container_id: str, seconds: float = 0.0, param: str = "container_id"
    ) -> ContainerRow:
        """Record a use of a container of this sandbox. Raises UnknownContainer and ContainerExpired."""
        row = await self.find(tenant, container_id, seconds, param)
        if row.state == "ended":
            message = f"The container '{row.id}' has expired: it was not used for {row.minutes} minutes, or was lost."
            raise ContainerExpired(message, param=param)
        if row.sandbox != self.sandbox.name:
            raise SandboxUnavailable(f"The container '{row.id}' runs on another host.")
        return row

    async def ensure(self, tenant: str, container_id: str, param: str) -> ContainerRow:
        """Like `use`, and check that the sandbox has the container."""
        row = await self.use(tenant, container_id, param=param)
        async with self.detect_loss(tenant, row, param):
            if row.id not in (await self.sandbox.status()).containers:
                raise UnknownContainer(row.id)
        return row

    @asynccontextmanager
    async def detect_loss(self, tenant: str, row: ContainerRow, param: str = "container_id") -> AsyncIterator[None]:
        """End the container if the sandbox does not know it, which is when its process has ended since."""
        try:
            yield
        except UnknownContainer:
            if row.state == "starting":
                raise SandboxUnavailable("The container is being started.", retry_after=_STARTING_SECONDS) from None
            await self.note_loss(tenant, row.id)
            message = f"The container '{row.id}' has expired: it was lost with its sandbox, and so were its files."
            raise ContainerExpired(message, param=param) from None

    async def note_loss(self, tenant: str, container_id: str) -> None:
        self.lost += 1
        await self.store.end_container(tenant, container_id)

    async def delete(self, tenant: str, container_id: str) -> None:
        """Delete a container. One on another host is stopped by the sweep there."""
        self.check_enabled()
        row = await self.store.delete_container(tenant, container_id)
        if row is None:
            raise _unknown_error(container_id)
        if row.sandbox == self.sandbox.name and row.state != "ended":
            await self.stop(tenant, row.id)

    async def stop(self, tenant: str, container_id: str) -> None:
        """Stop a container in the sandbox, and record that it has ended. If the sandbox fails, the sweep repeats it."""
        try:
            with suppress(UnknownContainer):
                await self.sandbox.stop(container_id)
        except SandboxUnavailable as error:
            log.warning("stopping a container failed: %s", error)
            return
        await self.store.end_container(tenant, container_id)

    async def _discard(self, tenant: str, container_id: str) -> None:
        await self.store.delete_container(tenant, container_id)
        await self.stop(tenant, container_id)

    async def copy(self, tenant: str, row: ContainerRow, file: FileRow) -> ContainerFileRow:
        """Copy a stored file into the container."""
        path = name_in_container(file.id, file.filename)
        async with aclosing(self._files.read(file, 0, file.size)) as pieces:
            size = await self.write(tenant, row, path, pieces, file.size)
        return (await self.record(tenant, row, [self.make_file(path, size, "user")]))[0]

    async def add_skills(self, tenant: str, row: ContainerRow, skills: Sequence[FoundSkill]) -> None:
        """Unpack the skills that the container does not have. It has one if its manifest is there, which comes last."""
        if not skills:
            return
        async with self.detect_loss(tenant, row):
            present = {file.path for file in await self.sandbox.list_files(row.id, "skills")}
            for skill in skills:
                if f"{skill.folder}/{MANIFEST}" in present:
                    continue
                bundle = await self.skills.load(skill)
                for path in bundle.entries:
                    pieces = yield_once(await asyncio.to_thread(bundle.read, path))
                    await self.sandbox.put(row.id, f"{skill.folder}/{path}", pieces, "skills")

    async def write(
        self, tenant: str, row: ContainerRow, path: str, pieces: AsyncIterator[bytes], max_bytes: int
    ) -> int:
        """Write a file while it arrives, and return its size. If that fails, it is removed."""
        meter = ContentMeter(pieces, max_bytes)
        async with AsyncExitStack() as cleanup, self.detect_loss(tenant, row):
            cleanup.push_async_callback(self._remove, row.id, path)
            await self.sandbox.put(row.id, path, meter.measure())
            cleanup.pop_all()
        return meter.size

    async def _remove(self, container_id: str, path: str) -> None:
        with suppress(AntiphonError):
            await self.sandbox.remove(container_id, path)

    def make_file(self, path: str, size: int, source: str, file_id: str | None = None) -> ContainerFileRow:
        return ContainerFileRow(id=file_id or new_id("cfile"), created=time(), size=size, path=path, source=source)

    async def record(self, tenant: str, row: ContainerRow, files: Sequence[ContainerFileRow]) -> list[ContainerFileRow]:
        """Record files that are in the container. A file of a path that is known keeps its id."""
        recorded = await self.store.add_container_files(tenant, row.id, files)
        if files and not recorded:
            raise ContainerExpired(f"The container '{row.id}' was deleted.", param="container_id")
        return recorded

    async def read(self, tenant: str, row: ContainerRow, path: str) -> AsyncGenerator[bytes, None]:
        async with self.detect_loss(tenant, row), aclosing(self.sandbox.get(row.id, path)) as pieces:
            async for piece in pieces:
                yield piece


def _unknown_error(container_id: str, param: str = "container_id") -> UnknownContainer:
    return UnknownContainer(f"There is no container {quote_id(container_id)}.", param=param)
