"""The MCP reference server, @modelcontextprotocol/server-everything, on loopback with an empty environment."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

from antiphon.config.tool_settings import McpServerSpec
from tests.support.npm import install_packages, node_binary
from tests.support.services import Service, free_port

NODE_FOLDER = Path(__file__).parent / "node"
PATHS = {"streamableHttp": "/mcp", "sse": "/sse"}


def build_command(transport: str) -> list[str]:
    script = (
        install_packages(NODE_FOLDER)
        / "node_modules"
        / "@modelcontextprotocol"
        / "server-everything"
        / "dist"
        / "index.js"
    )
    return [str(node_binary()), "--require", str(NODE_FOLDER / "loopback.cjs"), str(script), transport]


def make_server_spec(label: str = "everything") -> McpServerSpec:
    """Return the spec with which an operator configures the server as a program over stdio."""
    first, *arguments = build_command("stdio")
    return McpServerSpec(label=label, command=first, args=tuple(arguments))


@contextlib.contextmanager
def run_reference_server(transport: str, folder: Path) -> Iterator[str]:
    """Run the server and yield its URL."""
    port = free_port()
    with (folder / f"{transport}.log").open("ab") as log:
        service = Service(
            build_command(transport), stdout=log, stderr=log, env={"PORT": str(port), "PATH": "/usr/bin:/bin"}
        )
    service.wait_until(lambda: _is_listening(port))
    try:
        yield f"http://127.0.0.1:{port}{PATHS[transport]}"
    finally:
        service.stop()


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
