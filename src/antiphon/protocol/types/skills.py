"""Skills and their versions."""

from typing import Literal

from msgspec import Struct

from antiphon.protocol.types.lists import ListPage


class SkillObject(Struct, kw_only=True):
    id: str
    object: Literal["skill"] = "skill"
    created_at: int
    name: str
    description: str
    default_version: str
    latest_version: str


class SkillList(ListPage, kw_only=True):
    data: list[SkillObject]


class UpdateSkill(Struct, frozen=True, kw_only=True):
    default_version: str


class SkillDeleted(Struct, kw_only=True):
    id: str
    object: Literal["skill.deleted"] = "skill.deleted"
    deleted: bool = True


class SkillVersionObject(Struct, kw_only=True):
    id: str
    object: Literal["skill.version"] = "skill.version"
    created_at: int
    name: str
    description: str
    skill_id: str
    version: str


class SkillVersionList(ListPage, kw_only=True):
    data: list[SkillVersionObject]


class SkillVersionDeleted(Struct, kw_only=True):
    id: str
    object: Literal["skill.version.deleted"] = "skill.version.deleted"
    deleted: bool = True
    version: str
