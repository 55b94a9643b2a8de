"""Tests /v1/skills on the complete application; the openai package's types check every reply.

Covers `service/skills/skills.py`, `protocol/types/skills.py`, `protocol/bodies/skills.py` and
`transport/endpoints/skills.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from antiphon.service.skills import bundle
from antiphon.transport.endpoints import skills as endpoint
from tests.api.app import ApiServer, run_api
from tests.oracles.skills import check_object
from tests.support.asgi_client import AsgiResponse, Header, call
from tests.support.skill_zips import MANIFEST, make_zip

pytestmark = pytest.mark.anyio
FORM: Header = (b"content-type", b"multipart/form-data; boundary=XX")
Files = Sequence[tuple[str, bytes]]
ZIP: Files = [("rescue.zip", make_zip({"run.sh": b"echo"}))]


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with run_api() as server:
        yield server


def list_stored(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


async def send(server: ApiServer, path: str, files: Files = ZIP, *headers: Header, **fields: str) -> AsgiResponse:
    name = "files" if len(files) == 1 else "files[]"
    head = b'--XX\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
    parts = [head % (name.encode(), b'; filename="%s"' % path.encode(), data) for path, data in files]
    parts += [head % (key.encode(), b"", value.encode()) for key, value in fields.items()]
    body = b"".join(parts) + b"--XX--\r\n"
    length = (b"content-length", b"%d" % len(body))
    return await call(server.app, "POST", f"/v1/{path}", FORM, length, *headers, body=[body])


def accept(answer: AsgiResponse) -> Any:
    assert answer.status == 200, answer.body
    return check_object(answer.json())


async def create(server: ApiServer, files: Files = ZIP) -> Any:
    return accept(await send(server, "skills", files))


def find_error(answer: AsgiResponse) -> tuple[int, str | None, str | None]:
    return answer.status, answer.error["code"], answer.error["param"]


@pytest.mark.shows("E7.1")
async def test_a_skill_is_created_from_a_zip_retrieved_read_and_deleted(server: ApiServer) -> None:
    skill = await create(server)
    assert skill == {
        "id": skill["id"],
        "object": "skill",
        "created_at": skill["created_at"],
        "name": "island-rescue",
        "description": "How to be rescued.",
        "default_version": "1",
        "latest_version": "1",
    }
    path = f"skills/{skill['id']}"
    assert accept(await server.get(path)) == skill
    for content in ("content", "versions/1/content", "versions/latest/content"):
        answer = await server.get(f"{path}/{content}")
        assert (answer.body, answer.header(b"content-type")) == (ZIP[0][1], b"application/zip")
        assert answer.header(b"content-disposition") == b"attachment; filename*=UTF-8''island-rescue.zip"
    assert accept(await server.delete(path)) == {"id": skill["id"], "object": "skill.deleted", "deleted": True}
    for answer in (await server.get(path), await server.get(f"{path}/content"), await server.delete(path)):
        assert find_error(answer) == (404, None, "skill_id")


@pytest.mark.shows("E7.1")
async def test_a_skill_is_created_from_the_files_of_a_folder(server: ApiServer) -> None:
    skill = await create(server, [("rescue/SKILL.md", MANIFEST), ("rescue/tools/run.sh", b"echo"), ("rescue/a", b"")])
    content = (await server.get(f"skills/{skill['id']}/content")).body
    with ZipFile(BytesIO(content)) as archive:
        assert archive.namelist() == ["rescue/SKILL.md", "rescue/tools/run.sh", "rescue/a"]
        assert archive.read("rescue/tools/run.sh") == b"echo"
    alone = await create(server, [("SKILL.md", MANIFEST)])
    assert alone["name"] == "island-rescue"


@pytest.mark.shows("E7.2")
async def test_versions_are_created_listed_made_the_default_and_deleted(server: ApiServer) -> None:
    skill = await create(server)
    path = f"skills/{skill['id']}"
    renamed = [("b.zip", make_zip(manifest=b"---\nname: other\ndescription: Another one.\n---\n"))]
    second = accept(await send(server, f"{path}/versions", renamed))
    assert (second["version"], second["skill_id"], second["name"]) == ("2", skill["id"], "other")
    assert accept(await server.get(path)) == {**skill, "latest_version": "2"}
    third = accept(await send(server, f"{path}/versions", renamed, default="true"))
    assert accept(await server.get(f"{path}/versions/3")) == third
    default = accept(await server.get(path))
    assert (default["name"], default["default_version"], default["latest_version"]) == ("other", "3", "3")
    listed = accept(await server.get(f"{path}/versions?limit=2"))
    assert ([one["version"] for one in listed["data"]], listed["has_more"]) == (["3", "2"], True)
    rest = accept(await server.get(f"{path}/versions?after={listed['last_id']}"))
    assert ([one["version"] for one in rest["data"]], rest["has_more"]) == (["1"], False)
    assert accept(await server.post(path, {"default_version": "1"})) == {**skill, "latest_version": "3"}
    assert find_error(await server.delete(f"{path}/versions/1")) == (400, "invalid_value", "version")
    deleted = accept(await server.delete(f"{path}/versions/3"))
    assert deleted == {"id": third["id"], "object": "skill.version.deleted", "deleted": True, "version": "3"}
    assert accept(await server.get(path))["latest_version"] == "2"
    await server.delete(f"{path}/versions/2")
    accept(await server.delete(f"{path}/versions/1"))
    assert (await server.get(path)).status == 404


@pytest.mark.shows("E7.1")
async def test_skills_are_listed_page_by_page_in_both_directions(server: ApiServer) -> None:
    ids = [(await create(server))["id"] for _ in range(3)]
    assert [one["id"] for one in accept(await server.get("skills"))["data"]] == ids[::-1]
    first = accept(await server.get("skills?order=asc&limit=2"))
    assert ([one["id"] for one in first["data"]], first["has_more"]) == (ids[:2], True)
    last = accept(await server.get(f"skills?order=asc&after={first['last_id']}"))
    assert ([one["id"] for one in last["data"]], last["has_more"]) == (ids[2:], False)
    assert find_error(await server.get("skills?after=skill_x")) == (400, "invalid_value", "after")


@pytest.mark.shows("E7.3")
async def test_what_is_wrong_is_refused_by_name_and_leaves_nothing(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_api(files=str(tmp_path)) as server:
        skill = await create(server)
        path, stored = f"skills/{skill['id']}", list_stored(tmp_path)
        wrong: list[Files] = [[("a.zip", b"PK no zip")], [("f/a", b"1"), ("f/b", b"2")], [("/SKILL.md", MANIFEST)]]
        for files in wrong:
            for target in ("skills", f"{path}/versions"):
                assert find_error(await send(server, target, files)) == (400, "invalid_value", "files")
        assert find_error(await send(server, "skills", [])) == (400, "missing_required_parameter", "files")
        assert find_error(await send(server, f"{path}/versions", default="maybe")) == (400, "invalid_value", "default")
        assert find_error(await server.post(path, {"default_version": "2"}))[1:] == ("invalid_value", "default_version")
        assert find_error(await server.post(path, {}))[1:] == ("missing_required_parameter", "default_version")
        assert find_error(await server.get(f"{path}/versions/2")) == (404, None, "version")
        assert find_error(await send(server, "skills/skill_0/versions")) == (404, None, "skill_id")
        monkeypatch.setattr(endpoint, "MAX_ZIP_BYTES", 100)
        assert find_error(await send(server, "skills"))[0] == 413
        assert (await server.post("skills", {})).status == 415
        assert list_stored(tmp_path) == stored
        assert len(accept(await server.get("skills"))["data"]) == 1


@pytest.mark.shows("E7.3")
async def test_a_form_of_many_files_is_bounded(server: ApiServer) -> None:
    files = [("f/SKILL.md", MANIFEST), *[(f"f/{number}", b"") for number in range(bundle.MAX_FILES - 1)]]
    await create(server, files)
    assert find_error(await send(server, "skills", [*files, ("f/x", b"")])) == (400, "invalid_value", "files")
    assert (await send(server, "skills", [*files, *[(f"f/x{number}", b"") for number in range(100)]])).status == 400


@pytest.mark.shows("E7.4")
async def test_skills_of_other_tenants_are_unknown_and_each_has_its_own_quota(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one key-one\ntwo key-two\n")
    one, two = ((b"authorization", f"Bearer key-{name}".encode()) for name in ("one", "two"))
    async with run_api(api_key_file=keys, skills_max_entries=1) as server:
        answer = await send(server, "skills", ZIP, one)
        assert answer.status == 200, answer.body
        path = f"/v1/skills/{answer.json()['id']}"
        for method, target in (
            ("GET", path),
            ("GET", f"{path}/content"),
            ("GET", f"{path}/versions"),
            ("DELETE", path),
        ):
            assert (await call(server.app, method, target, two)).status == 404
        assert (await send(server, f"{path[4:]}/versions", ZIP, two)).status == 404
        assert (await send(server, "skills", ZIP, two)).status == 200
        assert find_error(await send(server, "skills", ZIP, one)) == (400, "storage_limit_reached", "files")


async def test_without_a_store_skills_are_refused() -> None:
    async with run_api(disable_store=True) as server:
        for answer in (await send(server, "skills"), await server.get("skills"), await server.get("skills/skill_0")):
            assert answer.status == 404
            assert "--disable-store" in answer.error["message"]


@pytest.mark.shows("E7.5")
async def test_contents_are_kept_while_a_version_has_them_and_deleted_with_it(tmp_path: Path) -> None:
    async with run_api(files=str(tmp_path)) as server:
        components: Any = server.app.lifecycle.components  # type: ignore[attr-defined]  # set by `build_app`
        skill = await create(server)
        path = f"skills/{skill['id']}"
        await asyncio.gather(*[send(server, f"{path}/versions") for _ in range(3)])
        kept = list_stored(tmp_path)
        assert len(kept) == 4
        await components.file_sweeper.delete_unused(float("inf"))
        assert list_stored(tmp_path) == kept
        accept(await server.delete(f"{path}/versions/2"))
        assert len(list_stored(tmp_path)) == 3
        accept(await server.delete(path))
        assert not list_stored(tmp_path)
