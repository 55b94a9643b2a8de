"""What a client says in a conversation with tools: a beginning as large as a coding agent's, and its tools' outputs.

Whatever a request continues, it has to name its tools again: they belong to a request and not to what it continues.
"""

from typing import Any, Literal

import msgspec

Way = Literal["socket", "chained", "whole"]
Json = dict[str, Any]

LAST = "That was the last file."
_RULE = "Rule {}: read a file before you change it, keep changes small, and say what you did and what you did not do. "
_TOOL = "Tool {}: it runs in the workspace, needs no confirmation, and gives what it wrote to both of its streams. "
_LINE = "src/part_{}/module.py:{}: the name is used here, and again in the tests that belong to this part of it.\n"
_RULES = 200  # some 22 KB
_TOOLS = 10  # some 10 KB in all
_LINES = 30  # of each output: some 3 KB
SCRIPT = f"""
[[reply]]
when = {{ output = "{LAST}" }}
steps = [{{ say = ["I have read ", "all of them."] }}]

[[reply]]
steps = [{{ call = {{ name = "tool_0", arguments = {{ command = "grep -rn name src", seconds = 10 }}, chunks = 8 }} }}]
"""


class Conversation:
    """`nonce` tells it from all others: the engine's cache knows nothing of it."""

    def __init__(self, way: Way, nonce: str, turns: int) -> None:
        self._way = way
        self._nonce = nonce
        self._turns = turns
        self._given: list[Json] = []  # all that was said, by both
        self._base = {
            "model": "fake",
            "stream": True,
            "store": way == "chained",
            "parallel_tool_calls": False,
            "tools": [_tool(number, nonce) for number in range(_TOOLS)],
        }

    def first(self) -> bytes:
        rules = f"Session {self._nonce}. {_numbered(_RULE, _RULES)}"
        self._given = [_message("developer", rules), _message("user", "Where is the name used?")]
        return self._said(None, self._given)

    def next(self, turn: int, response: Json) -> bytes:
        """The turn, counted from 0, that follows this response."""
        (call,) = [item for item in response["output"] if item["type"] == "function_call"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": self._output(turn)}
        self._given += [*response["output"], output]
        return self._said(response["id"], [output])

    def _said(self, previous: str | None, new: list[Json]) -> bytes:
        if self._way == "whole":
            return msgspec.json.encode({**self._base, "input": self._given})
        body = {**self._base, "previous_response_id": previous, "input": new}
        return msgspec.json.encode({"type": "response.create", **body} if self._way == "socket" else body)

    def _output(self, turn: int) -> str:
        lines = "".join(_LINE.format(turn, number) for number in range(_LINES))
        return lines + (LAST if turn == self._turns - 1 else "")


def _message(role: str, text: str) -> Json:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def _tool(number: int, nonce: str) -> Json:
    properties = {"command": {"type": "string", "description": _TOOL}, "seconds": {"type": "integer"}}
    parameters = {"type": "object", "properties": properties, "required": ["command"]}
    about = f"Of session {nonce}. {_numbered(_TOOL, 7)}"
    return {"type": "function", "name": f"tool_{number}", "description": about, "parameters": parameters}


def _numbered(sentence: str, times: int) -> str:
    return "".join(sentence.format(number) for number in range(times))
