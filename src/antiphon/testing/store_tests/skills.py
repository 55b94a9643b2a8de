"""Contract suite of stores: skills and their versions.

Covers `stores/sql/skills.py`.
"""

import asyncio

import pytest
from msgspec.structs import replace

from antiphon.errors import InvalidValue, StorageLimitReached
from antiphon.stores.base import FileQuota, PageQuery, SkillRow
from antiphon.stores.sql.store import Store
from antiphon.testing.rows.response_rows import TENANT, Clock
from antiphon.testing.rows.skill_rows import QUOTA, make_skill_version
from antiphon.testing.store_tests.files import make_file
from antiphon.testing.store_tests.responses import MALFORMED_IDS


async def add_versions(store: Store, clock: Clock, count: int) -> tuple[SkillRow, list[str]]:
    """Add a skill with versions of different names. Returns it and the keys of their contents."""
    first = make_skill_version(clock, name="name 1")
    await store.add_skill(TENANT, first, QUOTA)
    contents = [first.content]
    for number in range(2, count + 1):
        row = make_skill_version(clock, first.skill, f"name {number}")
        added = await store.add_skill_version(TENANT, row, QUOTA)
        assert added == replace(row, version=number)
        contents.append(row.content)
    skill = await store.skill(TENANT, first.skill)
    assert skill is not None
    return skill, contents


async def test_a_skill_is_read_as_added_by_its_tenant_only(store: Store, clock: Clock) -> None:
    row = make_skill_version(clock)
    skill = SkillRow(
        id=row.skill, created=row.created, name=row.name, description=row.description, default_version=1,
        latest_version=1,
    )  # fmt: skip
    assert await store.add_skill(TENANT, row, QUOTA) == skill
    assert await store.skill(TENANT, skill.id) == skill
    for version in (None, "latest", "1"):
        assert await store.skill_version(TENANT, skill.id, version) == replace(row, version=1)
        assert await store.skill_version("other", skill.id, version) is None
    for name in (*MALFORMED_IDS, "2", "0", "01", "-1", "1" * 30, "١", ""):
        assert await store.skill_version(TENANT, skill.id, name) is None
    for tenant, name in (("other", skill.id), *((TENANT, name) for name in MALFORMED_IDS)):
        assert await store.skill(tenant, name) is None
        assert await store.set_default_version(tenant, name, "1") is None
        assert await store.delete_skill(tenant, name) is None
        assert await store.delete_skill_version(tenant, name, 1) == []
        assert await store.add_skill_version(tenant, make_skill_version(clock, name), QUOTA) is None
        assert (await store.page_skill_versions(tenant, name, PageQuery())).rows == []
    assert (await store.page_skills("other", PageQuery())).rows == []
    assert (await store.page_skills(TENANT, PageQuery())).rows == [skill]


async def test_a_repeated_call_adds_nothing(store: Store, clock: Clock) -> None:
    first = make_skill_version(clock)
    assert await store.add_skill(TENANT, first, QUOTA) == await store.add_skill(TENANT, first, QUOTA)
    second = make_skill_version(clock, first.skill)
    added = [await store.add_skill_version(TENANT, second, QUOTA) for _ in range(2)]
    assert added == [replace(second, version=2)] * 2


async def test_versions_are_numbered_in_order_by_concurrent_calls(
    store: Store, other_store: Store, clock: Clock
) -> None:
    skill, _ = await add_versions(store, clock, 1)
    rows = [make_skill_version(clock, skill.id) for _ in range(6)]
    adding = [
        one.add_skill_version(TENANT, row, QUOTA) for one, row in zip((store, other_store) * 3, rows, strict=True)
    ]
    added = [row.version for row in await asyncio.gather(*adding) if row is not None]
    assert sorted(added) == [2, 3, 4, 5, 6, 7]
    found = await store.skill(TENANT, skill.id)
    assert found == replace(skill, latest_version=7)


async def test_the_default_version_gives_the_skill_its_name(store: Store, clock: Clock) -> None:
    skill, _ = await add_versions(store, clock, 3)
    assert (skill.name, skill.default_version, skill.latest_version) == ("name 1", 1, 3)
    second = await store.set_default_version(TENANT, skill.id, "2")
    assert second is not None
    assert (second.name, second.description, second.default_version) == ("name 2", "Über name 2.", 2)
    assert await store.set_default_version(TENANT, skill.id, "4") is None
    added = await store.add_skill_version(TENANT, make_skill_version(clock, skill.id, "new"), QUOTA, True)
    assert added is not None
    found = await store.skill(TENANT, skill.id)
    assert found is not None
    assert (found.name, found.default_version, found.latest_version) == ("new", 4, 4)


async def test_a_version_is_deleted_unless_it_is_the_default_and_the_last_one_with_its_skill(
    store: Store, clock: Clock
) -> None:
    skill, contents = await add_versions(store, clock, 3)
    with pytest.raises(InvalidValue, match="default") as refused:
        await store.delete_skill_version(TENANT, skill.id, 1)
    assert refused.value.param == "version"
    assert await store.delete_skill_version(TENANT, skill.id, 3) == [contents[2]]
    assert await store.delete_skill_version(TENANT, skill.id, 3) == []
    assert await store.skill(TENANT, skill.id) == replace(skill, latest_version=2)
    again = await store.add_skill_version(TENANT, make_skill_version(clock, skill.id), QUOTA)
    assert again is not None
    assert again.version == 4  # a number is not used twice
    for number in (4, 2):
        await store.delete_skill_version(TENANT, skill.id, number)
    assert await store.delete_skill_version(TENANT, skill.id, 1) == [contents[0]]
    assert await store.skill(TENANT, skill.id) is None


async def test_a_skill_is_deleted_with_all_versions(store: Store, clock: Clock) -> None:
    skill, contents = await add_versions(store, clock, 3)
    assert await store.find_unused(*contents, "other") == ["other"]
    unused = await store.delete_skill(TENANT, skill.id)
    assert unused is not None
    assert sorted(unused) == sorted(contents)
    assert await store.find_unused(*contents) == contents
    assert await store.skill_version(TENANT, skill.id, "1") is None
    assert await store.delete_skill(TENANT, skill.id) is None


async def test_lists_neither_skip_nor_repeat(store: Store, clock: Clock) -> None:
    skills = []
    for _ in range(5):
        skills.append((await add_versions(store, clock, 3))[0].id)
        clock.now += 1
    for descending in (False, True):
        listed, after = list[str](), None
        while True:
            page = await store.page_skills(TENANT, PageQuery(after=after, limit=2, descending=descending))
            listed += [row.id for row in page.rows]
            if not page.has_more:
                break
            after = listed[-1]
        assert listed == (skills[::-1] if descending else skills)
        first = await store.page_skill_versions(TENANT, skills[0], PageQuery(limit=2, descending=descending))
        later = PageQuery(after=first.rows[-1].id, descending=descending)
        last = await store.page_skill_versions(TENANT, skills[0], later)
        numbers = [row.version for row in (*first.rows, *last.rows)]
        assert (numbers, first.has_more, last.has_more) == ([3, 2, 1] if descending else [1, 2, 3], True, False)
        for page_of in (store.page_skills(TENANT, later), store.page_skill_versions(TENANT, skills[1], later)):
            with pytest.raises(InvalidValue) as refused:
                await page_of
            assert refused.value.param == "after"


async def test_a_tenant_has_a_maximum_of_versions_and_of_bytes_that_files_share(store: Store, clock: Clock) -> None:
    quota = FileQuota(2, 100)
    first = make_skill_version(clock, size=50)
    await store.add_skill(TENANT, first, quota)
    await store.add_file(TENANT, make_file(clock, size=30), quota)
    with pytest.raises(StorageLimitReached, match="80 are used") as full:
        await store.add_skill_version(TENANT, make_skill_version(clock, first.skill, size=30), quota)
    assert full.value.param == "files"
    with pytest.raises(StorageLimitReached, match="80 are used"):
        await store.add_file(TENANT, make_file(clock, size=30), quota)
    await store.add_skill(TENANT, make_skill_version(clock), quota)
    with pytest.raises(StorageLimitReached, match="At most 2 versions") as refused:
        await store.add_skill(TENANT, make_skill_version(clock), quota)
    assert refused.value.param == "files"
    assert len((await store.page_skills(TENANT, PageQuery())).rows) == 2  # nothing remains of what was refused
    await store.add_skill("other", make_skill_version(clock), quota)
