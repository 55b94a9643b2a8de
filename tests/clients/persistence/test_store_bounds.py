"""The operator's bounds on what is kept, by the flags that set them."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.server_process import Live, serving

SECONDS = 100.0


@pytest.fixture(scope="module", params=["memory", "file"])
def bounded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder: Path = tmp_path_factory.mktemp("bounded")
    store = "memory" if request.param == "memory" else str(folder / "store.db")
    bounds = ("--store-max-entries", "3", "--conversation-max-entries", "2")
    with serving("--engine", "fake", "--store", store, *bounds) as live:
        yield live


def _id(answer: tuple[int, bytes]) -> str:
    assert answer[0] == 200, answer
    name: str = json.loads(answer[1])["id"]
    return name


def _status(live: Live, path: str) -> int:
    return live.get(path)[0]


def _becomes(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SECONDS
    while not true() and time.monotonic() < deadline:
        pass
    return true()


@pytest.mark.shows("B.4", "H1.1")
def test_beyond_the_bound_the_oldest_responses_go_and_the_newest_stay(bounded: Live) -> None:
    made = [_id(bounded.post({"model": "fake", "input": f"{number}"})) for number in range(8)]
    assert _becomes(lambda: _status(bounded, f"/v1/responses/{made[4]}") == 404)
    assert [_status(bounded, f"/v1/responses/{name}") for name in made] == [404] * 5 + [200] * 3


@pytest.mark.shows("B2.1")
def test_beyond_their_bound_the_conversations_that_were_longest_unused_go(bounded: Live) -> None:
    made = [_id(bounded.send("POST", "/v1/conversations", {})) for _ in range(4)]
    body = {"model": "fake", "input": "still here", "conversation": made[0]}
    _id(bounded.post(body))
    assert _becomes(lambda: _status(bounded, f"/v1/conversations/{made[2]}") == 404)
    assert [_status(bounded, f"/v1/conversations/{name}") for name in made] == [200, 404, 404, 200]
    refused, said = bounded.post({**body, "conversation": made[1]})
    assert (refused, json.loads(said)["error"]["code"]) == (404, "conversation_not_found")


@pytest.mark.shows("B1.3")
def test_a_response_goes_when_its_time_is_over() -> None:
    with serving("--engine", "fake", "--store", "memory", "--store-ttl", "0.5") as live:
        name = _id(live.post({"model": "fake", "input": "for a moment"}))
        assert _becomes(lambda: _status(live, f"/v1/responses/{name}") == 404)
        refused, said = live.post({"model": "fake", "input": "go on", "previous_response_id": name})
        assert (refused, json.loads(said)["error"]["code"]) == (400, "previous_response_not_found")
