"""Every resource of skills with the `openai` package, sync and async, against a real server."""

import io
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.support.server_process import ServerProcess, run_server
from tests.support.skill_zips import MANIFEST, make_zip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with run_server("--engine", "fake", "--store", str(tmp_path_factory.mktemp("store") / "my.db")) as server:
        yield server


@pytest.mark.shows("E7.1", "E7.2")
def test_every_resource_of_skills_works_with_the_sdk(server: ServerProcess) -> None:
    with OpenAI(base_url=server.v1, api_key="unused", max_retries=0) as client:
        skills = client.skills
        skill = skills.create(files=[("rescue/SKILL.md", MANIFEST), ("rescue/run.sh", b"echo")])
        assert (skill.name, skill.description) == ("island-rescue", "How to be rescued.")
        assert skills.retrieve(skill.id) == skill
        with ZipFile(io.BytesIO(skills.content.retrieve(skill.id).read())) as archive:
            assert archive.namelist() == ["rescue/SKILL.md", "rescue/run.sh"]
        second = skills.versions.create(skill.id, files=("a.zip", make_zip()), default=True)
        third = skills.versions.create(skill.id, files=("a.zip", make_zip(), "application/zip"))
        assert (second.version, third.version) == ("2", "3")
        assert skills.retrieve(skill.id).default_version == "2"
        assert skills.update(skill.id, default_version="3").default_version == "3"
        listed = [one.version for one in skills.versions.list(skill.id, order="asc", limit=1)]  # it follows the pages
        assert listed == ["1", "2", "3"]
        assert skills.versions.retrieve("2", skill_id=skill.id) == second
        assert skills.versions.content.retrieve("2", skill_id=skill.id).read() == make_zip()
        assert skills.versions.delete("2", skill_id=skill.id).version == "2"
        other = skills.create(files=("a.zip", make_zip()))
        assert [one.id for one in skills.list(order="asc", limit=1)] == [skill.id, other.id]
        for one in (skill, other):
            assert skills.delete(one.id).deleted
        with pytest.raises(openai.NotFoundError) as unknown:
            skills.retrieve(skill.id)
        assert unknown.value.param == "skill_id"
        with pytest.raises(openai.BadRequestError) as refused:
            skills.create(files=("a.zip", b"PK"))
        assert refused.value.param == "files"


@pytest.mark.shows("E7.5")
def test_a_skill_survives_a_server_that_is_killed_after_its_answer(tmp_path: Path) -> None:
    flags = ("--engine", "fake", "--store", str(tmp_path / "my.db"))
    with run_server(*flags) as server, OpenAI(base_url=server.v1, api_key="unused", max_retries=0) as client:
        kept, deleted = (client.skills.create(files=("a.zip", make_zip())) for _ in range(2))
        client.skills.delete(deleted.id)
        server.process.kill()
        server.process.wait(60)
    with run_server(*flags) as server, OpenAI(base_url=server.v1, api_key="unused", max_retries=0) as client:
        assert client.skills.content.retrieve(kept.id).read() == make_zip()
        assert [one.id for one in client.skills.list()] == [kept.id]


@pytest.mark.anyio
@pytest.mark.shows("E7.1", "E7.2")
async def test_the_async_client_has_the_same_resources(server: ServerProcess) -> None:
    async with AsyncOpenAI(base_url=server.v1, api_key="unused", max_retries=0) as client:
        skills = client.skills
        skill = await skills.create(files=("a.zip", make_zip({"big": bytes(5_000_000)})))
        version = await skills.versions.create(skill.id, files=[("f/SKILL.md", MANIFEST), ("f/a", b"")])
        assert (await skills.update(skill.id, default_version=version.version)).latest_version == "2"
        assert (await skills.retrieve(skill.id)).default_version == "2"
        assert [one.id async for one in skills.list()] == [skill.id]
        assert [one.version async for one in skills.versions.list(skill.id)] == ["2", "1"]
        assert (await skills.versions.retrieve("1", skill_id=skill.id)).name == "island-rescue"
        content = await skills.versions.content.retrieve("1", skill_id=skill.id)
        assert content.read() == make_zip({"big": bytes(5_000_000)})
        assert (await skills.content.retrieve(skill.id)).read() != content.read()
        assert (await skills.versions.delete("1", skill_id=skill.id)).deleted
        assert (await skills.delete(skill.id)).deleted
