"""Retention limits of the store, set by the flags of a real server."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.server_process import ServerProcess, run_server

SECONDS = 100.0


@pytest.fixture(scope="module", params=["memory", "file"])
def bounded_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("bounded")
    store = "memory" if request.param == "memory" else str(folder / "store.db")
    bounds = ("--store-max-entries", "3", "--conversation-max-entries", "2")
    with run_server("--engine", "fake", "--store", store, *bounds) as server:
        yield server


def _parse_id(response: tuple[int, bytes]) -> str:
    assert response[0] == 200, response
    name: str = json.loads(response[1])["id"]
    return name


def _get_status(server: ServerProcess, path: str) -> int:
    return server.get(path)[0]


def _wait_until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SECONDS
    while not condition() and time.monotonic() < deadline:
        pass
    return condition()


@pytest.mark.shows("B.4", "H1.1")
def test_the_oldest_responses_are_evicted_beyond_the_limit(bounded_server: ServerProcess) -> None:
    ids = [_parse_id(bounded_server.post({"model": "fake", "input": f"{number}"})) for number in range(8)]
    assert _wait_until(lambda: _get_status(bounded_server, f"/v1/responses/{ids[4]}") == 404)
    assert [_get_status(bounded_server, f"/v1/responses/{name}") for name in ids] == [404] * 5 + [200] * 3


@pytest.mark.shows("B2.1")
def test_the_least_recently_used_conversations_are_evicted_beyond_the_limit(bounded_server: ServerProcess) -> None:
    ids = [_parse_id(bounded_server.send("POST", "/v1/conversations", {})) for _ in range(4)]
    body = {"model": "fake", "input": "still here", "conversation": ids[0]}
    _parse_id(bounded_server.post(body))
    assert _wait_until(lambda: _get_status(bounded_server, f"/v1/conversations/{ids[2]}") == 404)
    assert [_get_status(bounded_server, f"/v1/conversations/{name}") for name in ids] == [200, 404, 404, 200]
    refused, error_body = bounded_server.post({**body, "conversation": ids[1]})
    assert (refused, json.loads(error_body)["error"]["code"]) == (404, "conversation_not_found")


@pytest.mark.shows("B1.3")
def test_a_response_is_deleted_after_its_ttl() -> None:
    with run_server("--engine", "fake", "--store", "memory", "--store-ttl", "0.5") as server:
        name = _parse_id(server.post({"model": "fake", "input": "for a moment"}))
        assert _wait_until(lambda: _get_status(server, f"/v1/responses/{name}") == 404)
        refused, error_body = server.post({"model": "fake", "input": "go on", "previous_response_id": name})
        assert (refused, json.loads(error_body)["error"]["code"]) == (400, "previous_response_not_found")
