"""Requests of a client in a conversation with tools: a beginning as large as that of a coding agent, and tool outputs.

Every request has to declare its tools again: they belong to the request, not to the response that it continues.
"""

from typing import Any, Literal

import msgspec

Mode = Literal["socket", "chained", "whole"]
Json = dict[str, Any]

LAST = "That was the last file."
_RULE = "Rule {}: read a file before you change it, keep changes small, and say what you did and what you did not do. "
_TOOL = "Tool {}: it runs in the workspace, needs no confirmation, and gives what it wrote to both of its streams. "
_LINE = "src/part_{}/module.py:{}: the name is used here, and again in the tests that belong to this part of it.\n"
_RULES = 200  # about 22 KB
_TOOLS = 10  # about 10 KB in total
_LINES = 30  # per output: about 3 KB
SCRIPT = f"""
[[reply]]
when = {{ output = "{LAST}" }}
steps = [{{ say = ["I have read ", "all of them."] }}]

[[reply]]
steps = [{{ call = {{ name = "tool_0", arguments = {{ command = "grep -rn name src", seconds = 10 }}, chunks = 8 }} }}]
"""


class Conversation:
    """One conversation. `nonce` makes it unique, so that the engine's cache contains nothing of it."""

    def __init__(self, mode: Mode, nonce: str, turns: int) -> None:
        self._mode = mode
        self._nonce = nonce
        self._turns = turns
        self._history: list[Json] = []  # all items of client and server
        self._base = {
            "model": "fake",
            "stream": True,
            "store": mode == "chained",
            "parallel_tool_calls": False,
            "tools": [_make_tool(number, nonce) for number in range(_TOOLS)],
        }

    def make_first_body(self) -> bytes:
        rules = f"Session {self._nonce}. {_repeat_numbered(_RULE, _RULES)}"
        self._history = [_make_message("developer", rules), _make_message("user", "Where is the name used?")]
        return self._encode_body(None, self._history)

    def make_next_body(self, turn: int, response: Json) -> bytes:
        """Return the request for this turn, counted from 0, which follows the response."""
        (call,) = [item for item in response["output"] if item["type"] == "function_call"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": self._make_output(turn)}
        self._history += [*response["output"], output]
        return self._encode_body(response["id"], [output])

    def _encode_body(self, previous: str | None, new: list[Json]) -> bytes:
        if self._mode == "whole":
            return msgspec.json.encode({**self._base, "input": self._history})
        body = {**self._base, "previous_response_id": previous, "input": new}
        return msgspec.json.encode({"type": "response.create", **body} if self._mode == "socket" else body)

    def _make_output(self, turn: int) -> str:
        lines = "".join(_LINE.format(turn, number) for number in range(_LINES))
        return lines + (LAST if turn == self._turns - 1 else "")


def _make_message(role: str, text: str) -> Json:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def _make_tool(number: int, nonce: str) -> Json:
    properties = {"command": {"type": "string", "description": _TOOL}, "seconds": {"type": "integer"}}
    parameters = {"type": "object", "properties": properties, "required": ["command"]}
    description = f"Of session {nonce}. {_repeat_numbered(_TOOL, 7)}"
    return {"type": "function", "name": f"tool_{number}", "description": description, "parameters": parameters}


def _repeat_numbered(sentence: str, times: int) -> str:
    return "".join(sentence.format(number) for number in range(times))
