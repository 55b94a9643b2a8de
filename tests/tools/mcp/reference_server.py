"""The reference server of MCP, @modelcontextprotocol/server-everything, on loopback and with an empty environment."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

from antiphon.config.mcp import McpServerSpec
from tests.support.npm import binary, installed
from tests.support.services import Service, free_port

HERE = Path(__file__).parent / "node"
PATHS = {"streamableHttp": "/mcp", "sse": "/sse"}


def command(transport: str) -> list[str]:
    script = installed(HERE) / "node_modules" / "@modelcontextprotocol" / "server-everything" / "dist" / "index.js"
    return [str(binary()), "--require", str(HERE / "loopback.cjs"), str(script), transport]


def program(label: str = "everything") -> McpServerSpec:
    """To be run by the operator's word."""
    first, *rest = command("stdio")
    return McpServerSpec(label=label, command=first, args=tuple(rest))


@contextlib.contextmanager
def serving(transport: str, folder: Path) -> Iterator[str]:
    """Its URL."""
    port = free_port()
    with (folder / f"{transport}.log").open("ab") as log:
        service = Service(command(transport), stdout=log, stderr=log, env={"PORT": str(port), "PATH": "/usr/bin:/bin"})
    service.wait_until(lambda: _listens(port))
    try:
        yield f"http://127.0.0.1:{port}{PATHS[transport]}"
    finally:
        service.stop()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
