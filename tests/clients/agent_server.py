"""A server with a scripted fake model and an MCP server that its operator configured under two labels.

The input `play NAME.` makes the model call the tools of that play. The bare tool name is enough where only one server
has such a tool. A request that ends with tool outputs is answered, unless its play continues otherwise.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.server_process import ServerProcess, run_server
from tests.tools.mcp.reference_server import build_command

MAX_TOOL_TURNS = 4  # limit of model turns with tool calls
TOOL_TIMEOUT_SECONDS = 2.0  # a tool call without any progress for this long fails

ScriptedCall = tuple[str, dict[str, Any]]


def make_call(name: str, **arguments: Any) -> ScriptedCall:
    return name, arguments


SUM = make_call("get-sum", a=2, b=40)
# The tool calls of each play, all made in its first turn.
PLAYS: dict[str, list[ScriptedCall]] = {
    "sum": [SUM],
    "echo": [make_call("echo", message="hallo")],
    "structure": [make_call("get-structured-content", location="Chicago")],
    "image": [make_call("get-tiny-image")],
    "links": [make_call("get-resource-links", count=2)],
    "bad": [make_call("get-sum", a="two")],
    "unknown": [make_call("nobody-offers-this")],
    "three": [SUM, make_call("echo", message="hallo"), make_call("get-sum", a=1, b=1)],
    "twins": [make_call("one__echo", message="first"), make_call("two__echo", message="second")],
    "mixed": [SUM, make_call("get_weather", city="Oslo", days=2)],
    "long": [
        make_call("trigger-long-running-operation", duration=60, steps=1),
        make_call("trigger-long-running-operation", duration=3, steps=6),
    ],
}
# This play repeats its call in every turn, until the server stops it.
_ENDLESS = """
[[reply]]
when = { contains = "play endless.", tool = "everything__get-sum" }
steps = [{ call = { name = "everything__get-sum", arguments = { a = 2, b = 40 } } }]
"""
_ANSWER_OUTPUTS = """
[[reply]]
when = { output = "" }
steps = [{ answer = true }]
"""


def build_script() -> str:
    """Return the script of the fake engine, in TOML."""
    return "\n".join([_ENDLESS, _ANSWER_OUTPUTS, *(_render_reply(name, calls) for name, calls in PLAYS.items())])


def _render_reply(name: str, calls: list[ScriptedCall]) -> str:
    """Render one reply of the script. The arguments are quoted as JSON, which is also a valid TOML string."""
    tables = [
        f"{{ name = {json.dumps(tool)}, arguments = {json.dumps(json.dumps(arguments))}, chunks = 3 }}"
        for tool, arguments in calls
    ]
    when = f"when = {{ contains = {json.dumps(f'play {name}.')} }}"
    return f"[[reply]]\n{when}\nsteps = [{{ calls = [{', '.join(tables)}] }}]"


@contextlib.contextmanager
def run_agent_server(folder: Path, everything_url: str) -> Iterator[ServerProcess]:
    """Run the server. `everything_url` is the URL of the MCP reference server."""
    (folder / "script.toml").write_text(build_script())
    program, *arguments = build_command("stdio")
    (folder / "antiphon.toml").write_text(
        f"[[mcp]]\nlabel = 'http'\nurl = {json.dumps(everything_url)}\n"
        f"[[mcp]]\nlabel = 'stdio'\ncommand = {json.dumps(program)}\nargs = {json.dumps(arguments)}\n"
    )
    with run_server(
        "--engine", "fake", "--fake-script", str(folder / "script.toml"), "--config", str(folder / "antiphon.toml"),
        "--store", "memory", "--max-turns", str(MAX_TOOL_TURNS), "--tool-timeout", str(TOOL_TIMEOUT_SECONDS),
    ) as server:  # fmt: skip
        yield server
