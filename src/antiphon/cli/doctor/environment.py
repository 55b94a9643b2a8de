"""Checks of the environment: open files, sandboxing, API keys, access log, trace collector, and MCP servers.

The key check warns if the server is reachable from other machines without keys. The tools of MCP servers are listed, as
by a request that names them.
"""

import asyncio
import ctypes
import os
import resource
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from time import time
from urllib.parse import urlsplit

from antiphon.cli.doctor.findings import Finding, join_names, ok, shorten, warning, wrong
from antiphon.config import Config
from antiphon.config.areas import traces_url
from antiphon.config.key_settings import load_configured_keys
from antiphon.egress import EgressClient, EgressPolicy
from antiphon.errors import AntiphonError, StartupError
from antiphon.observe.logs import STDERR
from antiphon.protocol.types.tools import McpTool
from antiphon.stores.registry import make_store, parse_location
from antiphon.tools.mcp.client import McpClient
from antiphon.tools.mcp.settings import make_mcp_settings

_BASE_FILES = 128  # files for the store, logs, child processes and idle connections to engines
_FILES_PER_RESPONSE = 2  # the client's connection, and one to an engine
_SYS_LANDLOCK_CREATE_RULESET = 444  # system call number on all architectures
_LANDLOCK_CREATE_RULESET_VERSION = 1


async def check_open_files(config: Config) -> list[Finding]:
    """Check the limit of open files, which applies to each process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    sockets = config.server.max_websocket_connections if config.server.websocket == "on" else 0
    needed = _BASE_FILES + sockets + _FILES_PER_RESPONSE * config.storage.max_active_sessions
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return [ok(f"{soft if soft != resource.RLIM_INFINITY else 'An unlimited number of'} files may be open.")]
    can_raise = hard == resource.RLIM_INFINITY or hard >= needed
    remedy = (
        f"ulimit -n {needed}" if can_raise else f"LimitNOFILE={needed} in its systemd unit, or the container's ulimits"
    )
    return [
        warning(
            f"{soft} files may be open, but {needed} are needed with --max-active-sessions"
            f" {config.storage.max_active_sessions} and {sockets} WebSockets.",
            f"{remedy}; or lower these settings.",
        )
    ]


async def report_sandbox(config: Config) -> list[Finding]:
    """Report sandboxing mechanisms, for a future code interpreter: never a problem."""
    available = []
    if path := shutil.which("bwrap"):
        available.append(f"bubblewrap ({path})")
    if (version := _landlock_version()) is not None:
        available.append(f"Landlock {version}")
    if _has_user_namespaces():
        available.append("user namespaces")
    return [ok(f"Not used yet. Available: {', '.join(available) or 'none'}.")]


def _landlock_version() -> int | None:
    """Return the Landlock ABI version of the kernel, or None."""
    if not sys.platform.startswith("linux"):
        return None
    version: int = ctypes.CDLL(None, use_errno=True).syscall(
        _SYS_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), _LANDLOCK_CREATE_RULESET_VERSION
    )
    return version if version > 0 else None


def _has_user_namespaces() -> bool:
    with suppress(OSError, ValueError):
        return int(Path("/proc/sys/user/max_user_namespaces").read_text()) > 0 and os.path.exists("/proc/self/ns/user")
    return False


_MIN_KEY_LENGTH = 16
_OTHER_USERS_MODE = 0o007  # permission bits for other users


async def check_keys(config: Config) -> list[Finding]:
    configured = load_configured_keys(config)
    stored, is_complete = await _count_stored_keys(config)
    findings = [_assess_keys(config, len(configured), stored, is_complete)]
    if any(len(key.key) < _MIN_KEY_LENGTH for key in configured):
        findings.append(
            warning(
                f"A key has fewer than {_MIN_KEY_LENGTH} characters and may be guessed.",
                "Create one with: openssl rand -hex 24",
            )
        )
    file = config.server.api_key_file
    if file is not None and file.stat().st_mode & _OTHER_USERS_MODE:
        findings.append(warning(f"All users of this machine can read {file}.", f"chmod o= {file}"))
    return findings


def _assess_keys(config: Config, configured: int, stored: int, is_complete: bool) -> Finding:
    """Assess the number of keys. `is_complete`: the store could be read."""
    if configured or stored:
        return ok(f"{configured} in the settings, {stored} in the store: every client needs one.")
    if config.server.on_loopback:
        return ok("None: all users of this machine have access, other machines cannot connect.")
    unknown_note = "" if is_complete else ", and the keys of the store could not be read"
    return wrong(
        f"No key is set{unknown_note}, but {config.server.host} is reachable from other machines.",
        "Create a key with `antiphon keys create`, set one with --api-key, or listen on 127.0.0.1.",
    )


async def _count_stored_keys(config: Config) -> tuple[int, bool]:
    """Return the number of valid keys in the store, and whether it could be read.

    A store whose schema is not current is not opened.
    """
    try:
        if parse_location(config.storage.store_location)[0] == "memory":
            return 0, True
        store = make_store(config.storage.store_location, config.storage.store_ttl)
        schema = await store.schema()
        if schema.current == 0:
            return 0, True
        if schema.pending or schema.current > schema.newest:
            return 0, False
        try:
            await store.open()
            rows = await store.api_keys()
        finally:
            await store.close()
    except (AntiphonError, StartupError, OSError):  # reported by the check of the store
        return 0, False
    now = time()
    return sum(row.revoked is None and (row.expires is None or row.expires > now) for row in rows), True


_COLLECTOR_SECONDS = 3.0
_DEFAULT_PORTS = {"http": 80, "https": 443}


async def check_observability(config: Config) -> list[Finding]:
    url = traces_url(config.observability.otlp_endpoint, config.observability.otlp_traces_endpoint)
    findings = [
        *_check_access_log(config.observability.access_log),
        *([] if url is None else [await _check_collector(url)]),
    ]
    return findings or [ok("The access log and tracing are off.")]


def _check_access_log(target: str | None) -> Iterator[Finding]:
    if target is None:
        return
    path = Path(target).absolute()
    is_possible = not path.is_dir() if path.exists() else path.parent.is_dir()
    if target == STDERR or (is_possible and os.access(path if path.exists() else path.parent, os.W_OK)):
        yield ok("The access log is writable.")
        return
    reason = (
        "this user lacks the permission"
        if is_possible
        else "it is a folder"
        if path.is_dir()
        else f"there is no folder {path.parent}"
    )
    yield wrong(
        f"The access log {target} cannot be written: {reason}.", "Fix that, or choose another file with --access-log."
    )


async def _check_collector(url: str) -> Finding:
    """Check the connection to the collector. The server also runs without it."""
    parts = urlsplit(url)
    address = f"{parts.hostname}:{parts.port or _DEFAULT_PORTS[parts.scheme]}"
    try:
        async with asyncio.timeout(_COLLECTOR_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port or _DEFAULT_PORTS[parts.scheme])
    except (OSError, TimeoutError):
        remedy = "Start it, or correct --otlp-endpoint: until then spans are dropped, and counted in the metrics."
        return warning(f"No trace collector answers at {address}.", remedy)
    with closing(writer):
        return ok(f"Traces are sent to {address}.")


_CHECK_TENANT = "doctor"


async def check_mcp_servers(config: Config) -> list[Finding]:
    if not config.tools.mcp_servers:
        return [ok("No MCP server is configured.")]
    client = McpClient(make_mcp_settings(config), EgressClient(EgressPolicy(config.tools.allow_egress)))
    try:
        return [*await asyncio.gather(*(_check_mcp_server(client, label) for label in client.labels))]
    finally:
        await client.close()


async def _check_mcp_server(client: McpClient, label: str) -> Finding:
    tools = client.begin(_CHECK_TENANT, [McpTool(server_label=label)])
    try:
        listing = await tools.list_tools(label)
    except AntiphonError as error:
        return wrong(f"{label}: {shorten(error)}", "Start the server, or correct its url, command or authorization.")
    finally:
        await tools.close()
    names = [tool.name for tool in listing.tools]
    return ok(f"{label}: {join_names(names) or 'no tools'}.")
