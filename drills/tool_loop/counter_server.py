"""An MCP server with an effect: whoever calls its tool has counted, once more, under the word in the server's URL.

A process of its own, made with the mcp package. What happens is written to an append-only file before it can be heard
of: that the tools were asked for and told, that a call came, had its effect, and was answered. The URL also says how
long it takes: `/mcp?word=…&list=0.5&before=0.5&after=0.5`.
"""

import asyncio
import contextlib
import hashlib
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from tests.support.services import Service, free_port

What = Literal["listing", "listed", "called", "counted", "answered"]
Json = dict[str, Any]
TOOL = "count"


class Happened(Struct, frozen=True, kw_only=True):
    what: What
    word: str
    at: float  # of the clock that all processes of a machine share
    heard: str = ""  # digest of the Authorization it was asked with


class Counter:
    """The process, as a drill sees it."""

    def __init__(self, port: int, file: Path) -> None:
        self.port = port
        self._file = file
        self._offset = 0
        self._events: list[Happened] = []

    def url(self, word: str, **seconds: float) -> str:
        given = "".join(f"&{name}={value}" for name, value in seconds.items())
        return f"http://127.0.0.1:{self.port}/mcp?word={word}{given}"

    def happened(self) -> list[Happened]:
        """All of it, up to now."""
        with self._file.open("rb") as file:
            file.seek(self._offset)
            content = file.read()
        lines = content[: content.rfind(b"\n") + 1]
        self._offset += len(lines)
        self._events += [msgspec.json.decode(line, type=Happened) for line in lines.splitlines()]
        return self._events

    def times(self, what: What, word: str) -> int:
        return sum(one.what == what and one.word == word for one in self.happened())

    async def until(self, what: What, word: str, seconds: float) -> bool:
        """Whether it happened within so many seconds."""
        end = time.monotonic() + seconds
        while not self.times(what, word):
            if time.monotonic() > end:
                return False
            await asyncio.sleep(0.004)
        return True


@contextlib.contextmanager
def counting(folder: Path) -> Iterator[Counter]:
    port = free_port()
    file = folder / "counted"
    file.touch()
    with (folder / "counter.log").open("ab") as log:
        service = Service(
            [sys.executable, "-m", "drills.tool_loop.counter_server", str(port), str(file)], stdout=log, stderr=log
        )
    try:
        service.wait_until(lambda: _listens(port))
        yield Counter(port, file)
    finally:
        service.stop()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()[:16]


def main() -> None:
    import uvicorn
    from mcp import types
    from mcp.server.lowlevel import Server

    port, path = sys.argv[1:]
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(what: What, asked: Any) -> None:
        heard = digest(asked.headers.get("authorization", ""))
        line = Happened(what=what, word=asked.query_params["word"], at=time.monotonic(), heard=heard)
        os.write(file, msgspec.json.encode(line) + b"\n")

    async def listing(context: Any, params: Any) -> Any:
        asked = context.request
        write("listing", asked)
        await _wait(asked.query_params, "list")
        write("listed", asked)
        schema = {
            "type": "object",
            "properties": {"word": {"const": asked.query_params["word"]}},
            "required": ["word"],
        }
        return types.ListToolsResult(tools=[types.Tool(name=TOOL, description="Counts.", input_schema=schema)])

    async def calling(context: Any, params: Any) -> Any:
        asked = context.request
        write("called", asked)
        await _wait(asked.query_params, "before")
        if params.arguments != {"word": asked.query_params["word"]}:
            raise ValueError(f"called with {params.arguments}")
        write("counted", asked)
        await _wait(asked.query_params, "after")
        write("answered", asked)
        return types.CallToolResult(content=[types.TextContent(text="counted")])

    server = Server("counter", on_list_tools=listing, on_call_tool=calling)
    uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=int(port), log_level="warning")


async def _wait(given: Mapping[str, str], name: str) -> None:
    if name in given:
        await asyncio.sleep(float(given[name]))


if __name__ == "__main__":
    main()
