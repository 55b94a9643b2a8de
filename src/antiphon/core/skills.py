"""Skills in a container or on the machine of a client, as models read of them."""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

_HEADING: Final = "Read the file SKILL.md in a skill's folder before you do what the skill is for. Skills:"


class OfferedSkill(Struct, frozen=True):
    name: str
    description: str
    path: str  # of its folder


def describe_skills(skills: Iterable[OfferedSkill]) -> str:
    return "\n".join([_HEADING, *[f"- {skill.name} ({skill.path}): {skill.description}" for skill in skills]])
