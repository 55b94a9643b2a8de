"""Rules for a valid event stream, implemented independently of the server's code.

Sequence numbers count from 0, every added item is done once, deltas add up to the text of their `done` event, the items
add up to the Response, and exactly one terminal event is the last.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

Json = dict[str, Any]

TERMINAL = frozenset({"response.completed", "response.failed", "response.incomplete"})
ENDED = frozenset({"completed", "failed", "incomplete", "cancelled"})
_TEXT_FIELDS = {
    "response.output_text": "text",
    "response.refusal": "refusal",
    "response.reasoning_text": "text",
    "response.reasoning_summary_text": "text",
    "response.function_call_arguments": "arguments",
    "response.custom_tool_call_input": "input",
    "response.mcp_call_arguments": "arguments",
}


class InvalidStream(Exception):
    """The stream violates a rule."""


def parse_event(frame: bytes) -> Json:
    """Parse the event of a frame, whose two lines must agree."""
    name, _, data = frame.partition(b"\ndata: ")
    try:
        decoded: Json = msgspec.json.decode(data)
    except msgspec.DecodeError:
        raise InvalidStream(f"a frame is not a valid event: {frame[:200]!r}")
    if name != f"event: {decoded.get('type')}".encode():
        raise InvalidStream(f"the event line is {name!r}, but the type is {decoded.get('type')!r}")
    return decoded


class StreamVerifier:
    """Accepts the events of one response from the first to the last; raises InvalidStream at the first violation."""

    def __init__(self) -> None:
        self.response: Json = {}
        self.ended = False
        self._number = 0
        self._items: list[Json] = []
        self._open: set[int] = set()
        self._pieces: dict[tuple[Any, ...], list[str]] = {}

    def accept(self, event: Json) -> None:
        kind = event["type"]
        _require(not self.ended, f"{kind} came after the terminal event")
        _require(
            event["sequence_number"] == self._number,
            f"{kind} has number {event['sequence_number']}, not {self._number}",
        )
        self._number += 1
        if "response" in event:
            self._accept_response(kind, event["response"])
        elif kind == "response.output_item.added":
            _require(event["output_index"] == len(self._items), "an item was added at the wrong index")
            self._open.add(event["output_index"])
            self._items.append(event["item"])
        elif kind == "response.output_item.done":
            self._accept_item_done(event)
        elif kind.endswith(".delta"):
            self._pieces.setdefault(_part_key(kind[:-6], event), []).append(event["delta"])
        elif kind.endswith(".done") and kind[:-5] in _TEXT_FIELDS:
            text = "".join(self._pieces.pop(_part_key(kind[:-5], event), []))
            _require(text == event[_TEXT_FIELDS[kind[:-5]]], f"the deltas do not add up to {kind}")

    def _accept_response(self, kind: str, response: Json) -> None:
        if self._number == 1:
            _require(kind == "response.created", f"the first event is {kind}")
        else:
            _require(response["id"] == self.response["id"], "the id of the response changed")
        self.response = response
        if kind in TERMINAL:
            _require(not self._open and not self._pieces, f"items or parts are still open at {kind}")
            _require(response["output"] == self._items, "the items differ from the output of the terminal response")
            _require(response["status"] in ENDED, f"{kind} has the status {response['status']!r}")
            self.ended = True
        else:
            _require(response["output"] == [], f"{kind} has an output")

    def _accept_item_done(self, event: Json) -> None:
        index, item = event["output_index"], event["item"]
        _require(index in self._open, "an item that is not open is reported as done")
        _require(item["id"] == self._items[index]["id"], "the id of an item changed before it was done")
        self._open.remove(index)
        self._items[index] = item


def _part_key(stem: str, event: Json) -> tuple[Any, ...]:
    return stem, event["item_id"], event.get("content_index"), event.get("summary_index")


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise InvalidStream(sentence)


def verify_frames(frames: Iterable[bytes]) -> StreamVerifier:
    """Verify frames as the beginning of a stream. Raises InvalidStream at the first violation."""
    verifier = StreamVerifier()
    for frame in frames:
        verifier.accept(parse_event(frame))
    return verifier


def terminal_response(frames: Sequence[bytes]) -> Json:
    """Verify a complete stream and return its terminal response."""
    verifier = verify_frames(frames)
    _require(verifier.ended, f"the stream ended without a terminal event, after {len(frames)} events")
    return verifier.response


def output_text(response: Json) -> str:
    """Return the text of all messages of the assistant."""
    messages = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part.get("text", "") for item in messages for part in item["content"])
