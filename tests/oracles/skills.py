"""Checks skills and their versions against the openai package's types, strictly and without unknown fields."""

from typing import Any

from openai.types import DeletedSkill, Skill, SkillList
from openai.types.skills import DeletedSkillVersion, SkillVersion, SkillVersionList
from pydantic import BaseModel

from tests.oracles.unknown_fields import find_unknown_fields

_KINDS: dict[str, type[BaseModel]] = {
    "skill": Skill,
    "skill.deleted": DeletedSkill,
    "skill.version": SkillVersion,
    "skill.version.deleted": DeletedSkillVersion,
}


def check_object(value: dict[str, Any]) -> dict[str, Any]:
    """Check any object or page of the skills API, and return it."""
    if value["object"] == "list":
        kinds = {entry["object"] for entry in value["data"]}
        kind: type[BaseModel] = SkillVersionList if "skill.version" in kinds else SkillList
    else:
        kind = _KINDS[value["object"]]
    assert not [*find_unknown_fields(kind.model_validate(value, strict=True), kind.__name__, {})]
    return value
