"""Whether the port is free, or who has it."""

import asyncio
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import msgspec
from msgspec import Struct

from antiphon.cli.doctor.findings import Finding, fine, warning, wrong
from antiphon.config import Config
from antiphon.errors import StartupError
from antiphon.transport.server import listen

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
