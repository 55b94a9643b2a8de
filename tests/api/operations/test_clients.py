"""Tests /v1/antiphon/clients and /v1/antiphon/user_agents: files of clients, and programs whose requests have arrived.

Covers `protocol/types/operations/clients.py`, `service/operations/user_agents.py` and
`transport/operating/clients.py`.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.clients.catalog import CLIENTS
from antiphon.service.operations.user_agents import UserAgentLog
from tests.api.app import ApiServer, run_api
from tests.support.asgi_client import AsgiResponse, Header, call

pytestmark = [pytest.mark.anyio, pytest.mark.shows("I2.6")]

CODEX: Header = (b"user-agent", b"codex_exec/1.0")


async def list_programs(server: ApiServer, query: str = "", *headers: Header) -> Any:
    answer = await call(server.app, "GET", f"/v1/antiphon/user_agents{query}", *headers)
    assert answer.status == 200, answer.body
    assert (b"connection", b"close") in answer.headers
    return answer.json()


async def configure(server: ApiServer, client: str, query: str = "", *headers: Header) -> AsgiResponse:
    return await call(server.app, "GET", f"/v1/antiphon/clients/{client}{query}", *headers)


async def test_all_clients_are_listed_and_configured() -> None:
    async with run_api() as server:
        listed = (await server.get("antiphon/clients")).json()["data"]
        assert [client["name"] for client in listed] == [*CLIENTS]
        for name in CLIENTS:
            client = (await configure(server, name, "?url=http://gpu:8000/&model=any")).json()
            assert (client["name"], client["model"]) == (name, "any")
            assert "gpu:8000" in client["files"][0]["text"]
            assert client["command"] == f"antiphon connect {name} --url http://gpu:8000 --model any"


async def test_the_address_is_that_of_the_request_unless_it_is_named() -> None:
    async with run_api() as server:
        client = (await configure(server, "claude")).json()
        assert json.loads(client["files"][0]["text"])["env"]["ANTHROPIC_BASE_URL"].startswith("http://")


@pytest.mark.parametrize("query", ["?url=ftp://x", "?url=http://x%22y", "?url=http://x%0a", "?url=http://"])
async def test_an_invalid_address_is_rejected(query: str) -> None:
    async with run_api() as server:
        answer = await configure(server, "codex", query)
        assert (answer.status, answer.error["param"]) == (400, "url")


async def test_an_unknown_client_is_not_found() -> None:
    async with run_api() as server:
        for path in ("clients/emacs", "user_agents?client=emacs"):
            answer = await call(server.app, "GET", f"/v1/antiphon/{path}")
            assert (answer.status, answer.error["param"]) == (404, "client")


async def test_the_key_is_a_placeholder() -> None:
    key: Header = (b"authorization", b"Bearer one-key")
    async with run_api(api_key=["one-key"]) as server:
        assert (await configure(server, "claude")).status == 401
        text = (await configure(server, "claude", "", key)).json()["files"][0]["text"]
        assert '"ANTHROPIC_AUTH_TOKEN": "YOUR_KEY"' in text
        assert "one-key" not in text


async def test_a_program_is_listed_with_its_last_request() -> None:
    async with run_api() as server:
        await call(server.app, "GET", "/health", (b"user-agent", b"probe"))
        assert (await list_programs(server))["data"] == []
        await server.post("responses", {"model": "fake", "input": "hi", "store": False}, CODEX)
        await server.post("responses", {"input": "hi"}, CODEX)
        listed = await list_programs(server, "?client=codex")
        (program,) = listed["data"]
        assert 0 <= listed["at"] - program.pop("last_at") < 60
        assert program == {"user_agent": "codex_exec/1.0", "requests": 2, "route": "/v1/responses", "status": 400}
        assert (await list_programs(server, "?client=zed"))["data"] == []


async def test_programs_of_other_tenants_are_not_listed(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one one-key\ntwo two-key\n")
    async with run_api(api_key_file=keys) as server:
        one, two = ((b"authorization", f"Bearer {name}-key".encode()) for name in ("one", "two"))
        await call(server.app, "GET", "/v1/models", one, CODEX)
        own, other = [(await list_programs(server, "", key))["data"] for key in (one, two)]
        assert ([program["user_agent"] for program in own], other) == (["codex_exec/1.0"], [])


def test_the_number_of_programs_and_tenants_is_bounded() -> None:
    log = UserAgentLog(lambda: 1.0)
    for number in range(30):
        log.record("one", b"%d " % number + b"x" * 1000, "/v1/responses")
        log.record("one", b"kept", "/v1/responses")
    states = log.list_states("one")
    assert (len(states), states[0].user_agent, states[0].requests) == (20, "kept", 30)
    assert len(states[1].user_agent) == 200
    for number in range(1000):
        log.record(str(number), b"\xff", "/v1/responses")
    assert log.list_states("one") == []
