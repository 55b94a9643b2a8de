"""Every request body recorded from a real client gets through, or is refused by naming what is not there yet.

WAITING is the list of the latter: a name, the field that the refusal must name, and why. A body that
begins to be served fails the test until its line is taken out, so that the list can only shrink.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.live import Live
from tests.oracle import accumulate, check_event, check_response

RECORDINGS = Path(__file__).parent.parent / "recordings"

STORED = "responses are not stored yet"
CONVERSATIONS = "there are no conversations yet"
BACKGROUND = "nothing runs in the background yet"
MCP = "no MCP server is called yet"
WAITING: dict[str, tuple[str, str]] = {
    "agents-sdk.tool:5": ("previous_response_id", STORED),
    "agents-sdk.tool:6": ("previous_response_id", STORED),
    "agents-sdk.tool:7": ("previous_response_id", STORED),
    "ai-sdk7-itemref.tool-reason:1": ("input[1]", STORED),
    "ai-sdk7-itemref.tool-reason:2": ("input[1]", STORED),
    "openai-py.bg:0": ("background", BACKGROUND),
    "openai-py.bg:2": ("background", BACKGROUND),
    "openai-py.bg:4": ("background", BACKGROUND),
    "openai-py.bg:7": ("background", BACKGROUND),
    "openai-py.conv:5": ("conversation", CONVERSATIONS),
    "openai-py.mcp:0": ("tools[0]", MCP),
    "openai-py.mcp:1": ("tools[0]", MCP),
    "openai-py.tool:2": ("previous_response_id", STORED),
}
WAITING_PATHS = ("conversations", "responses/")  # answered with a 404 in OpenAI's shape
WAITING_UPGRADES = ("codex-wstrue.tool:0", "openai-py.ws:0", "openai-py.ws:1")  # a 426: clients fall back at once


def _exchanges() -> dict[str, dict[str, Any]]:
    """All that the clients sent, by file and place."""
    return {
        f"{path.stem}:{place}": exchange
        for path in sorted(RECORDINGS.glob("*.json"))
        for place, exchange in enumerate(json.loads(path.read_bytes()))
    }


EXCHANGES = _exchanges()
BODIES = {
    name: sent["body"] for name, sent in EXCHANGES.items() if (sent["method"], sent["tail"]) == ("POST", "responses")
}
SERVED = [name for name in BODIES if name not in WAITING]
OTHERS = [name for name in EXCHANGES if name not in BODIES and name not in WAITING_UPGRADES]


def test_there_are_recordings_and_all_that_waits_is_among_them() -> None:
    assert len(SERVED) > 15
    assert WAITING.keys() <= BODIES.keys()
    assert set(WAITING_UPGRADES) <= EXCHANGES.keys()


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.shows("I.12")
def test_a_recorded_body_is_answered_as_json(fake: Live, name: str) -> None:
    status, answer = fake.post({**BODIES[name], "stream": False})
    assert status == 200, answer
    response = json.loads(answer)
    check_response(response)
    assert response["status"] == "completed"


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.shows("I.12")
def test_a_recorded_body_is_answered_as_a_stream(fake: Live, name: str) -> None:
    status, answer = fake.post({**BODIES[name], "stream": True})
    assert status == 200, answer
    *events, done = answer.removesuffix(b"\n\n").split(b"\n\n")
    assert done == b"data: [DONE]"
    decoded = [json.loads(event.partition(b"\ndata: ")[2]) for event in events]
    for event in decoded:
        check_event(event)
    assert accumulate(decoded).status == "completed"


@pytest.mark.parametrize("name", WAITING)
def test_a_recorded_body_that_waits_is_refused_by_name(fake: Live, name: str) -> None:
    param, _ = WAITING[name]
    status, answer = fake.post(BODIES[name])
    assert status == 400, answer
    error = json.loads(answer)["error"]
    assert error["param"].startswith(param)
    assert error["type"] == "invalid_request_error"
    assert "yet" in error["message"]


@pytest.mark.parametrize("name", OTHERS)
def test_a_recorded_path_that_waits_is_not_found(fake: Live, name: str) -> None:
    sent = EXCHANGES[name]
    assert sent["tail"].startswith(WAITING_PATHS)
    status, answer = fake.send(sent["method"], f"/v1/{sent['tail']}", sent.get("body"))
    assert status == 404, answer
    assert json.loads(answer)["error"]["type"] == "not_found_error"


@pytest.mark.parametrize("name", WAITING_UPGRADES)
def test_a_recorded_upgrade_that_waits_is_answered_so_that_clients_fall_back(fake: Live, name: str) -> None:
    assert "frames" in EXCHANGES[name]
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    status, answer = fake.send("GET", "/v1/responses", headers=headers)
    assert status == 426, answer
    assert json.loads(answer)["error"]["type"] == "invalid_request_error"
