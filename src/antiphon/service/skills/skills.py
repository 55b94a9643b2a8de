"""The skills API: skills and their versions are created, listed, read and deleted.

The zip file of a version is written to the content store of files first, then its row. A skill is durable when its
request is answered.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from time import time

from antiphon.errors import InvalidValue, NotFound
from antiphon.ids import new_id, quote_id
from antiphon.protocol.types import skills as wire
from antiphon.protocol.types.lists import ListQuery
from antiphon.service.files import Files
from antiphon.service.skills.bundle import MAX_ZIP_BYTES, open_bundle, pack_files
from antiphon.stores.base import FileQuota, PageQuery, SkillRow, SkillVersionRow
from antiphon.stores.contents.base import yield_once
from antiphon.stores.sql.store import Store

UploadedFile = tuple[str, bytes]  # its name, which may have folders, and its content
_ZIP_MAGIC = b"PK"


class Skills:
    def __init__(self, store: Store, files: Files, quota: FileQuota) -> None:
        """`quota.files`: the maximum number of versions of all skills of a tenant."""
        self._store = store
        self._files = files
        self._quota = quota

    async def create(self, tenant: str, files: Sequence[UploadedFile]) -> wire.SkillObject:
        async with AsyncExitStack() as cleanup:
            row = await self._write(files, new_id("skill"), cleanup)
            added = await self._store.add_skill(tenant, row, self._quota)
            cleanup.pop_all()
        return _to_skill(added)

    async def create_version(
        self, tenant: str, skill_id: str, files: Sequence[UploadedFile], make_default: bool
    ) -> wire.SkillVersionObject:
        async with AsyncExitStack() as cleanup:
            row = await self._write(files, skill_id, cleanup)
            added = await self._store.add_skill_version(tenant, row, self._quota, make_default)
            if added is None:
                raise _unknown_error(skill_id)
            cleanup.pop_all()
        return _to_version(added)

    async def _write(self, files: Sequence[UploadedFile], skill_id: str, cleanup: AsyncExitStack) -> SkillVersionRow:
        """Check the files and write them as one zip file, which `cleanup` deletes."""
        if len(files) == 1 and files[0][1].startswith(_ZIP_MAGIC):
            data = files[0][1]
        else:
            data = await asyncio.to_thread(pack_files, files, "files")
        bundle = await asyncio.to_thread(open_bundle, data, "files")
        content = await self._files.write(yield_once(data), MAX_ZIP_BYTES)
        cleanup.push_async_callback(self._files.discard, content)
        return SkillVersionRow(
            id=new_id("skillver"), skill=skill_id, created=time(), name=bundle.name, description=bundle.description,
            size=content.size, digest=content.sha256, content=content.key,
        )  # fmt: skip

    async def list_skills(self, tenant: str, query: ListQuery) -> wire.SkillList:
        self._files.check_enabled()
        page = await self._store.page_skills(tenant, PageQuery.read(query))
        return wire.SkillList.make(map(_to_skill, page.rows), page.has_more)

    async def get(self, tenant: str, skill_id: str) -> wire.SkillObject:
        return _to_skill(await self.find(tenant, skill_id))

    async def find(self, tenant: str, skill_id: str) -> SkillRow:
        self._files.check_enabled()
        row = await self._store.skill(tenant, skill_id)
        if row is None:
            raise _unknown_error(skill_id)
        return row

    async def set_default(self, tenant: str, skill_id: str, version: str) -> wire.SkillObject:
        await self.find(tenant, skill_id)
        row = await self._store.set_default_version(tenant, skill_id, version)
        if row is None:
            message = f"The skill has no version {quote_id(version)}."
            raise InvalidValue(message, param="default_version")
        return _to_skill(row)

    async def delete(self, tenant: str, skill_id: str) -> wire.SkillDeleted:
        self._files.check_enabled()
        unused = await self._store.delete_skill(tenant, skill_id)
        if unused is None:
            raise _unknown_error(skill_id)
        await self._files.delete_contents(unused)
        return wire.SkillDeleted(id=skill_id)

    async def list_versions(self, tenant: str, skill_id: str, query: ListQuery) -> wire.SkillVersionList:
        await self.find(tenant, skill_id)
        page = await self._store.page_skill_versions(tenant, skill_id, PageQuery.read(query))
        return wire.SkillVersionList.make(map(_to_version, page.rows), page.has_more)

    async def get_version(self, tenant: str, skill_id: str, version: str) -> wire.SkillVersionObject:
        return _to_version(await self.find_version(tenant, skill_id, version))

    async def find_version(self, tenant: str, skill_id: str, version: str | None) -> SkillVersionRow:
        """Return a version: by its number, `latest`, or None for the default one."""
        await self.find(tenant, skill_id)
        row = await self._store.skill_version(tenant, skill_id, version)
        if row is None:
            raise _unknown_version_error(skill_id, version or "")
        return row

    def read(self, row: SkillVersionRow) -> AsyncGenerator[bytes, None]:
        """Yield the zip file of a version, in pieces."""
        return self._files.read(row, 0, row.size)

    async def delete_version(self, tenant: str, skill_id: str, version: str) -> wire.SkillVersionDeleted:
        """Delete a version; the last one of a skill with the skill."""
        row = await self.find_version(tenant, skill_id, version)
        await self._files.delete_contents(await self._store.delete_skill_version(tenant, skill_id, row.version))
        return wire.SkillVersionDeleted(id=row.id, version=str(row.version))


def _to_skill(row: SkillRow) -> wire.SkillObject:
    return wire.SkillObject(
        id=row.id, created_at=int(row.created), name=row.name, description=row.description,
        default_version=str(row.default_version), latest_version=str(row.latest_version),
    )  # fmt: skip


def _to_version(row: SkillVersionRow) -> wire.SkillVersionObject:
    return wire.SkillVersionObject(
        id=row.id, created_at=int(row.created), name=row.name, description=row.description, skill_id=row.skill,
        version=str(row.version),
    )  # fmt: skip


def _unknown_error(skill_id: str) -> NotFound:
    return NotFound(f"There is no skill {quote_id(skill_id)}.", param="skill_id")


def _unknown_version_error(skill_id: str, version: str) -> NotFound:
    return NotFound(f"The skill {quote_id(skill_id)} has no version {quote_id(version)}.", param="version")
