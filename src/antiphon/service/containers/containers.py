"""The containers API: containers and their files are created, listed, read and deleted."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import cast

from antiphon.core.documents import CONTAINER_FOLDER, name_in_container
from antiphon.errors import InvalidValue, NotFound
from antiphon.ids import new_id, quote_id
from antiphon.protocol.types import containers as wire
from antiphon.protocol.types.lists import ListQuery
from antiphon.protocol.types.tools import Memory
from antiphon.service.containers.live_containers import LiveContainers
from antiphon.service.containers.network import to_policy
from antiphon.stores.base import ContainerFileRow, ContainerRow, PageQuery


class Containers:
    def __init__(self, live: LiveContainers) -> None:
        self._live = live
        self._store = live.store

    async def create(self, tenant: str, request: wire.CreateContainer) -> wire.ContainerObject:
        return _to_container(await self._live.create(tenant, request))

    async def list_containers(self, tenant: str, query: wire.ContainersQuery) -> wire.ContainerList:
        self._live.check_enabled()
        page = await self._store.page_containers(tenant, PageQuery.read(query), query.name)
        return wire.ContainerList.make(map(_to_container, page.rows), page.has_more)

    async def get(self, tenant: str, container_id: str) -> wire.ContainerObject:
        return _to_container(await self._live.find(tenant, container_id))

    async def delete(self, tenant: str, container_id: str) -> wire.ContainerDeleted:
        await self._live.delete(tenant, container_id)
        return wire.ContainerDeleted(id=container_id)

    async def write_file(
        self, tenant: str, container_id: str, filename: str, pieces: AsyncIterator[bytes], max_bytes: int
    ) -> ContainerFileRow:
        """Write a file while it arrives. It is in the container, and not yet recorded."""
        row = await self._live.use(tenant, container_id)
        file_id = new_id("cfile")
        path = name_in_container(file_id.removeprefix("cfile_"), filename)
        size = await self._live.write(tenant, row, path, pieces, max_bytes)
        return self._live.make_file(path, size, "user", file_id)

    async def record_file(self, tenant: str, container_id: str, file: ContainerFileRow) -> wire.ContainerFileObject:
        row = await self._live.use(tenant, container_id)
        return to_file(row.id, (await self._live.record(tenant, row, [file]))[0])

    async def copy_file(self, tenant: str, container_id: str, file_id: str) -> wire.ContainerFileObject:
        row = await self._live.use(tenant, container_id)
        file = await self._live.find_file(tenant, file_id, "file_id")
        return to_file(row.id, await self._live.copy(tenant, row, file))

    async def list_files(self, tenant: str, container_id: str, query: ListQuery) -> wire.ContainerFileList:
        row = await self._live.use(tenant, container_id)
        page = await self._store.page_container_files(tenant, row.id, PageQuery.read(query))
        return wire.ContainerFileList.make([to_file(row.id, file) for file in page.rows], page.has_more)

    async def get_file(self, tenant: str, container_id: str, file_id: str) -> wire.ContainerFileObject:
        row, file = await self.find_file(tenant, container_id, file_id)
        return to_file(row.id, file)

    async def find_file(self, tenant: str, container_id: str, file_id: str) -> tuple[ContainerRow, ContainerFileRow]:
        row = await self._live.use(tenant, container_id)
        file = await self._store.container_file(tenant, row.id, file_id)
        if file is None:
            raise _unknown_file_error(row.id, file_id)
        return row, file

    async def read_file(self, tenant: str, row: ContainerRow, file: ContainerFileRow) -> AsyncGenerator[bytes, None]:
        """Yield the content of a file. Raises NotFound if code has deleted it, which is only noticed now."""
        pieces = self._live.read(tenant, row, file.path)
        try:
            async for piece in pieces:
                yield piece
        except (NotFound, InvalidValue) as error:
            if error.param != "path":
                raise
            await self._store.delete_container_file(tenant, row.id, file.id)
            raise _unknown_file_error(row.id, file.id) from None
        finally:
            await pieces.aclose()

    async def delete_file(self, tenant: str, container_id: str, file_id: str) -> wire.ContainerFileDeleted:
        row, file = await self.find_file(tenant, container_id, file_id)
        async with self._live.detect_loss(tenant, row):
            try:
                await self._live.sandbox.remove(row.id, file.path)
            except (NotFound, InvalidValue) as error:
                if error.param != "path":  # code has deleted it, or made something else in its place
                    raise
        await self._store.delete_container_file(tenant, row.id, file.id)
        return wire.ContainerFileDeleted(id=file_id)


def _to_container(row: ContainerRow) -> wire.ContainerObject:
    return wire.ContainerObject(
        id=row.id,
        created_at=int(row.created),
        status="expired" if row.state == "ended" else "running",
        expires_after=wire.ContainerExpiry(anchor="last_active_at", minutes=row.minutes),
        last_active_at=int(row.last_active),
        memory_limit=cast(Memory, row.memory),
        name=row.name,
        network_policy=to_policy(row.domains),
    )


def to_file(container_id: str, row: ContainerFileRow) -> wire.ContainerFileObject:
    return wire.ContainerFileObject(
        id=row.id,
        bytes=row.size,
        container_id=container_id,
        created_at=int(row.created),
        path=CONTAINER_FOLDER + row.path,
        source=row.source,
    )


def _unknown_file_error(container_id: str, file_id: str) -> NotFound:
    message = f"The container '{container_id}' has no file {quote_id(file_id)}."
    return NotFound(message, param="file_id")
