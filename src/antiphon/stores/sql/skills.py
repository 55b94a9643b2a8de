"""Skills and their versions. As with files, the content of a version is written before its row and deleted after it.

All changes of a skill lock its tenant, so the numbers of versions grow without gaps or repetitions.
"""

from msgspec.structs import astuple, replace

from antiphon.errors import InvalidValue, StorageLimitReached
from antiphon.stores.base import FileQuota, Page, PageQuery, SkillRow, SkillVersionRow
from antiphon.stores.sql import totals
from antiphon.stores.sql.files import check_room, find_unused
from antiphon.stores.sql.operation import (
    Operation,
    cut_page,
    direction,
    find_row,
    read_page,
    read_row,
    sanitise_id,
    sql,
)

_MAX_NUMBER = 2**31  # greater numbers in requests are those of no version
_COLUMNS = ", ".join(SkillRow.__struct_fields__)
_VERSION_COLUMNS = "id, skill, created, version, name, description, bytes, digest, content"
_INSERT = f"""
INSERT INTO skills (tenant, {_COLUMNS}, numbers) VALUES ($1, $2, $3, $4, $5, 1, 1, 0)
ON CONFLICT (tenant, id) DO NOTHING
"""
_INSERT_VERSION = f"""
INSERT INTO skill_versions (tenant, {_VERSION_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
"""
_SKILL = "tenant = $1 AND id = $2"
_VERSION = "tenant = $1 AND skill = $2 AND version = $3"
_COUNT_UP = f"""
UPDATE skills SET numbers = numbers + 1, latest_version = numbers + 1 WHERE {_SKILL} RETURNING numbers
"""
_SET_DEFAULT = f"UPDATE skills SET default_version = $3, name = $4, description = $5 WHERE {_SKILL}"
_SET_LATEST = f"""
UPDATE skills SET latest_version = (SELECT MAX(version) FROM skill_versions WHERE tenant = $1 AND skill = $2)
WHERE {_SKILL}
"""


def add_skill(tenant: str, row: SkillVersionRow, quota: FileQuota) -> Operation[SkillRow]:
    """Add a skill with its first version. `quota.files` is the tenant's maximum of versions."""
    yield totals.lock_tenant(tenant)
    yield sql(_INSERT, tenant, row.skill, row.created, row.name, row.description)
    yield from add_skill_version(tenant, row, quota)
    added = yield from get_skill(tenant, row.skill)
    assert added is not None
    return added


def add_skill_version(
    tenant: str, row: SkillVersionRow, quota: FileQuota, make_default: bool = False
) -> Operation[SkillVersionRow | None]:
    """Add a version under the next number. Returns None if there is no such skill.

    Raises StorageLimitReached above the tenant's quota, whose bytes are those of files too.
    """
    yield totals.lock_tenant(tenant)
    for added in (yield sql(f"SELECT {_VERSION_COLUMNS} FROM skill_versions WHERE {_SKILL}", tenant, row.id)):
        return read_row(SkillVersionRow, added)  # by a call whose reply was lost
    numbers = yield sql(_COUNT_UP, tenant, sanitise_id(row.skill))
    if not numbers:
        return None
    if (yield sql("SELECT COUNT(*) FROM skill_versions WHERE tenant = $1", tenant))[0][0] >= quota.files:
        message = f"At most {quota.files:,} versions of skills can be stored: delete some."
        raise StorageLimitReached(message, param="files")
    yield from check_room(tenant, row.size, quota, "files")
    row = replace(row, version=numbers[0][0])
    yield sql(_INSERT_VERSION, tenant, *astuple(row))
    if make_default:
        yield sql(_SET_DEFAULT, tenant, row.skill, row.version, row.name, row.description)
    return row


def get_skill(tenant: str, skill: str) -> Operation[SkillRow | None]:
    return find_row(SkillRow, f"SELECT {_COLUMNS} FROM skills WHERE {_SKILL}", tenant, sanitise_id(skill))


def page_skills(tenant: str, query: PageQuery) -> Operation[Page[SkillRow]]:
    """Return one page, ordered by creation time. Raises InvalidValue for an unknown cursor."""
    rows, has_more = yield from read_page(f"SELECT {_COLUMNS} FROM skills", "id", {"tenant": tenant}, query)
    return Page([read_row(SkillRow, row) for row in rows], has_more)


def get_skill_version(tenant: str, skill: str, version: str | None) -> Operation[SkillVersionRow | None]:
    """Return a version by its number, the newest one for `latest`, the default one for None."""
    row = yield from get_skill(tenant, skill)
    if row is None:
        return None
    number = row.default_version if version is None else row.latest_version if version == "latest" else None
    number = _parse_number(version or "") if number is None else number
    text = f"SELECT {_VERSION_COLUMNS} FROM skill_versions WHERE {_VERSION}"
    return (yield from find_row(SkillVersionRow, text, tenant, skill, number))


def page_skill_versions(tenant: str, skill: str, query: PageQuery) -> Operation[Page[SkillVersionRow]]:
    """Return one page, ordered by number. Raises InvalidValue for an unknown cursor."""
    comparison, order = direction(query.descending)
    start = _MAX_NUMBER if query.descending else 0
    if query.after is not None:
        cursor = "SELECT version FROM skill_versions WHERE tenant = $1 AND skill = $2 AND id = $3"
        rows = yield sql(cursor, tenant, sanitise_id(skill), sanitise_id(query.after))
        if not rows:
            raise InvalidValue(f"There is nothing with the id {query.after!r} in this list.", param="after")
        start = rows[0][0]
    statement = f"SELECT {_VERSION_COLUMNS} FROM skill_versions WHERE tenant = $1 AND skill = $2 AND version"
    statement += f" {comparison} $3 ORDER BY version {order} LIMIT $4"
    rows = yield sql(statement, tenant, sanitise_id(skill), start, query.limit + 1)
    return cut_page(SkillVersionRow, rows, query.limit)


def set_default_version(tenant: str, skill: str, version: str) -> Operation[SkillRow | None]:
    """Make a version the default one, and return the skill; None if there is no such skill or version."""
    yield totals.lock_tenant(tenant)
    row = yield from get_skill_version(tenant, skill, version)
    if row is None:
        return None
    yield sql(_SET_DEFAULT, tenant, skill, row.version, row.name, row.description)
    return (yield from get_skill(tenant, skill))


def delete_skill(tenant: str, skill: str) -> Operation[list[str] | None]:
    """Delete a skill and its versions. Returns the content that is no longer used; None: there is no such skill."""
    yield totals.lock_tenant(tenant)
    if not (yield sql(f"DELETE FROM skills WHERE {_SKILL} RETURNING id", tenant, sanitise_id(skill))):
        return None
    freed = yield sql("DELETE FROM skill_versions WHERE tenant = $1 AND skill = $2 RETURNING content", tenant, skill)
    return (yield from find_unused(*[content for (content,) in freed]))


def delete_skill_version(tenant: str, skill: str, number: int) -> Operation[list[str]]:
    """Delete a version, and the skill with its last one. Returns the content that is no longer used.

    Raises InvalidValue for the default version of a skill that has others.
    """
    yield totals.lock_tenant(tenant)
    row = yield from get_skill(tenant, skill)
    if row is None:
        return []
    if (yield sql("SELECT COUNT(*) FROM skill_versions WHERE tenant = $1 AND skill = $2", tenant, skill))[0][0] == 1:
        return (yield from delete_skill(tenant, skill)) or [] if row.latest_version == number else []
    if row.default_version == number:
        raise InvalidValue("The default version cannot be deleted: make another one the default.", param="version")
    freed = yield sql(f"DELETE FROM skill_versions WHERE {_VERSION} RETURNING content", tenant, skill, number)
    yield sql(_SET_LATEST, tenant, skill)
    return (yield from find_unused(*[content for (content,) in freed]))


def _parse_number(version: str) -> int:
    """Return the number of a version as clients write it; 0, which is no version, for anything else."""
    is_number = version.isascii() and version.isdigit() and len(version) < 10 and version[0] != "0"
    return int(version) if is_number else 0
