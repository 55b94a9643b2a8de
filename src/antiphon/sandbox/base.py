"""The interface of a sandbox, whether it runs on this host or on another one."""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Literal, Protocol

from msgspec import Struct

from antiphon.sandbox.relays import ServeConnection
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


class CodeSandbox(Protocol):
    """Containers with files and a Python kernel each. All methods raise AntiphonError, within a deadline."""

    name: str  # that no sandbox with other containers has

    async def start(self, container_id: str, limits: ContainerLimits) -> None:
        """Make a container. Raises Busy if there are too many."""

    def run(
        self, container_id: str, code: str, seconds: float, serve: ServeConnection | None = None
    ) -> AsyncGenerator[CodeEvent, None]:
        """Run code, after earlier calls of the container; the last event is a CodeResult. Nothing is run twice.

        Its time begins when it starts. Raises Busy if earlier calls do not end within ten minutes. Closing the iterator
        interrupts the code, or takes the call out of the queue. `serve` is the proxy of a container with a network: it
        is called with each connection that the code makes.
        """

    async def interrupt(self, container_id: str) -> None:
        """Interrupt the running call, if any; a kernel with a CPU that does not stop within two seconds is killed."""

    async def put(
        self, container_id: str, path: str, pieces: AsyncIterator[bytes], folder: FolderName = "data"
    ) -> None:
        """Write a file."""

    def get(self, container_id: str, path: str) -> AsyncGenerator[bytes, None]:
        """Return the pieces of a file."""

    async def list_files(self, container_id: str, folder: FolderName = "data") -> tuple[ContainerFile, ...]:
        """Return the regular files, sorted by path."""

    async def remove(self, container_id: str, path: str) -> None:
        """Delete a file."""

    async def stop(self, container_id: str) -> None:
        """Kill all processes of a container, and delete its files."""

    async def status(self) -> SandboxStatus:
        """Return what this sandbox is. It is started if necessary."""

    async def close(self) -> None:
        """Stop all containers of this server, if no other one uses the sandbox."""
