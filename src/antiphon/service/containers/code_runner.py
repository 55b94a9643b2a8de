"""Runs code for tools in the containers of tenants, and records the files that it writes."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from antiphon.core.data_urls import read_file_data
from antiphon.core.documents import CONTAINER_FOLDER, name_in_container, name_sent_file
from antiphon.core.skills import OfferedSkill
from antiphon.errors import NotFound, SandboxUnavailable, StorageLimitReached
from antiphon.ids import new_id
from antiphon.offload import run_sized
from antiphon.protocol.types.containers import CreateContainer
from antiphon.protocol.types.parts import InputFile
from antiphon.protocol.types.tools import AutoContainer, ContainerAuto
from antiphon.sandbox.base import CodeEvent, CodeResult, ContainerFile, Figure
from antiphon.service.containers.live_containers import LiveContainers
from antiphon.service.skills.container_skills import FoundSkill
from antiphon.stores.base import ContainerFileRow, ContainerRow, FileRow
from antiphon.stores.contents.base import yield_once
from antiphon.tools.base import WrittenFile

_MAX_RECORDED = 1000  # files of one call
_MARGIN_SECONDS = 60.0  # beyond the deadline of a call, for its start and its end
_MAX_SENT_BYTES = 512 * 1024 * 1024  # of a file in a request; the limits of requests and of the disk are lower
_AUTO_NAME = "auto"


class CodeRunner:
    """Implements CodeContainers."""

    def __init__(self, live: LiveContainers) -> None:
        self._live = live

    async def check(self, tenant: str, wanted: str | AutoContainer, param: str) -> None:
        if isinstance(wanted, str):
            await self._live.ensure(tenant, wanted, param)
        else:
            await self._live.check(tenant, _to_request(wanted), f"{param}.")
            await self._live.sandbox.status()  # raises if there is none

    async def find(self, tenant: str, wanted: str | AutoContainer, previous: Sequence[str], param: str) -> str | None:
        if isinstance(wanted, str):
            return (await self._live.ensure(tenant, wanted, param)).id
        files = await self._live.check(tenant, _to_request(wanted), f"{param}.")
        for container_id in previous:
            row = await self._find_alive(tenant, container_id, param)
            if row is not None and self._fits(wanted, row):
                await self._add_missing(tenant, row, files)
                await self._live.add_skills(tenant, row, await self._find_wanted(tenant, wanted, param))
                return row.id
        return None

    async def make(self, tenant: str, wanted: AutoContainer, container_id: str, param: str) -> None:
        await self._live.create(tenant, _to_request(wanted), f"{param}.", container_id)

    async def find_skills(
        self, tenant: str, wanted: str | AutoContainer, param: str
    ) -> tuple[str | AutoContainer, Sequence[OfferedSkill]]:
        if isinstance(wanted, str):
            row = await self._live.store.use_container(tenant, wanted)
            return wanted, [] if row is None else msgspec.json.decode(row.skills, type=list[OfferedSkill])
        found = await self._find_wanted(tenant, wanted, param)
        if isinstance(wanted, ContainerAuto) and found:
            wanted = replace(wanted, skills=[skill.wanted for skill in found])
        return wanted, [skill.offered for skill in found]

    async def _find_wanted(self, tenant: str, wanted: AutoContainer, param: str) -> list[FoundSkill]:
        return await self._live.skills.find(tenant, _to_request(wanted).skills, f"{param}.skills")

    def _fits(self, wanted: AutoContainer, row: ContainerRow) -> bool:
        policy = wanted.network_policy
        is_same = policy is UNSET or self._live.network.read_domains(policy, "") == row.domains
        return is_same and wanted.memory_limit in (UNSET, row.memory)

    async def _find_alive(self, tenant: str, container_id: str, param: str) -> ContainerRow | None:
        try:
            return await self._live.ensure(tenant, container_id, param)
        except (NotFound, SandboxUnavailable):  # it has expired, or runs on another host
            return None

    async def _add_missing(self, tenant: str, row: ContainerRow, files: Sequence[FileRow]) -> None:
        for file in files:
            path = name_in_container(file.id, file.filename)
            if not await self._live.store.find_container_path(tenant, row.id, path):
                await self._live.copy(tenant, row, file)

    async def add_files(self, tenant: str, container_id: str, files: Sequence[InputFile]) -> None:
        row = await self._live.use(tenant, container_id)
        for file in files:
            data = file.file_data or ""
            body = await run_sized(len(data), read_file_data, data, _MAX_SENT_BYTES)
            path = await run_sized(len(body), name_sent_file, body, file.filename or "")
            if not await self._live.store.find_container_path(tenant, row.id, path):
                size = await self._live.write(tenant, row, path, yield_once(body), len(body))
                await self._live.record(tenant, row, [self._live.make_file(path, size, "user")])

    async def run(
        self, tenant: str, container_id: str, code: str, seconds: float | None = None
    ) -> AsyncGenerator[CodeEvent | WrittenFile, None]:
        live, longest = self._live, self._live.settings.code_seconds
        seconds = min(seconds or longest, longest)
        row = await live.use(tenant, container_id, seconds + _MARGIN_SECONDS)
        proxy = live.network.make_proxy(row.domains)
        serve = None if proxy is None else proxy.serve
        async with AsyncExitStack() as cleanup:
            cleanup.push_async_callback(live.store.use_container, tenant, row.id)  # it expires after its last use
            await cleanup.enter_async_context(live.detect_loss(tenant, row))
            events = await cleanup.enter_async_context(aclosing(live.sandbox.run(row.id, code, seconds, serve)))
            async for event in events:
                if isinstance(event, CodeResult):
                    for file in await self._record_changes(tenant, row, event.changed):
                        yield file
                    event = replace(event, unlisted=event.unlisted + len(event.changed[_MAX_RECORDED:]))
                yield event
                if isinstance(event, Figure) and (figure := await self._save_figure(tenant, row, event.png)):
                    yield figure

    async def _save_figure(self, tenant: str, row: ContainerRow, png: bytes) -> WrittenFile | None:
        """Write a figure as a file. Returns None if the disk of the container is full."""
        file_id = new_id("cfile")
        path = f"{file_id}.png"
        try:
            await self._live.write(tenant, row, path, yield_once(png), len(png))
        except StorageLimitReached:
            return None
        file = self._live.make_file(path, len(png), "assistant", file_id)
        return _to_written((await self._live.record(tenant, row, [file]))[0], row.id, is_figure=True)

    async def _record_changes(
        self, tenant: str, row: ContainerRow, changed: Sequence[ContainerFile]
    ) -> list[WrittenFile]:
        files = [self._live.make_file(file.path, file.size, "assistant") for file in changed[:_MAX_RECORDED]]
        return [_to_written(file, row.id) for file in await self._live.record(tenant, row, files)]


def _to_request(wanted: AutoContainer) -> CreateContainer:
    names = ("file_ids", "memory_limit", "network_policy", "skills")
    fields: dict[str, Any] = {name: getattr(wanted, name, UNSET) for name in names}
    return CreateContainer(name=_AUTO_NAME, **{name: value for name, value in fields.items() if value is not UNSET})


def _to_written(file: ContainerFileRow, container_id: str, is_figure: bool = False) -> WrittenFile:
    path = CONTAINER_FOLDER + file.path
    return WrittenFile(file_id=file.id, container_id=container_id, path=path, size=file.size, is_figure=is_figure)
