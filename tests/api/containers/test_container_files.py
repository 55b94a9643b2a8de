"""Tests the files of containers on the complete application with a real sandbox."""

import hashlib

import pytest

from tests.api.containers.container_api import ContainerApi

pytestmark = pytest.mark.anyio


@pytest.mark.shows("E6.2")
async def test_an_uploaded_file_is_in_the_container_and_is_read_back(api: ContainerApi) -> None:
    container_id = (await api.create())["id"]
    content = bytes(range(256)) * 10_000  # several pieces
    file = await api.upload(container_id, content, "täglich/wert.bin")
    assert file["path"] == f"/mnt/data/{file['id'].removeprefix('cfile_')}-täglich_wert.bin"
    assert (file["bytes"], file["container_id"], file["source"]) == (len(content), container_id, "user")
    path = f"containers/{container_id}/files/{file['id']}"
    assert await api.get(path) == file
    assert await api.read(container_id, file["id"]) == content
    code = f"import hashlib\nd = hashlib.sha256(open({file['path']!r}, 'rb').read()).hexdigest()\n"
    [written] = await api.run(container_id, code + "open('/mnt/data/digest', 'w').write(d)")
    assert await api.read(container_id, written.file_id) == hashlib.sha256(content).hexdigest().encode()
    assert await api.delete(path) == {"id": file["id"], "object": "container.file.deleted", "deleted": True}
    for method, suffix in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        assert await api.refuse(method, path + suffix) == (404, None, "file_id")


@pytest.mark.shows("E6.2")
async def test_stored_files_are_copied_at_creation_or_later(api: ContainerApi) -> None:
    first, second = await api.store_file(b"one", "1.txt"), await api.store_file(b"", "2.txt")
    container_id = (await api.create(file_ids=[first, first]))["id"]
    added = await api.post(f"containers/{container_id}/files", {"file_id": second})
    assert (added["path"], added["bytes"], added["source"]) == (f"/mnt/data/{second}-2.txt", 0, "user")
    page = await api.get(f"containers/{container_id}/files?order=asc")
    assert [file["path"] for file in page["data"]] == [f"/mnt/data/{first}-1.txt", added["path"]]
    assert await api.read(container_id, page["first_id"]) == b"one"
    assert await api.read(container_id, added["id"]) == b""
    assert await api.post(f"containers/{container_id}/files", {"file_id": second}) == added  # it is replaced
    bad = [({"file_id": "file-1"}, "invalid_value"), ({}, "missing_required_parameter")]
    for body, code in bad:
        assert await api.refuse("POST", f"containers/{container_id}/files", body) == (400, code, "file_id")


@pytest.mark.shows("E6.2")
async def test_files_that_code_writes_are_listed_and_those_that_it_deletes_are_not_found(api: ContainerApi) -> None:
    container_id = (await api.create())["id"]
    user = await api.upload(container_id, b"old", "a.txt")
    code = "import os\nos.mkdir('/mnt/data/out')\nopen('/mnt/data/out/b.csv', 'w').write('1,2')\n"
    [written] = await api.run(container_id, code)
    file = await api.get(f"containers/{container_id}/files/{written.file_id}")
    assert (file["path"], file["bytes"], file["source"]) == ("/mnt/data/out/b.csv", 3, "assistant")
    assert (written.path, written.filename, written.size) == (file["path"], "b.csv", 3)
    [changed] = await api.run(container_id, f"open({user['path']!r}, 'w').write('newer')")
    assert changed.file_id == user["id"]
    assert await api.read(container_id, user["id"]) == b"newer"
    page = await api.get(f"containers/{container_id}/files?limit=1")
    assert (page["last_id"], page["has_more"]) == (written.file_id, True)
    await api.run(container_id, f"os.remove({user['path']!r})\nos.remove('/mnt/data/out/b.csv')")
    assert await api.refuse("GET", f"containers/{container_id}/files/{user['id']}/content") == (404, None, "file_id")
    assert await api.refuse("GET", f"containers/{container_id}/files/{user['id']}") == (404, None, "file_id")
    await api.delete(f"containers/{container_id}/files/{written.file_id}")
    assert (await api.get(f"containers/{container_id}/files"))["data"] == []


async def test_a_name_that_is_too_long_for_a_file_keeps_its_end(api: ContainerApi) -> None:
    container_id = (await api.create())["id"]
    file = await api.upload(container_id, b"x", "ä" * 150 + ".csv")
    name = file["path"].removeprefix("/mnt/data/")
    assert len(name.encode()) <= 255
    assert name.endswith("ää.csv")
