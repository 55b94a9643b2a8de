"""Code that tools run in containers: which container they get, and the files that the code writes."""

from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from antiphon.egress import EgressClient
from antiphon.errors import ContainerExpired, InvalidValue, Unavailable, UnknownContainer, UnsupportedParameter
from antiphon.ids import new_id
from antiphon.protocol.types.containers import CreateContainer
from antiphon.protocol.types.files import FileFields
from antiphon.protocol.types.tools import (
    AutoContainer,
    ContainerAuto,
    NetworkAllowlist,
    NetworkDisabled,
    SkillReference,
)
from antiphon.sandbox.base import CodeEvent, CodeResult, Figure, PrintedText
from antiphon.service.containers.code_runner import CodeRunner
from antiphon.service.containers.live_containers import LiveContainers
from antiphon.service.files import Files
from antiphon.service.skills.skills import Skills
from antiphon.stores.base import FileQuota, PageQuery
from antiphon.stores.sql.store import Store
from antiphon.testing.rows.response_rows import TENANT, Clock
from antiphon.tools.base import WrittenFile
from tests.support.skill_zips import make_zip

pytestmark = pytest.mark.anyio
AUTO = AutoContainer()
PARAM = "tools[0].container"
QUERY = PageQuery()


async def run(runner: CodeRunner, container_id: str, code: str) -> list[CodeEvent | WrittenFile]:
    return [event async for event in runner.run(TENANT, container_id, code)]


async def resolve(runner: CodeRunner, wanted: str | AutoContainer, previous: list[str]) -> str:
    """Find or make a container as a tool would."""
    container_id = await runner.find(TENANT, wanted, previous, PARAM)
    if container_id is None:
        assert isinstance(wanted, AutoContainer)
        container_id = new_id("cntr")
        await runner.make(TENANT, wanted, container_id, PARAM)
    return container_id


async def store_file(files: Files, content: bytes, name: str) -> str:
    async def pieces() -> AsyncIterator[bytes]:
        yield content

    stored = await files.write(pieces(), 1000)
    return (await files.create(TENANT, name, FileFields(purpose="user_data"), stored)).id


@pytest.mark.shows("E6.8")
async def test_an_auto_container_is_reused_while_it_is_alive(
    runner: CodeRunner, live: LiveContainers, clock: Clock
) -> None:
    first = await resolve(runner, AUTO, [])
    await run(runner, first, "x = 41")
    second = await resolve(runner, AUTO, ["cntr_unknown", first])
    assert second == first
    events = await run(runner, second, "x + 1")
    assert [event.text for event in events if isinstance(event, PrintedText)] == ["42\n"]
    clock.now += 1201
    third = await resolve(runner, AUTO, [first])
    assert third != first
    assert (await live.find(TENANT, third)).name == "auto"


@pytest.mark.shows("E6.8")
async def test_a_container_that_is_named_must_be_alive(runner: CodeRunner, live: LiveContainers, clock: Clock) -> None:
    row = await live.create(TENANT, CreateContainer(name="box"))
    assert await resolve(runner, row.id, ["cntr_other"]) == row.id
    await runner.check(TENANT, row.id, PARAM)
    for tenant, name in ((TENANT, "cntr_unknown"), ("other", row.id)):
        with pytest.raises(UnknownContainer) as unknown:
            await runner.check(tenant, name, PARAM)
        assert unknown.value.param == PARAM
    clock.now += 1201
    with pytest.raises(ContainerExpired) as expired:
        await resolve(runner, row.id, [])
    assert expired.value.param == PARAM
    with pytest.raises(ContainerExpired):
        await run(runner, row.id, "1")


@pytest.mark.shows("E6.8")
async def test_the_files_of_a_declaration_are_in_new_and_in_reused_containers(runner: CodeRunner, files: Files) -> None:
    one, two = await store_file(files, b"1", "one.txt"), await store_file(files, b"2", "two.txt")
    first = await resolve(runner, AutoContainer(file_ids=[one]), [])
    await run(runner, first, f"open('/mnt/data/{one}-one.txt', 'w').write('changed')")
    wanted = AutoContainer(file_ids=[one, two], memory_limit="1g", network_policy=NetworkDisabled())
    assert await resolve(runner, wanted, [first]) == first
    code = f"print(open('/mnt/data/{one}-one.txt').read(), open('/mnt/data/{two}-two.txt').read())"
    assert PrintedText("stdout", "changed 2\n") in await run(runner, first, code)


@pytest.mark.parametrize(
    ("wanted", "error", "field"),
    [
        (AutoContainer(memory_limit="64g"), InvalidValue, "memory_limit"),
        (AutoContainer(file_ids=["file-1"]), InvalidValue, "file_ids[0]"),
        (
            AutoContainer(network_policy=NetworkAllowlist(allowed_domains=["a.example"])),
            UnsupportedParameter,
            "network_policy",
        ),
    ],
)
async def test_a_declaration_that_cannot_be_honoured_is_refused_by_name(
    runner: CodeRunner, store: Store, live: LiveContainers, wanted: AutoContainer, error: type[InvalidValue], field: str
) -> None:
    with pytest.raises(error) as checked:
        await runner.check(TENANT, wanted, PARAM)
    assert checked.value.param == f"{PARAM}.{field}"
    with pytest.raises(error):
        await resolve(runner, wanted, [])
    assert await store.list_running_containers(live.sandbox.name) == []


async def test_a_container_with_other_memory_is_not_reused(
    runner: CodeRunner, live: LiveContainers, files: Files
) -> None:
    small = await resolve(runner, AUTO, [])
    settings = replace(live.settings, container_max_memory="4g")
    generous = CodeRunner(LiveContainers(live.store, files, live.sandbox, settings, EgressClient()))
    large = await resolve(generous, AutoContainer(memory_limit="4g"), [small])
    assert large != small
    assert await resolve(generous, AutoContainer(memory_limit="4g"), [small, large]) == large
    assert await resolve(generous, AUTO, [large, small]) == large


# Draws with a stand-in for matplotlib, which the interpreter of the tests does not have.
FIGURE = """
import sys, types
canvas = types.SimpleNamespace(savefig=lambda buffer, format: buffer.write(b'PNG'))
sys.modules['matplotlib.pyplot'] = types.SimpleNamespace(
    get_fignums=lambda: [1], figure=lambda number: canvas, close=lambda all: None
)
written = open('/mnt/data/a.txt', 'w').write('a')
"""


@pytest.mark.shows("E6.8")
async def test_a_figure_is_a_file_too_and_hides_no_other_file(runner: CodeRunner, live: LiveContainers) -> None:
    container = await resolve(runner, AUTO, [])
    figure, image, other, result = await run(runner, container, FIGURE)
    assert figure == Figure(b"PNG")
    assert isinstance(image, WrittenFile)
    assert isinstance(other, WrittenFile)
    assert isinstance(result, CodeResult)
    assert (image.is_figure, image.size, image.filename) == (True, 3, f"{image.file_id}.png")
    assert (other.is_figure, other.path) == (False, "/mnt/data/a.txt")
    row = await live.use(TENANT, container)
    assert [piece async for piece in live.read(TENANT, row, image.filename)] == [b"PNG"]


@pytest.mark.shows("E6.8")
async def test_files_that_code_writes_come_before_its_result(runner: CodeRunner, store: Store) -> None:
    container = await resolve(runner, AUTO, [])
    events = await run(runner, container, "for n in range(3): open(f'/mnt/data/{n}', 'w').write('x' * n)")
    *files, result = events
    assert [(file.path, file.size) for file in files if isinstance(file, WrittenFile)] == [
        ("/mnt/data/0", 0),
        ("/mnt/data/1", 1),
        ("/mnt/data/2", 2),
    ]
    assert isinstance(result, CodeResult)
    assert result.outcome == "completed"


async def test_files_beyond_those_that_are_recorded_are_counted(runner: CodeRunner) -> None:
    container = await resolve(runner, AUTO, [])
    *files, result = await run(runner, container, "for n in range(1007): open(f'/mnt/data/{n}', 'w').close()")
    assert isinstance(result, CodeResult)
    assert (len(files), result.unlisted) == (1000, 7)


async def test_a_running_call_keeps_its_container_alive_and_ends_with_a_use(
    runner: CodeRunner, live: LiveContainers, clock: Clock
) -> None:
    row = await live.create(TENANT, CreateContainer(name="box"))
    events = runner.run(TENANT, row.id, "print(1)\nprint(2)")
    await anext(events)
    [running] = (await live.store.page_containers(TENANT, QUERY)).rows
    assert running.expires == clock.now + 1200 + 30 + 60
    clock.now += 100
    async for _ in events:
        pass
    [ended] = (await live.store.page_containers(TENANT, QUERY)).rows
    assert (ended.last_active, ended.expires) == (clock.now, clock.now + 1200)


@pytest.mark.shows("E7.7")
async def test_a_declaration_is_bound_to_the_versions_that_it_means(
    runner: CodeRunner, live: LiveContainers, files: Files, store: Store
) -> None:
    skills = Skills(store, files, FileQuota(10, 10_000))
    skill = await skills.create(TENANT, [("a.zip", make_zip())])
    wanted = ContainerAuto(skills=[SkillReference(skill_id=skill.id)])
    bound, (offered,) = await runner.find_skills(TENANT, wanted, PARAM)
    assert bound == ContainerAuto(skills=[SkillReference(skill_id=skill.id, version="1")])
    await skills.create_version(TENANT, skill.id, [("b.zip", make_zip({"new": b""}))], make_default=True)
    container_id = await resolve(runner, bound, [])
    folder = offered.path.rpartition("/")[2]
    assert [file.path for file in await live.sandbox.list_files(container_id, "skills")] == [f"{folder}/SKILL.md"]
    assert await runner.find_skills(TENANT, container_id, PARAM) == (container_id, [offered])
    assert await runner.find_skills("other", container_id, PARAM) == (container_id, [])
    assert await resolve(runner, wanted, [container_id]) == container_id  # the version that is the default now
    assert len(await live.sandbox.list_files(container_id, "skills")) == 3


@pytest.mark.shows("E7.6")
async def test_a_skill_that_was_not_unpacked_to_its_end_is_unpacked_again(
    runner: CodeRunner, live: LiveContainers, files: Files, store: Store
) -> None:
    skills = Skills(store, files, FileQuota(10, 10_000))
    skill = await skills.create(TENANT, [("a.zip", make_zip({"a": b"whole"}))])
    wanted = ContainerAuto(skills=[SkillReference(skill_id=skill.id)])
    _, (offered,) = await runner.find_skills(TENANT, wanted, PARAM)
    container_id = await resolve(runner, AUTO, [])

    async def pieces() -> AsyncIterator[bytes]:
        yield b"who"

    await live.sandbox.put(container_id, f"{offered.path.rpartition('/')[2]}/a", pieces(), "skills")
    assert await resolve(runner, wanted, [container_id]) == container_id
    events = await run(runner, container_id, f"open('{offered.path}/a').read()")
    assert [event.text for event in events if isinstance(event, PrintedText)] == ["'whole'\n"]


async def test_a_container_that_cannot_hold_its_skills_is_not_made(
    runner: CodeRunner, live: LiveContainers, files: Files, store: Store
) -> None:
    skills = Skills(store, files, FileQuota(10, 10_000))
    skill = await skills.create(TENANT, [("a.zip", make_zip())])
    found = await live.skills.find(TENANT, [SkillReference(skill_id=skill.id)], "skills")
    await skills.delete(TENANT, skill.id)  # after it was found
    row = await live.create(TENANT, CreateContainer(name="box"))
    with pytest.raises(Unavailable):
        await live.add_skills(TENANT, row, found)
    with pytest.raises(InvalidValue) as refused:
        await runner.make(TENANT, ContainerAuto(skills=[SkillReference(skill_id=skill.id)]), new_id("cntr"), PARAM)
    assert refused.value.param == f"{PARAM}.skills[0]"
    assert len((await store.page_containers(TENANT, QUERY)).rows) == 1
