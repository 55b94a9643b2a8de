"""Containers with the `openai` package, sync and async, against a real server with a real sandbox."""

import io
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.support.sandboxes import find_python, keep_sandbox
from tests.support.server_process import ServerProcess, run_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with keep_sandbox("auto") as found:
        if isinstance(found, str):
            pytest.skip(f"permission: no sandbox: {found}")
        with run_server(
            "--engine", "fake", "--sandbox-folder", str(found.folder), "--sandbox-python", find_python(),
            "--container-max-memory", "4g", "--workers", "2",
            "--store", str(tmp_path_factory.mktemp("store") / "my.db"),
        ) as server:  # fmt: skip
            yield server


def make_client(server: ServerProcess) -> OpenAI:
    return OpenAI(base_url=server.v1, api_key="unused", max_retries=0)


@pytest.fixture
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with make_client(server) as client:
        yield client


@pytest.mark.shows("E6.1", "E6.2")
def test_every_resource_of_containers_works_with_the_sdk(client: OpenAI) -> None:
    stored = client.files.create(file=("table.csv", io.BytesIO(b"a,b\n1,2\n")), purpose="user_data")
    container = client.containers.create(
        name="work", file_ids=[stored.id], memory_limit="4g", network_policy={"type": "disabled"},
        expires_after={"anchor": "last_active_at", "minutes": 20},
    )  # fmt: skip
    assert (container.status, container.memory_limit, container.name) == ("running", "4g", "work")
    assert client.containers.retrieve(container.id).id == container.id
    assert [one.id for one in client.containers.list(name="work", order="asc", limit=1)] == [container.id]
    files = client.containers.files
    sent = files.create(container.id, file=("notes.txt", io.BytesIO(b"some notes")))
    copied = files.create(container.id, file_id=stored.id)
    assert (sent.bytes, sent.source, copied.path) == (10, "user", f"/mnt/data/{stored.id}-table.csv")
    assert files.retrieve(sent.id, container_id=container.id).path == sent.path
    listed = [file.id for file in files.list(container.id, order="asc", limit=1)]  # the SDK follows the pages
    assert listed == [copied.id, sent.id]
    assert files.content.retrieve(sent.id, container_id=container.id).read() == b"some notes"
    files.delete(sent.id, container_id=container.id)
    with pytest.raises(openai.NotFoundError) as missing:
        files.retrieve(sent.id, container_id=container.id)
    assert missing.value.param == "file_id"
    client.containers.delete(container.id)
    with pytest.raises(openai.NotFoundError) as deleted:
        client.containers.retrieve(container.id)
    assert deleted.value.code == "container_not_found"


@pytest.mark.shows("E6.4")
def test_a_container_is_lost_with_a_server_that_is_killed(tmp_path: Path) -> None:
    with TemporaryDirectory(prefix="sandbox-") as folder:
        os.chmod(folder, 0o711)
        store, sandbox = ("--store", str(tmp_path / "my.db")), ("--sandbox-folder", folder)
        flags = ("--engine", "fake", *store, *sandbox, "--sandbox-python", find_python())
        with run_server(*flags) as server, make_client(server) as client:
            try:
                container = client.containers.create(name="work")
            except openai.BadRequestError as error:
                pytest.skip(f"permission: no sandbox: {error.message}")
            file = client.containers.files.create(container.id, file=("a.txt", io.BytesIO(b"a")))
            server.process.kill()
            server.process.wait(60)
        with run_server(*flags) as server, make_client(server) as client:
            with pytest.raises(openai.NotFoundError, match="lost with its sandbox") as lost:
                client.containers.files.content.retrieve(file.id, container_id=container.id)
            assert (lost.value.code, lost.value.param) == ("container_expired", "container_id")
            assert client.containers.retrieve(container.id).status == "expired"
            with pytest.raises(openai.NotFoundError, match="has expired"):
                client.containers.files.list(container.id)


@pytest.mark.anyio
async def test_the_async_client_uploads_and_reads_a_large_file(server: ServerProcess, tmp_path: Path) -> None:
    content = bytes(range(256)) * 40_000
    path = tmp_path / "large.bin"
    path.write_bytes(content)
    async with AsyncOpenAI(base_url=server.v1, api_key="unused") as client:
        container = await client.containers.create(name="large")
        file = await client.containers.files.create(container.id, file=path)
        received = await client.containers.files.content.retrieve(file.id, container_id=container.id)
        assert received.read() == content
        await client.containers.delete(container.id)
