"""Tests /v1/containers on the complete application with a real sandbox; the openai package's types check every reply.

Covers `protocol/types/containers.py`, `protocol/bodies/containers.py`, `service/containers/containers.py` and
`transport/endpoints/containers.py`.
"""

from pathlib import Path
from time import time
from typing import Any

import pytest

from antiphon.stores.registry import make_store
from antiphon.testing.rows.response_rows import Clock
from tests.api.app import run_api
from tests.api.containers.container_api import ContainerApi
from tests.support.asgi_client import call

pytestmark = pytest.mark.anyio


@pytest.mark.shows("E6.1")
async def test_a_container_is_created_retrieved_and_deleted(api: ContainerApi) -> None:
    container = await api.create(name="Zahlen", expires_after={"anchor": "last_active_at", "minutes": 5})
    assert container == {
        "id": container["id"],
        "object": "container",
        "created_at": container["created_at"],
        "status": "running",
        "expires_after": {"anchor": "last_active_at", "minutes": 5},
        "last_active_at": container["created_at"],
        "memory_limit": "1g",
        "name": "Zahlen",
        "network_policy": {"type": "disabled"},
    }
    path = f"containers/{container['id']}"
    assert {**await api.get(path), "last_active_at": container["created_at"]} == container
    status = await api.components.sandbox.status()
    assert container["id"] in status.containers
    assert await api.delete(path) == {"id": container["id"], "object": "container.deleted", "deleted": True}
    assert container["id"] not in (await api.components.sandbox.status()).containers
    for method in ("GET", "DELETE"):
        assert await api.refuse(method, path) == (404, "container_not_found", "container_id")


@pytest.mark.shows("E6.1")
async def test_containers_are_listed_page_by_page_in_both_directions_and_by_name(api: ContainerApi) -> None:
    ids = [(await api.create(name=name))["id"] for name in ("a", "b", "a")]
    assert [one["id"] for one in (await api.get("containers"))["data"]] == ids[::-1]
    first = await api.get("containers?order=asc&limit=2")
    assert ([one["id"] for one in first["data"]], first["has_more"]) == (ids[:2], True)
    rest = await api.get(f"containers?order=asc&after={first['last_id']}")
    assert ([one["id"] for one in rest["data"]], rest["has_more"]) == (ids[2:], False)
    assert [one["id"] for one in (await api.get("containers?name=a"))["data"]] == [ids[2], ids[0]]
    assert await api.refuse("GET", "containers?after=cntr_x") == (400, "invalid_value", "after")
    assert await api.refuse("GET", "containers?limit=101") == (400, "invalid_value", "limit")


@pytest.mark.shows("E6.3")
@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"name": ""}, "invalid_value", "name"),
        ({"name": None}, "missing_required_parameter", "name"),
        ({"expires_after": {"anchor": "created_at", "minutes": 5}}, "invalid_value", "expires_after.anchor"),
        ({"expires_after": {"anchor": "last_active_at", "minutes": 21}}, "invalid_value", "expires_after.minutes"),
        ({"memory_limit": "2g"}, "invalid_value", "memory_limit"),
        ({"memory_limit": "4g"}, "invalid_value", "memory_limit"),
        (
            {"network_policy": {"type": "allowlist", "allowed_domains": ["example.com"]}},
            "unsupported_parameter",
            "network_policy",
        ),
        ({"skills": [{"type": "skill_reference", "skill_id": "skill_1"}]}, "invalid_value", "skills[0]"),
        ({"file_ids": ["file-1"]}, "invalid_value", "file_ids[0]"),
    ],
)
async def test_what_a_container_cannot_be_is_refused_by_name(
    api: ContainerApi, fields: dict[str, Any], code: str, param: str
) -> None:
    assert await api.refuse("POST", "containers", {"name": "box", **fields}) == (400, code, param)
    assert (await api.get("containers"))["data"] == []


@pytest.mark.shows("E6.3")
async def test_a_policy_without_network_and_memory_within_the_cap_are_honoured(sandbox_options: dict[str, Any]) -> None:
    async with run_api(**sandbox_options, container_max_memory="4g") as server:
        api = ContainerApi(server)
        container = await api.create(memory_limit="4g", network_policy={"type": "disabled"}, skills=[], file_ids=None)
        assert (container["memory_limit"], container["network_policy"]) == ("4g", {"type": "disabled"})
        files = await api.run(container["id"], "x = bytearray(3 << 30)\nopen('/mnt/data/a', 'w').write('got it')")
        assert await api.read(container["id"], files[0].file_id) == b"got it"


@pytest.mark.shows("E6.4")
async def test_a_container_expires_after_its_last_use_and_keeps_its_description(
    sandbox_options: dict[str, Any],
) -> None:
    clock = Clock()
    clock.now = time()
    async with run_api(make_store("memory", 1000.0, clock), **sandbox_options) as server:
        api = ContainerApi(server)
        container = await api.create(expires_after={"anchor": "last_active_at", "minutes": 1})
        file = await api.upload(container["id"], b"data")
        path = f"containers/{container['id']}"
        for _ in range(3):
            clock.now += 50
            assert (await api.get(path))["status"] == "running"
        clock.now += 61
        assert (await api.get(path))["status"] == "expired"
        assert [one["status"] for one in (await api.get("containers"))["data"]] == ["expired"]
        expired = (404, "container_expired", "container_id")
        assert await api.refuse("GET", f"{path}/files") == expired
        assert await api.refuse("GET", f"{path}/files/{file['id']}/content") == expired
        assert await api.refuse("POST", f"{path}/files", {"file_id": "file-1"}) == expired
        await api.components.container_sweeper.sweep()
        assert container["id"] not in (await api.components.sandbox.status()).containers
        assert (await api.get(path))["status"] == "expired"
        clock.now += 86_500
        await api.components.container_sweeper.sweep()
        assert await api.refuse("GET", path) == (404, "container_not_found", "container_id")


@pytest.mark.shows("E6.5")
async def test_a_tenant_has_a_maximum_of_containers(sandbox_options: dict[str, Any]) -> None:
    async with run_api(**sandbox_options, containers_max_entries=1) as server:
        api = ContainerApi(server)
        first = await api.create()
        assert await api.refuse("POST", "containers", {"name": "box"}) == (400, "storage_limit_reached", None)
        await api.delete(f"containers/{first['id']}")
        await api.create()


@pytest.mark.shows("E6.2", "E6.5")
async def test_containers_of_other_tenants_are_unknown(sandbox_options: dict[str, Any], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one key-of-one\ntwo key-of-two\n")
    async with run_api(**sandbox_options, api_key_file=keys) as server:
        one, two = ((b"authorization", b"Bearer " + key) for key in (b"key-of-one", b"key-of-two"))
        answer = await server.post("containers", {"name": "box"}, one)
        path = f"/v1/containers/{answer.json()['id']}"
        for suffix in ("", "/files", "/files/cfile_1", "/files/cfile_1/content"):
            assert (await call(server.app, "GET", path + suffix, two)).error["code"] == "container_not_found"
        assert (await call(server.app, "DELETE", path, two)).status == 404
        assert (await call(server.app, "GET", path, one)).status == 200


@pytest.mark.shows("E6.6")
async def test_a_server_that_runs_no_code_names_the_flag() -> None:
    async with run_api(sandbox="none") as server:
        for answer in (
            await server.post("containers", {"name": "box"}),
            await server.get("containers"),
            await server.get("containers/cntr_1"),
        ):
            assert (answer.status, answer.error["code"]) == (400, "sandbox_disabled")
            assert "--sandbox none" in answer.error["message"]


@pytest.mark.shows("E6.6")
async def test_a_host_without_a_sandbox_names_the_flag_and_keeps_nothing(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho this kernel has no Landlock >&2\nexit 1\n")
    python.chmod(0o755)
    async with run_api(sandbox_folder=tmp_path / "sandbox", sandbox_python=str(python)) as server:
        for _ in range(2):
            answer = await server.post("containers", {"name": "box"})
            assert (answer.status, answer.error["code"]) == (400, "sandbox_disabled")
            assert "(--sandbox auto): this kernel has no Landlock" in answer.error["message"]
        assert (await server.get("containers")).json()["data"] == []


@pytest.mark.shows("E6.7")
async def test_starts_and_running_containers_are_counted(api: ContainerApi) -> None:
    await api.create()
    await api.components.container_sweeper.sweep()
    page = (await call(api.server.app, "GET", "/metrics")).body.decode()
    assert "antiphon_containers_running 1" in page
    assert f'antiphon_sandbox_level{{level="{(await api.components.sandbox.status()).level}"}} 1' in page
    assert 'antiphon_container_starts_total{outcome="started"} 1' in page
    assert 'antiphon_container_kills_total{reason="lost"} 0' in page
