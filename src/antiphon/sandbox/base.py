"""Containers of a sandbox, and what happens in them, as the server and the sandbox process state it."""

from typing import Literal

from msgspec import Struct

from antiphon.sandbox.worker.kernel import SHELL_CELL

Outcome = Literal["completed", "raised", "timeout", "interrupted", "killed"]
StreamName = Literal["stdout", "stderr"]
FolderName = Literal["data", "skills"]  # /mnt/data, and one that code can read only


class ContainerLimits(Struct, frozen=True, kw_only=True):
    """Limits of one container, in bytes and numbers, and whether it has a network."""

    memory: int = 1 << 30
    disk: int = 1 << 30
    files: int = 10_000
    processes: int = 64
    network: bool = False  # it may connect to the proxy of its calls


class ContainerFile(Struct, frozen=True):
    """A file in /mnt/data; the path is relative to that folder."""

    path: str
    size: int


class PrintedText(Struct, frozen=True):
    """Text that code has printed. The last value of a cell is on stdout, a traceback on stderr."""

    stream: StreamName
    text: str


class Figure(Struct, frozen=True):
    """A figure of matplotlib, as PNG."""

    png: bytes


class CodeResult(Struct, frozen=True, kw_only=True):
    """The end of a call.

    `killed` means that all processes were killed, and the variables are gone: `reason` is the limit (memory, disk,
    files, cpu, timeout), interrupted, cancelled, stopped, protocol, or exited if the kernel ended by itself.
    """

    outcome: Outcome
    reason: str = ""
    restarted: bool = False  # an earlier kernel was lost: this call began without its variables
    changed: tuple[ContainerFile, ...] = ()
    unlisted: int = 0  # more files that were changed
    dropped: int = 0  # bytes of output beyond the limit
    seconds: float = 0.0
    exit_code: int | None = None  # of a command that has ended by itself; 128 and more: by a signal


CodeEvent = PrintedText | Figure | CodeResult


def make_shell_cell(command: str) -> str:
    """Return the code that runs a command in a shell. At its deadline all processes that it has started are killed."""
    return SHELL_CELL + command


class SandboxStatus(Struct, frozen=True, kw_only=True):
    """The properties of a sandbox. `refused` has the reason for each stronger level that is not available."""

    level: str
    refused: dict[str, str]
    packages: dict[str, str]
    python: str
    landlock: int
    own_users: bool  # each container has a user of its own
    containers: tuple[str, ...]
    kills: dict[str, int]  # by reason
