"""Skills that a request wants in a container: which versions they are, where they are, and their files."""

import asyncio
import re
from collections.abc import Sequence
from contextlib import aclosing
from hashlib import sha256
from typing import Final

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.core.skills import OfferedSkill
from antiphon.errors import InvalidValue
from antiphon.ids import quote_id
from antiphon.protocol.types.tools import ContainerSkill, InlineSkill, SkillReference
from antiphon.sandbox.worker.paths import SKILLS
from antiphon.service.files import Files
from antiphon.service.skills.bundle import SkillBundle, check_texts, decode_base64, open_bundle
from antiphon.stores.base import SkillVersionRow
from antiphon.stores.sql.store import Store

_PARAM: Final = "skills"  # of files that were checked before
_DIGEST_LENGTH = 32
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")


class FoundSkill(Struct, frozen=True):
    """A skill that exists. `wanted` means this version of it."""

    offered: OfferedSkill
    wanted: ContainerSkill
    source: SkillVersionRow | bytes  # or the zip file itself

    @property
    def folder(self) -> str:
        return self.offered.path.rpartition("/")[2]


class SkillFinder:
    def __init__(self, store: Store, files: Files) -> None:
        self._store = store
        self._files = files

    async def find(self, tenant: str, skills: Sequence[ContainerSkill], param: str) -> list[FoundSkill]:
        """Return the skills, each once. Raises InvalidValue that names an entry of `param`."""
        found: dict[str, FoundSkill] = {}
        for index, wanted in enumerate(skills):
            entry = f"{param}[{index}]"
            if isinstance(wanted, InlineSkill):
                skill = await asyncio.to_thread(_read_inline, wanted, entry)
            else:
                skill = await self._find_stored(tenant, wanted, entry)
            found.setdefault(skill.folder, skill)
        return [*found.values()]

    async def load(self, skill: FoundSkill) -> SkillBundle:
        """Return the files of a skill."""
        data = skill.source
        if isinstance(data, SkillVersionRow):
            async with aclosing(self._files.read(data, 0, data.size)) as pieces:
                data = b"".join([piece async for piece in pieces])
        return await asyncio.to_thread(open_bundle, data, _PARAM)

    async def _find_stored(self, tenant: str, wanted: SkillReference, param: str) -> FoundSkill:
        version = None if wanted.version is UNSET else str(wanted.version)
        row = await self._store.skill_version(tenant, wanted.skill_id, version)
        if row is None:
            which = "" if version is None else f" with a version {quote_id(version)}"
            raise InvalidValue(f"There is no skill {quote_id(wanted.skill_id)}{which}.", param=param)
        return FoundSkill(_offer(row.name, row.description, row.digest), replace(wanted, version=str(row.version)), row)


def _read_inline(wanted: InlineSkill, param: str) -> FoundSkill:
    data = decode_base64(wanted.source.data, f"{param}.source.data")
    open_bundle(data, f"{param}.source.data")
    try:
        name, description = check_texts(wanted.name, wanted.description)
    except ValueError as error:
        raise InvalidValue(f"The skill is not accepted: {error}.", param=param) from None
    return FoundSkill(_offer(name, description, sha256(data).digest()), wanted, data)


def _offer(name: str, description: str, digest: bytes) -> OfferedSkill:
    folder = f"{_NO_NAME.sub('-', name).strip('-.') or 'skill'}-{digest.hex()[:_DIGEST_LENGTH]}"
    return OfferedSkill(name, description, f"{SKILLS}/{folder}")
