"""What real clients sent, exchange by exchange, is answered as they expect.

A recording is held as a dialogue with a real server: an id that the recorded server had given stands for the last one
of its kind that ours gave, and the address of an MCP server for that of one that is there.
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
from tests.support.server_process import Live

# What the recorded server did by itself, and the fake engine only when it is asked to.
ASKED: dict[str, dict[str, Any]] = {"ai-sdk7-itemref.tool-reason": {"reasoning": {"effort": "low"}}}
# Where the recorded MCP server was. Ours is the same one, elsewhere.
MCP = "http://127.0.0.1:3001/mcp"
_SILENT = 3  # events of a warm-up
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
        for sent in EXCHANGES[self._stem]:
            if "frames" in sent:
                self._connect(sent["frames"])
            else:
                self._exchange(sent)
        return len(EXCHANGES[self._stem])

    def _connect(self, frames: list[dict[str, Any]]) -> None:
        """A WebSocket: what the recorded server said is what ours says, but for how much of it there is."""
        with connect(f"ws{self._live.v1.removeprefix('http')}/responses", compression=None, max_size=None) as socket:
            for frame in frames:
                if "client" in frame:
                    socket.send(self._ours(json.dumps(frame["client"])))
                elif "server" in frame:
                    assert json.loads(socket.recv(timeout=60)) == frame["server"]
                else:
                    told = [*_until_its_end(socket)]
                    self._note(told[-1]["response"])
                    if frame["server_events"][-1] == told[-1]["type"] and len(frame["server_events"]) == _SILENT:
                        assert [event["type"] for event in told] == frame["server_events"]

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


def _until_its_end(socket: Connection) -> Iterator[dict[str, Any]]:
    while True:
        event: dict[str, Any] = json.loads(socket.recv(timeout=60))
        check_event(event)
        yield event
        if event["type"] in ("response.completed", "error"):
            assert event["type"] == "response.completed", event
            return


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


DIALOGUES = [*EXCHANGES]


def test_there_are_recordings_and_some_are_of_websockets() -> None:
    assert len(NAMES) > 50
    assert sum("frames" in sent for exchanges in EXCHANGES.values() for sent in exchanges) == 3


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("stem", [stem for stem in DIALOGUES if MCP not in json.dumps(EXCHANGES[stem])])
@pytest.mark.shows("I.12", "I.13")
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
