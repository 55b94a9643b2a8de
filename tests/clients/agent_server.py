"""What the fake model does when it is told `play NAME.`, and a server whose operator knows an MCP server by two labels.

A call's bare name is enough where one server alone has such a tool. What ends with tool outputs is answered, unless a
play says how it goes on.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.server_process import Live, serving
from tests.tools.mcp.reference_server import command

TURNS = 4  # with tools
SILENCE = 2.0  # seconds that a tool may go without a sign of life

Call = tuple[str, dict[str, Any]]


def call(name: str, **arguments: Any) -> Call:
    return name, arguments


SUM = call("get-sum", a=2, b=40)
# What it calls first, all of it in one turn.
PLAYS: dict[str, list[Call]] = {
    "sum": [SUM],
    "echo": [call("echo", message="hallo")],
    "structure": [call("get-structured-content", location="Chicago")],
    "image": [call("get-tiny-image")],
    "links": [call("get-resource-links", count=2)],
    "bad": [call("get-sum", a="two")],
    "unheard": [call("nobody-offers-this")],
    "three": [SUM, call("echo", message="hallo"), call("get-sum", a=1, b=1)],
    "twins": [call("one__echo", message="first"), call("two__echo", message="second")],
    "mixed": [SUM, call("get_weather", city="Oslo", days=2)],
    "long": [
        call("trigger-long-running-operation", duration=60, steps=1),
        call("trigger-long-running-operation", duration=3, steps=6),
    ],
}
# The others go on forever, or as long as they may.
_ENDLESS = """
[[reply]]
when = { contains = "play endless.", tool = "everything__get-sum" }
steps = [{ call = { name = "everything__get-sum", arguments = { a = 2, b = 40 } } }]
"""
_ANSWERED = """
[[reply]]
when = { output = "" }
steps = [{ answer = true }]
"""


def script() -> str:
    return "\n".join([_ENDLESS, _ANSWERED, *(_reply(name, calls) for name, calls in PLAYS.items())])


def _reply(name: str, calls: list[Call]) -> str:
    """The arguments are quoted as JSON, which is a string of TOML too."""
    tables = [
        f"{{ name = {json.dumps(tool)}, arguments = {json.dumps(json.dumps(given))}, chunks = 3 }}"
        for tool, given in calls
    ]
    when = f"when = {{ contains = {json.dumps(f'play {name}.')} }}"
    return f"[[reply]]\n{when}\nsteps = [{{ calls = [{', '.join(tables)}] }}]"


@contextlib.contextmanager
def serving_agentic(folder: Path, everything: str) -> Iterator[Live]:
    """`everything`: the URL of the reference server."""
    (folder / "script.toml").write_text(script())
    program, *arguments = command("stdio")
    (folder / "antiphon.toml").write_text(
        f"[[mcp]]\nlabel = 'http'\nurl = {json.dumps(everything)}\n"
        f"[[mcp]]\nlabel = 'stdio'\ncommand = {json.dumps(program)}\nargs = {json.dumps(arguments)}\n"
    )
    with serving(
        "--engine", "fake", "--fake-script", str(folder / "script.toml"), "--config", str(folder / "antiphon.toml"),
        "--store", "memory", "--max-turns", str(TURNS), "--tool-timeout", str(SILENCE),
    ) as live:  # fmt: skip
        yield live
