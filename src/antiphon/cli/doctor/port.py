"""Checks that the port is free. If it is not, the finding names the process that uses it."""

import asyncio
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import msgspec
from msgspec import Struct

from antiphon.cli.doctor.findings import Finding, ok, warning, wrong
from antiphon.config import Config
from antiphon.errors import StartupError
from antiphon.transport.process.listening_sockets import bind_sockets

_REPLY_SECONDS = 2.0
_STATE_LISTEN = "0A"  # TCP_LISTEN in /proc/net/tcp


class _ServerVersion(Struct):
    version: str


async def check_port(config: Config) -> list[Finding]:
    return await asyncio.to_thread(_try_listen, config)


def _try_listen(config: Config) -> list[Finding]:
    try:
        for socket in bind_sockets(config):
            socket.close()
    except StartupError as error:
        return [_describe_conflict(config, str(error))]
    if config.server.port == 0:
        return [ok(f"A free port on {config.server.host} is selected at startup.")]
    return [ok(f"{config.server.port} on {config.server.host} is free.")]


def _describe_conflict(config: Config, message: str) -> Finding:
    host = (
        ("::1" if config.server.host == "::" else "127.0.0.1")
        if config.server.host in ("0.0.0.0", "::")
        else config.server.host
    )
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
