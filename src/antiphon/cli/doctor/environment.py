"""What the system allows: open files, and what a sandbox could be made of.

Whether the port is free, or who has it.

Who is let in: keys that are given, keys in the store, and nobody without one where others can come.

Who watches the server: an access log that can be written, a collector of traces that is there.

The operator's MCP servers: each is asked for its tools, as a request that names it would.
"""

import asyncio
import ctypes
import os
import resource
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from time import time
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from antiphon.cli.doctor.findings import Finding, cut, fine, listed, warning, wrong
from antiphon.config import Config
from antiphon.config.areas.observability import traces_url
from antiphon.config.key_settings import given_keys
from antiphon.egress import Egress, Policy
from antiphon.errors import AntiphonError, StartupError
from antiphon.observe.access_log import STDERR
from antiphon.protocol.types.tools import McpTool
from antiphon.stores.registry import make_store, named
from antiphon.tools.mcp.client import Mcp
from antiphon.tools.mcp.settings import settings_of
from antiphon.transport.process.server import listen

_ALWAYS = 128  # files: the store, logs, children, connections that are kept to engines
_BOTH_ENDS = 2  # of a response: its client's connection, and one to an engine
_LANDLOCK = 444  # the number of landlock_create_ruleset, on every architecture
_ASK_VERSION = 1


async def limits(config: Config) -> list[Finding]:
    """Of each process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    sockets = config.max_websocket_connections if config.websocket == "on" else 0
    wanted = _ALWAYS + sockets + _BOTH_ENDS * config.max_active_sessions
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return [fine(f"{soft if soft != resource.RLIM_INFINITY else 'Any number of'} files may be open.")]
    able = hard == resource.RLIM_INFINITY or hard >= wanted
    raised = f"ulimit -n {wanted}" if able else f"LimitNOFILE={wanted} in its systemd unit, or the container's ulimits"
    return [
        warning(
            f"{soft} files may be open, and {wanted} would be with --max-active-sessions {config.max_active_sessions}"
            f" and {sockets} WebSockets.",
            f"{raised}; or lower these settings.",
        )
    ]


async def sandbox(config: Config) -> list[Finding]:
    """For a code interpreter, which there is none of yet: so nothing here can be wrong."""
    found = []
    if path := shutil.which("bwrap"):
        found.append(f"bubblewrap ({path})")
    if (version := _landlock()) is not None:
        found.append(f"Landlock {version}")
    if _user_namespaces():
        found.append("user namespaces")
    return [fine(f"Not used yet. There is: {', '.join(found) or 'nothing to make one of'}.")]


def _landlock() -> int | None:
    """The version that the kernel has, if any."""
    if not sys.platform.startswith("linux"):
        return None
    version: int = ctypes.CDLL(None, use_errno=True).syscall(_LANDLOCK, None, ctypes.c_size_t(0), _ASK_VERSION)
    return version if version > 0 else None


def _user_namespaces() -> bool:
    with suppress(OSError, ValueError):
        return int(Path("/proc/sys/user/max_user_namespaces").read_text()) > 0 and os.path.exists("/proc/self/ns/user")
    return False


_ANSWER_SECONDS = 2.0
_LISTENING = "0A"  # as /proc/net/tcp has it


class _Version(Struct):
    version: str


async def port(config: Config) -> list[Finding]:
    return await asyncio.to_thread(_look, config)


def _look(config: Config) -> list[Finding]:
    try:
        for one in listen(config):
            one.close()
    except StartupError as error:
        return [_taken(config, str(error))]
    if config.port == 0:
        return [fine(f"A free one on {config.host} is taken at the start.")]
    return [fine(f"{config.port} on {config.host} is free.")]


def _taken(config: Config, sentence: str) -> Finding:
    where = ("::1" if config.host == "::" else "127.0.0.1") if config.host in ("0.0.0.0", "::") else config.host
    owner = _owner(config.port)
    if (version := _version(where, config.port)) is not None:
        return warning(
            f"Antiphon {version}{owner} is listening on port {config.port} already.",
            "Stop it before another one is started, or choose another port with --port.",
        )
    if not owner:
        return wrong(sentence)
    return wrong(f"Port {config.port} on {config.host} is in use{owner}.", "End it, or choose another with --port.")


def _version(host: str, number: int) -> str | None:
    """Of an Antiphon that answers there."""
    connection = HTTPConnection(host, number, timeout=_ANSWER_SECONDS)
    with closing(connection), suppress(OSError, HTTPException, msgspec.DecodeError):
        connection.request("GET", "/version")
        return msgspec.json.decode(connection.getresponse().read(4096), type=_Version).version
    return None


def _owner(number: int) -> str:
    """« by NAME, process N», where the system tells."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(number)}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if any(str(one.readlink()) in sockets for one in (folder / "fd").iterdir()):
                return f" by {(folder / 'comm').read_text().strip()}, process {folder.name}"
    return ""


def _inodes(number: int) -> list[str]:
    found = []
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == _LISTENING and int(words[1].rpartition(":")[2], 16) == number:
                    found.append(words[9])
    return found


_SHORT = 16
_OTHERS = 0o007  # rights of those who are neither its owner nor of its group


async def keys(config: Config) -> list[Finding]:
    given = given_keys(config)
    kept, known = await _stored(config)
    found = [_judged(config, len(given), kept, known)]
    if any(len(one.key) < _SHORT for one in given):
        found.append(
            warning(f"A key has fewer than {_SHORT} characters, and can be guessed.", "openssl rand -hex 24 makes one.")
        )
    file = config.api_key_file
    if file is not None and file.stat().st_mode & _OTHERS:
        found.append(warning(f"Everybody on this machine may read {file}.", f"chmod o= {file}"))
    return found


def _judged(config: Config, given: int, kept: int, known: bool) -> Finding:
    """`known`: the store could be asked."""
    if given or kept:
        return fine(f"{given} given, {kept} in the store: nobody comes in without one.")
    if config.on_loopback:
        return fine("None, and everybody on this machine is let in; nobody else can come.")
    doubt = "" if known else ", and the store could not be asked for any"
    return wrong(
        f"None is given{doubt}, and {config.host} lets others in than this machine.",
        "Make one with `antiphon keys create`, give one with --api-key, or listen on 127.0.0.1.",
    )


async def _stored(config: Config) -> tuple[int, bool]:
    """How many in the store let anybody in, and whether it could be asked. One that is not up to date is left alone."""
    try:
        if named(config.store_place)[0] == "memory":
            return 0, True
        store = make_store(config.store_place, config.store_ttl)
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
    except (AntiphonError, StartupError, OSError):  # the line about the store says so
        return 0, False
    now = time()
    return sum(row.revoked is None and (row.expires is None or row.expires > now) for row in rows), True


_SECONDS = 3.0
_PORTS = {"http": 80, "https": 443}


async def watchers(config: Config) -> list[Finding]:
    url = traces_url(config.otlp_endpoint, config.otlp_traces_endpoint)
    found = [*_access_log(config.access_log), *([] if url is None else [await _collector(url)])]
    return found or [fine("There is no access log, and nothing is traced.")]


def _access_log(place: str | None) -> Iterator[Finding]:
    if place is None:
        return
    path = Path(place).absolute()
    fits = not path.is_dir() if path.exists() else path.parent.is_dir()
    if place == STDERR or (fits and os.access(path if path.exists() else path.parent, os.W_OK)):
        yield fine("The access log can be written.")
        return
    why = "this user may not" if fits else "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
    yield wrong(f"The access log {place} cannot be written: {why}.", "Mend that, or name another with --access-log.")


async def _collector(url: str) -> Finding:
    """Without it the server serves all the same."""
    parts = urlsplit(url)
    where = f"{parts.hostname}:{parts.port or _PORTS[parts.scheme]}"
    try:
        async with asyncio.timeout(_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port or _PORTS[parts.scheme])
    except (OSError, TimeoutError):
        mend = "Start it, or correct --otlp-endpoint: until then spans are dropped and counted."
        return warning(f"No collector of traces answers at {where}.", mend)
    with closing(writer):
        return fine(f"Traces go to {where}.")


_TENANT = "doctor"


async def mcp_servers(config: Config) -> list[Finding]:
    if not config.mcp_servers:
        return [fine("No MCP server is named.")]
    mcp = Mcp(settings_of(config), Egress(Policy(config.allow_egress)))
    try:
        return [*await asyncio.gather(*(_asked(mcp, label) for label in mcp.labels))]
    finally:
        await mcp.close()


async def _asked(mcp: Mcp, label: str) -> Finding:
    tools = mcp.begin(_TENANT, [McpTool(server_label=label)])
    try:
        found = await tools.list(label)
    except AntiphonError as error:
        return wrong(f"{label}: {cut(error)}", "Start it, or correct its url, command or authorization.")
    finally:
        await tools.close()
    names = [tool.name for tool in found.tools]
    return fine(f"{label}: {listed(names) or 'no tools'}.")
