"""What real clients sent, exchange by exchange, is answered as they expect.

A recording is held as a dialogue with a real server: an id that the recorded server had given stands for the last one
of its kind that ours gave, and the address of an MCP server for that of one that is there.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.live import Live
from tests.oracle import (
    accumulate,
    check_conversation,
    check_conversation_item,
    check_conversation_items,
    check_event,
    check_input_items,
    check_response,
)

RECORDINGS = Path(__file__).parent.parent / "recordings"

WAITING_UPGRADES = ("codex-wstrue.tool:0", "openai-py.ws:0", "openai-py.ws:1")  # a 426: clients fall back at once
# What the recorded server did by itself, and the fake engine only when it is asked to.
ASKED: dict[str, dict[str, Any]] = {"ai-sdk7-itemref.tool-reason": {"reasoning": {"effort": "low"}}}
# Where the recorded MCP server was. Ours is the same one, elsewhere.
MCP = "http://127.0.0.1:3001/mcp"
ID = re.compile(r"\b(resp|msg|rs|fc|ctc|call|conv)_[0-9a-f]{20,}\b")


def _exchanges() -> dict[str, list[dict[str, Any]]]:
    """All that the clients sent, by file."""
    return {path.stem: json.loads(path.read_bytes()) for path in sorted(RECORDINGS.glob("*.json"))}


EXCHANGES = _exchanges()
NAMES = [f"{stem}:{place}" for stem, sent in EXCHANGES.items() for place in range(len(sent))]


class Dialogue:
    """One recording, played again."""

    def __init__(self, live: Live, stem: str, stream: bool, mcp: str = "") -> None:
        self._live = live
        self._stem = stem
        self._stream = stream
        self._mcp = mcp
        self.given: dict[str, str] = {}  # the last id of each kind that our server gave
        self._names: dict[str, str] = {}  # the recorded one → ours

    def hold(self) -> int:
        """How many exchanges were answered."""
        told = 0
        for place, sent in enumerate(EXCHANGES[self._stem]):
            if f"{self._stem}:{place}" not in WAITING_UPGRADES:
                self._exchange(sent)
                told += 1
        return told

    def _exchange(self, sent: dict[str, Any]) -> None:
        tail, body = self._ours(sent["tail"]), json.loads(self._ours(json.dumps(sent.get("body"))))
        creates = (sent["method"], tail) == ("POST", "responses")
        if creates:
            body = {**body, **ASKED.get(self._stem, {}), "stream": self._stream}
        query = self._ours(urlencode([*map(tuple, sent["query"])]))
        status, answer = self._live.send(sent["method"], f"/v1/{tail}?{query}", body)
        assert status == 200, (sent["method"], tail, answer)
        if (creates and self._stream) or "stream=true" in query:
            self._note(_streamed(answer, whole="starting_after" not in query))
        else:
            told = json.loads(answer)
            _check(tail)(told)
            self._note(told)

    def _ours(self, text: str) -> str:
        return ID.sub(lambda found: self._name(found[0], found[1]), text.replace(MCP, self._mcp))

    def _name(self, recorded: str, kind: str) -> str:
        if recorded not in self._names and kind in self.given:
            self._names[recorded] = self.given[kind]
        return self._names.get(recorded, recorded)

    def _note(self, told: dict[str, Any]) -> None:
        for thing in (told, *told.get("output", ()), *told.get("data", ())):
            for name in filter(None, (thing.get("id"), thing.get("call_id"))):
                self.given[name.partition("_")[0]] = name


def _streamed(answer: bytes, whole: bool) -> dict[str, Any]:
    """The last response of a stream that is as it should be."""
    *events, done = answer.removesuffix(b"\n\n").split(b"\n\n")
    assert done == b"data: [DONE]"
    decoded = [json.loads(event.partition(b"\ndata: ")[2]) for event in events]
    for event in decoded:
        check_event(event)
    if whole:
        assert accumulate(decoded).status == "completed"
    final: dict[str, Any] = decoded[-1]["response"]
    return final


def _check(tail: str) -> Callable[[dict[str, Any]], None]:
    checks = {
        r"responses(/\w+(/cancel)?)?": check_response,
        r"responses/\w+/input_items": check_input_items,
        r"conversations(/\w+)?": check_conversation,
        r"conversations/\w+/items": check_conversation_items,
        r"conversations/\w+/items/\w+": _check_item_or_conversation,
    }
    return next(check for pattern, check in checks.items() if re.fullmatch(pattern, tail))


def _check_item_or_conversation(told: dict[str, Any]) -> None:
    (check_conversation if "object" in told else check_conversation_item)(told)


DIALOGUES = [
    stem
    for stem, exchanges in EXCHANGES.items()
    if {f"{stem}:{place}" for place in range(len(exchanges))} - {*WAITING_UPGRADES}
]


def test_there_are_recordings_and_all_that_waits_is_among_them() -> None:
    assert len(NAMES) > 50
    assert {*WAITING_UPGRADES} <= {*NAMES}


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("stem", [stem for stem in DIALOGUES if MCP not in json.dumps(EXCHANGES[stem])])
@pytest.mark.shows("I.12")
def test_a_recorded_dialogue_is_held_to_its_end(fake: Live, stem: str, stream: bool) -> None:
    assert Dialogue(fake, stem, stream).hold() > 0


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("stem", [stem for stem in DIALOGUES if MCP in json.dumps(EXCHANGES[stem])])
@pytest.mark.needs("node")
@pytest.mark.shows("I.12", "E.4")
def test_a_recorded_dialogue_with_tools_of_an_mcp_server_is_held_too(
    agentic: Live, everything: str, stem: str, stream: bool
) -> None:
    dialogue = Dialogue(agentic, stem, stream, everything)
    assert dialogue.hold() > 0
    assert {"mcpl", "mcp", "msg"} <= dialogue.given.keys()


@pytest.mark.parametrize("name", WAITING_UPGRADES)
def test_a_recorded_upgrade_that_waits_is_answered_so_that_clients_fall_back(fake: Live, name: str) -> None:
    stem, _, place = name.partition(":")
    assert "frames" in EXCHANGES[stem][int(place)]
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    status, answer = fake.send("GET", "/v1/responses", headers=headers)
    assert status == 426, answer
    assert json.loads(answer)["error"]["type"] == "invalid_request_error"
