"""Recorded traffic of real clients, replayed against a real server: every exchange must get a valid response.

Ids of the recorded server are replaced by the last id of the same kind from our server, and the URL of the recorded MCP
server by that of a running one.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from tests.oracles.responses import (
    accumulate,
    check_conversation,
    check_conversation_item,
    check_conversation_items,
    check_event,
    check_input_items,
    check_response,
)
from tests.support.paths import RECORDINGS
from tests.support.server_process import ServerProcess

# Fields that make the fake engine do what the recorded server did by default.
EXTRA_FIELDS: dict[str, dict[str, Any]] = {"ai-sdk7-itemref.tool-reason": {"reasoning": {"effort": "low"}}}
# URL of the recorded MCP server. The tests run the same server at another address.
RECORDED_MCP_URL = "http://127.0.0.1:3001/mcp"
_WARM_UP_EVENTS = 3  # number of events of a warm-up response
ID = re.compile(r"\b(resp|msg|rs|fc|ctc|call|conv)_[0-9a-f]{20,}\b")


def _load_recordings() -> dict[str, list[dict[str, Any]]]:
    """Return all recorded exchanges by file name."""
    return {path.stem: json.loads(path.read_bytes()) for path in sorted(RECORDINGS.glob("*.json"))}


RECORDED_EXCHANGES = _load_recordings()
EXCHANGE_NAMES = [f"{stem}:{index}" for stem, sent in RECORDED_EXCHANGES.items() for index in range(len(sent))]


class RecordingReplay:
    """Replays one recording."""

    def __init__(self, server: ServerProcess, stem: str, stream: bool, mcp_url: str = "") -> None:
        self._server = server
        self._stem = stem
        self._stream = stream
        self._mcp_url = mcp_url
        self.last_ids: dict[str, str] = {}  # kind → last id from our server
        self._translated_ids: dict[str, str] = {}  # recorded id → our id

    def run(self) -> int:
        """Replay all exchanges and return their number."""
        for sent in RECORDED_EXCHANGES[self._stem]:
            if "frames" in sent:
                self._replay_websocket(sent["frames"])
            else:
                self._replay_exchange(sent)
        return len(RECORDED_EXCHANGES[self._stem])

    def _replay_websocket(self, frames: list[dict[str, Any]]) -> None:
        """Replay a WebSocket connection. Our server must send the same frames, but the number of events may differ."""
        with connect(
            f"ws{self._server.v1.removeprefix('http')}/responses", compression=None, max_size=None
        ) as websocket:
            for frame in frames:
                if "client" in frame:
                    websocket.send(self._translate(json.dumps(frame["client"])))
                elif "server" in frame:
                    assert json.loads(websocket.recv(timeout=60)) == frame["server"]
                else:
                    events = [*_read_until_end(websocket)]
                    self._remember_ids(events[-1]["response"])
                    if (
                        frame["server_events"][-1] == events[-1]["type"]
                        and len(frame["server_events"]) == _WARM_UP_EVENTS
                    ):
                        assert [event["type"] for event in events] == frame["server_events"]

    def _replay_exchange(self, sent: dict[str, Any]) -> None:
        tail, body = self._translate(sent["tail"]), json.loads(self._translate(json.dumps(sent.get("body"))))
        creates = (sent["method"], tail) == ("POST", "responses")
        if creates:
            body = {**body, **EXTRA_FIELDS.get(self._stem, {}), "stream": self._stream}
        query = self._translate(urlencode([*map(tuple, sent["query"])]))
        status, answer = self._server.send(sent["method"], f"/v1/{tail}?{query}", body)
        assert status == 200, (sent["method"], tail, answer)
        if (creates and self._stream) or "stream=true" in query:
            self._remember_ids(_check_stream(answer, complete="starting_after" not in query))
        else:
            decoded = json.loads(answer)
            _find_check(tail)(decoded)
            self._remember_ids(decoded)

    def _translate(self, text: str) -> str:
        """Replace recorded ids and the recorded MCP URL."""
        return ID.sub(
            lambda found: self._translate_id(found[0], found[1]), text.replace(RECORDED_MCP_URL, self._mcp_url)
        )

    def _translate_id(self, recorded: str, kind: str) -> str:
        if recorded not in self._translated_ids and kind in self.last_ids:
            self._translated_ids[recorded] = self.last_ids[kind]
        return self._translated_ids.get(recorded, recorded)

    def _remember_ids(self, body: dict[str, Any]) -> None:
        """Remember the last id of each kind."""
        for item in (body, *body.get("output", ()), *body.get("data", ())):
            for name in filter(None, (item.get("id"), item.get("call_id"))):
                self.last_ids[name.partition("_")[0]] = name


def _read_until_end(websocket: Connection) -> Iterator[dict[str, Any]]:
    """Yield the valid events of a response up to its completion."""
    while True:
        event: dict[str, Any] = json.loads(websocket.recv(timeout=60))
        check_event(event)
        yield event
        if event["type"] in ("response.completed", "error"):
            assert event["type"] == "response.completed", event
            return


def _check_stream(answer: bytes, complete: bool) -> dict[str, Any]:
    """Check the events of an SSE body and return the final response. `complete`: the stream starts at its first
    event.
    """
    *events, done = answer.removesuffix(b"\n\n").split(b"\n\n")
    assert done == b"data: [DONE]"
    decoded = [json.loads(event.partition(b"\ndata: ")[2]) for event in events]
    for event in decoded:
        check_event(event)
    if complete:
        assert accumulate(decoded).status == "completed"
    final: dict[str, Any] = decoded[-1]["response"]
    return final


def _find_check(tail: str) -> Callable[[dict[str, Any]], None]:
    """Return the schema check for the body of a path."""
    checks = {
        r"responses(/\w+(/cancel)?)?": check_response,
        r"responses/\w+/input_items": check_input_items,
        r"conversations(/\w+)?": check_conversation,
        r"conversations/\w+/items": check_conversation_items,
        r"conversations/\w+/items/\w+": _check_item_or_conversation,
    }
    return next(check for pattern, check in checks.items() if re.fullmatch(pattern, tail))


def _check_item_or_conversation(body: dict[str, Any]) -> None:
    (check_conversation if "object" in body else check_conversation_item)(body)


STEMS = [*RECORDED_EXCHANGES]
ROWS = {
    "codex": "I.13",
    "agents-sdk": "I.14",
    "ai-sdk": "I.14",
    "opencode": "I.14",
}  # by the beginning of a file's name


def list_rows(stem: str) -> list[str]:
    return ["I.12", *(row for client, row in ROWS.items() if stem.startswith(client))]


def test_the_recordings_include_three_websocket_connections() -> None:
    assert len(EXCHANGE_NAMES) > 50
    assert sum("frames" in sent for exchanges in RECORDED_EXCHANGES.values() for sent in exchanges) == 3


def test_codex_is_recorded_over_http_and_websocket_and_the_other_clients_at_all() -> None:
    exchanges = [sent for stem in STEMS if stem.startswith("codex") for sent in RECORDED_EXCHANGES[stem]]
    assert {"frames" in sent for sent in exchanges} == {True, False}
    assert all(any(stem.startswith(client) for stem in STEMS) for client in ROWS)


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize(
    "stem",
    [
        pytest.param(stem, marks=pytest.mark.shows(*list_rows(stem)))
        for stem in STEMS
        if RECORDED_MCP_URL not in json.dumps(RECORDED_EXCHANGES[stem])
    ],
)
def test_a_recording_replays_to_its_end(fake_server: ServerProcess, stem: str, stream: bool) -> None:
    assert RecordingReplay(fake_server, stem, stream).run() > 0


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("stem", [stem for stem in STEMS if RECORDED_MCP_URL in json.dumps(RECORDED_EXCHANGES[stem])])
@pytest.mark.needs("node")
@pytest.mark.shows("I.12", "E.4")
def test_a_recording_with_mcp_tools_replays_to_its_end(
    agent_server: ServerProcess, everything: str, stem: str, stream: bool
) -> None:
    replay = RecordingReplay(agent_server, stem, stream, everything)
    assert replay.run() > 0
    assert {"mcpl", "mcp", "msg"} <= replay.last_ids.keys()
