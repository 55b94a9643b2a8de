"""Builders of rows of skills."""

from antiphon.ids import new_dashed_id, new_id
from antiphon.stores.base import FileQuota, SkillVersionRow
from antiphon.testing.rows.response_rows import Clock

QUOTA = FileQuota(100, 1_000_000)


def make_skill_version(clock: Clock, skill: str = "", name: str = "pdf", size: int = 10) -> SkillVersionRow:
    """The first version of a new skill, unless a skill is named."""
    key = new_dashed_id("file")
    return SkillVersionRow(
        id=new_id("skillver"), skill=skill or new_id("skill"), created=clock(), name=name,
        description=f"Über {name}.", size=size, digest=key.encode(), content=key,
    )  # fmt: skip
