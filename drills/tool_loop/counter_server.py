"""An MCP server whose tool has a side effect: each call counts once more under the nonce in the server's URL.

It runs as a separate process and uses the mcp package. Every step is written to an append-only file before it becomes
visible: tools requested and listed, call received, effect occurred, call answered. The URL also sets delays in seconds:
`/mcp?word=…&list=0.5&before=0.5&after=0.5`.
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

CounterEvent = Literal["listing", "listed", "called", "counted", "answered"]
Json = dict[str, Any]
TOOL = "count"


class CounterRecord(Struct, frozen=True, kw_only=True):
    """One line of the file; `word` is the nonce."""

    what: CounterEvent
    word: str
    at: float  # monotonic clock, shared by all processes of the machine
    heard: str = ""  # digest of the received Authorization header


class Counter:
    """The counter server as seen by a drill."""

    def __init__(self, port: int, file: Path) -> None:
        self.port = port
        self._file = file
        self._offset = 0
        self._records: list[CounterRecord] = []

    def url(self, nonce: str, **seconds: float) -> str:
        delays = "".join(f"&{name}={value}" for name, value in seconds.items())
        return f"http://127.0.0.1:{self.port}/mcp?word={nonce}{delays}"

    def read_records(self) -> list[CounterRecord]:
        """Return all records written so far."""
        with self._file.open("rb") as file:
            file.seek(self._offset)
            content = file.read()
        lines = content[: content.rfind(b"\n") + 1]
        self._offset += len(lines)
        self._records += [msgspec.json.decode(line, type=CounterRecord) for line in lines.splitlines()]
        return self._records

    def count_events(self, event: CounterEvent, nonce: str) -> int:
        return sum(one.what == event and one.word == nonce for one in self.read_records())

    async def wait_for_event(self, event: CounterEvent, nonce: str, seconds: float) -> bool:
        """Wait for the event; returns False after the timeout."""
        deadline = time.monotonic() + seconds
        while not self.count_events(event, nonce):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.004)
        return True


@contextlib.contextmanager
def run_counter(folder: Path) -> Iterator[Counter]:
    port = free_port()
    file = folder / "counted"
    file.touch()
    with (folder / "counter.log").open("ab") as log:
        service = Service(
            [sys.executable, "-m", "drills.tool_loop.counter_server", str(port), str(file)], stdout=log, stderr=log
        )
    try:
        service.wait_until(lambda: _is_listening(port))
        yield Counter(port, file)
    finally:
        service.stop()


def _is_listening(port: int) -> bool:
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

    def write(event: CounterEvent, request: Any) -> None:
        authorization_digest = digest(request.headers.get("authorization", ""))
        line = CounterRecord(
            what=event, word=request.query_params["word"], at=time.monotonic(), heard=authorization_digest
        )
        os.write(file, msgspec.json.encode(line) + b"\n")

    async def list_tools(context: Any, params: Any) -> Any:
        request = context.request
        write("listing", request)
        await _delay(request.query_params, "list")
        write("listed", request)
        schema = {
            "type": "object",
            "properties": {"word": {"const": request.query_params["word"]}},
            "required": ["word"],
        }
        return types.ListToolsResult(tools=[types.Tool(name=TOOL, description="Counts.", input_schema=schema)])

    async def call_tool(context: Any, params: Any) -> Any:
        request = context.request
        write("called", request)
        await _delay(request.query_params, "before")
        if params.arguments != {"word": request.query_params["word"]}:
            raise ValueError(f"called with {params.arguments}")
        write("counted", request)
        await _delay(request.query_params, "after")
        write("answered", request)
        return types.CallToolResult(content=[types.TextContent(text="counted")])

    server = Server("counter", on_list_tools=list_tools, on_call_tool=call_tool)
    uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=int(port), log_level="warning")


async def _delay(query: Mapping[str, str], name: str) -> None:
    if name in query:
        await asyncio.sleep(float(query[name]))


if __name__ == "__main__":
    main()
