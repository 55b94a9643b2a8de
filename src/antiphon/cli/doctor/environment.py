"""Checks of the environment: port, open files, sandboxing, access log, trace collector, MCP and tool servers.

The tools of these servers are listed, as by a request that names them.
"""

import asyncio
import math
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.cli.doctor.findings import Finding, ok, shorten, warning, wrong
from antiphon.cli.terminal import join_names
from antiphon.config import Config
from antiphon.egress import EgressClient, EgressPolicy
from antiphon.errors import AntiphonError, SandboxUnavailable, StartupError
from antiphon.observe.logs import STDERR
from antiphon.operating_system import get_file_limits
from antiphon.protocol.types.tools import McpTool
from antiphon.sandbox.factory import make_sandbox
from antiphon.tools.mcp.client import McpClient
from antiphon.tools.mcp.servers import McpSettings, make_mcp_settings
from antiphon.tools.tool_server.server import SERVER_FUNCTIONS
from antiphon.transport.process.listening_sockets import bind_sockets

_REPLY_SECONDS = 2.0
_STATE_LISTEN = "0A"  # TCP_LISTEN in /proc/net/tcp


class _ServerVersion(Struct):
    version: str


def check_port(config: Config) -> Iterator[Finding]:
    """Check that the port is free. If it is not, the finding names the process that uses it."""
    host, port = config.server.host, config.server.port
    try:
        for socket in bind_sockets(config):
            socket.close()
        yield ok(f"{port} on {host} is free." if port else f"A free port on {host} is selected at startup.")
    except StartupError as error:
        yield _describe_conflict(config, str(error))


def _describe_conflict(config: Config, message: str) -> Finding:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.server.host, config.server.host)
    owner = _find_owner(config.server.port)
    if (version := _probe_version(host, config.server.port)) is not None:
        return warning(
            f"Antiphon {version}{owner} already listens on port {config.server.port}.",
            "Stop it before starting another server, or choose another port with --port.",
        )
    if not owner:
        return wrong(message)
    return wrong(
        f"Port {config.server.port} on {config.server.host} is in use{owner}.",
        "Stop that process, or choose another port with --port.",
    )


def _probe_version(host: str, number: int) -> str | None:
    """Return the version of an Antiphon that listens there, or None."""
    connection = HTTPConnection(host, number, timeout=_REPLY_SECONDS)
    with closing(connection), suppress(OSError, HTTPException, msgspec.DecodeError):
        connection.request("GET", "/version")
        return msgspec.json.decode(connection.getresponse().read(4096), type=_ServerVersion).version
    return None


def _find_owner(number: int) -> str:
    """Return « by NAME, process N» of the process that listens on the port, or an empty text if that is unknown."""
    sockets = {f"socket:[{inode}]" for inode in _find_inodes(number)}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if any(str(link.readlink()) in sockets for link in (folder / "fd").iterdir()):
                return f" by {(folder / 'comm').read_text().strip()}, process {folder.name}"
    return ""


def _find_inodes(number: int) -> list[str]:
    inodes = []
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                columns = line.split()
                if columns[3] == _STATE_LISTEN and int(columns[1].rpartition(":")[2], 16) == number:
                    inodes.append(columns[9])
    return inodes


_BASE_FILES = 128  # files for the store, logs, child processes and idle connections to engines
_FILES_PER_RESPONSE = 2  # the client's connection, and one to an engine


def check_open_files(config: Config) -> Iterator[Finding]:
    """Check the limit of open files, which applies to each process."""
    if (limits := get_file_limits()) is None:
        yield ok("The system does not limit the number of open files.")
        return
    soft, hard = limits
    sockets = config.server.max_websocket_connections if config.server.websocket == "on" else 0
    needed = _BASE_FILES + sockets + _FILES_PER_RESPONSE * config.storage.max_active_sessions
    if soft >= needed:
        yield ok(f"{'An unlimited number of' if math.isinf(soft) else soft} files may be open.")
        return
    remedy = f"LimitNOFILE={needed} in its systemd unit, or the container's ulimits"
    if hard >= needed:
        remedy = f"ulimit -n {needed}"
    yield warning(
        f"{soft} files may be open, but {needed} are needed with --max-active-sessions"
        f" {config.storage.max_active_sessions} and {sockets} WebSockets.",
        f"{remedy}; or lower these settings.",
    )


async def check_sandbox(config: Config) -> AsyncIterator[Finding]:
    """Start a sandbox as a code interpreter would, and report its level and packages."""
    if config.tools.sandbox == "none":
        yield ok("Code is not run on this server (--sandbox none).")
        return
    sandbox = make_sandbox(config)
    try:
        status = await sandbox.status()
    except SandboxUnavailable as error:
        yield warning(shorten(error), "See sandbox.md for what it needs; or choose --sandbox none.")
        return
    finally:
        await sandbox.close()
    packages = join_names([f"{name} {version}" for name, version in status.packages.items()]) or "no packages"
    where = f"Workers of {join_names([*config.tools.sandbox_url])}: level" if config.tools.sandbox_url else "Level"
    yield ok(f"{where} {status.level}, Landlock {status.landlock}; Python {status.python} with {packages}.")
    for level, reason in status.refused.items():
        yield warning(f"The stronger level {level} is not available: {reason}.")


_COLLECTOR_SECONDS = 3.0
_DEFAULT_PORTS = {"http": 80, "https": 443}


async def check_observability(config: Config) -> AsyncIterator[Finding]:
    target = config.observability.access_log
    url = config.observability.traces_url
    if target is None and url is None:
        yield ok("The access log and tracing are off.")
    if target is not None:
        yield _check_access_log(target)
    if url is not None:
        yield await _check_collector(url)


def _check_access_log(target: str) -> Finding:
    path = Path(target).absolute()
    if target == STDERR:
        reason = ""
    elif path.is_dir():
        reason = "it is a folder"
    elif not path.parent.is_dir():
        reason = f"there is no folder {path.parent}"
    else:
        is_writable = os.access(path if path.exists() else path.parent, os.W_OK)
        reason = "" if is_writable else "this user lacks the permission"
    if not reason:
        return ok("The access log is writable.")
    remedy = "Fix that, or choose another file with --access-log."
    return wrong(f"The access log {target} cannot be written: {reason}.", remedy)


async def _check_collector(url: str) -> Finding:
    """Check the connection to the collector. The server also runs without it."""
    parts = urlsplit(url)
    port = parts.port or _DEFAULT_PORTS[parts.scheme]
    address = f"{parts.hostname}:{port}"
    try:
        async with asyncio.timeout(_COLLECTOR_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except (OSError, TimeoutError):
        remedy = "Start it, or correct --otlp-endpoint: until then spans are dropped, and counted in the metrics."
        return warning(f"No trace collector answers at {address}.", remedy)
    with closing(writer):
        return ok(f"Traces are sent to {address}.")


_CHECK_TENANT = "doctor"


async def check_mcp_servers(config: Config) -> AsyncIterator[Finding]:
    if not config.tools.mcp_servers:
        yield ok("No MCP server is configured.")
        return
    async for finding in _check_servers(config, make_mcp_settings(config), {}):
        yield finding


async def check_tool_servers(config: Config) -> AsyncIterator[Finding]:
    if not (servers := config.tools.tool_server_specs):
        yield ok("No tool server is configured.")
        return
    async for finding in _check_servers(config, replace(make_mcp_settings(config), servers=servers), SERVER_FUNCTIONS):
        yield finding
    if "browser" in servers and config.web_search.url is not None:
        yield warning("The tool server browser replaces --web-search-url.", "Remove one of them.")


async def _check_servers(
    config: Config, settings: McpSettings, needed: Mapping[str, Sequence[str]]
) -> AsyncIterator[Finding]:
    """Check all servers concurrently. `needed`: the tools that each must have, by label."""
    client = McpClient(settings, EgressClient(EgressPolicy(config.tools.allow_egress)))
    try:
        checks = [_check_mcp_server(client, label, needed.get(label, ())) for label in client.labels]
        for finding in await asyncio.gather(*checks):
            yield finding
    finally:
        await client.close()


async def _check_mcp_server(client: McpClient, label: str, needed: Sequence[str]) -> Finding:
    tools = client.begin(_CHECK_TENANT, [McpTool(server_label=label)])
    try:
        listing = await tools.list_tools(label)
    except AntiphonError as error:
        return wrong(f"{label}: {shorten(error)}", "Start the server, or correct its url, command or authorization.")
    finally:
        await tools.close()
    names = [tool.name for tool in listing.tools]
    if lacking := [name for name in needed if name not in names]:
        return wrong(f"{label}: the server has no tool {join_names(lacking)}.", "Name the URL of another one.")
    return ok(f"{label}: {join_names(names) or 'no tools'}.")
