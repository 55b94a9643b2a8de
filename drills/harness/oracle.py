"""What a stream of events must be, said once more and without the server's own code.

Numbers count from 0, what was added is done once, deltas add up to what their `done` says, the items add up to the
Response, and exactly one terminal event is the last.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

Json = dict[str, Any]

TERMINAL = frozenset({"response.completed", "response.failed", "response.incomplete"})
ENDED = frozenset({"completed", "failed", "incomplete", "cancelled"})
_WHOLE = {
    "response.output_text": "text",
    "response.refusal": "refusal",
    "response.reasoning_text": "text",
    "response.reasoning_summary_text": "text",
    "response.function_call_arguments": "arguments",
    "response.custom_tool_call_input": "input",
    "response.mcp_call_arguments": "arguments",
}


class Wrong(Exception):
    """The stream is not one."""


def event(frame: bytes) -> Json:
    """The event of a frame, whose two lines must agree."""
    name, _, data = frame.partition(b"\ndata: ")
    try:
        decoded: Json = msgspec.json.decode(data)
    except msgspec.DecodeError:
        raise Wrong(f"a frame is no event: {frame[:200]!r}")
    if name != f"event: {decoded.get('type')}".encode():
        raise Wrong(f"an event is called {name!r} and says {decoded.get('type')!r}")
    return decoded


class Reader:
    """Takes the events of one response, from the first to the last."""

    def __init__(self) -> None:
        self.response: Json = {}
        self.ended = False
        self._number = 0
        self._items: list[Json] = []
        self._open: set[int] = set()
        self._pieces: dict[tuple[Any, ...], list[str]] = {}

    def take(self, one: Json) -> None:
        kind = one["type"]
        _need(not self.ended, f"{kind} came after the terminal event")
        _need(one["sequence_number"] == self._number, f"{kind} has number {one['sequence_number']}, not {self._number}")
        self._number += 1
        if "response" in one:
            self._take_response(kind, one["response"])
        elif kind == "response.output_item.added":
            _need(one["output_index"] == len(self._items), "an item was added at the wrong place")
            self._open.add(one["output_index"])
            self._items.append(one["item"])
        elif kind == "response.output_item.done":
            self._take_done(one)
        elif kind.endswith(".delta"):
            self._pieces.setdefault(_part(kind[:-6], one), []).append(one["delta"])
        elif kind.endswith(".done") and kind[:-5] in _WHOLE:
            said = "".join(self._pieces.pop(_part(kind[:-5], one), []))
            _need(said == one[_WHOLE[kind[:-5]]], f"the deltas do not add up to {kind}")

    def _take_response(self, kind: str, response: Json) -> None:
        if self._number == 1:
            _need(kind == "response.created", f"the first event is {kind}")
        else:
            _need(response["id"] == self.response["id"], "the response has another id")
        self.response = response
        if kind in TERMINAL:
            _need(not self._open and not self._pieces, f"something is still open at {kind}")
            _need(response["output"] == self._items, "the items do not add up to the terminal response")
            _need(response["status"] in ENDED, f"{kind} carries the status {response['status']!r}")
            self.ended = True
        else:
            _need(response["output"] == [], f"{kind} has an output")

    def _take_done(self, one: Json) -> None:
        index, item = one["output_index"], one["item"]
        _need(index in self._open, "an item is done that is not open")
        _need(item["id"] == self._items[index]["id"], "an item has another id when it is done")
        self._open.remove(index)
        self._items[index] = item


def _part(stem: str, one: Json) -> tuple[Any, ...]:
    return stem, one["item_id"], one.get("content_index"), one.get("summary_index")


def _need(holds: bool, sentence: str) -> None:
    if not holds:
        raise Wrong(sentence)


def read(frames: Iterable[bytes]) -> Reader:
    """Raises Wrong as soon as it is none."""
    reader = Reader()
    for frame in frames:
        reader.take(event(frame))
    return reader


def whole(frames: Sequence[bytes]) -> Json:
    """The terminal response of a stream that must have one."""
    reader = read(frames)
    _need(reader.ended, f"the stream ended without a terminal event, after {len(frames)} events")
    return reader.response


def text_of(response: Json) -> str:
    """All that the assistant said."""
    messages = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part.get("text", "") for item in messages for part in item["content"])
