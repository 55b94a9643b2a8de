"""The interface of a sandbox: requests over a connection to the sandbox process that has the container."""

import codecs
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress

import msgspec

from antiphon.errors import SandboxUnavailable, UnknownContainer
from antiphon.sandbox.base import (
    CodeEvent,
    CodeResult,
    ContainerFile,
    ContainerLimits,
    Figure,
    FolderName,
    PrintedText,
    SandboxStatus,
    StreamName,
)
from antiphon.sandbox.connection import SandboxConnection
from antiphon.sandbox.relays import Relays, ServeConnection

_CONTAINER_SECONDS = 40.0
_FILE_SECONDS = 60.0
_RUN_MARGIN = 60.0  # beyond the deadline of the code, for its start and its end
_QUEUE_SECONDS = 600.0  # that a call waits for earlier ones of its container
_PIECE = 1024 * 1024
_CORES = 2  # CPU time of a call, relative to its deadline


class CodeSandbox(ABC):
    """Containers with files and a Python kernel each, on this host or on others.

    All methods raise AntiphonError, within a deadline.
    """

    name: str  # that no sandbox with other containers has

    @abstractmethod
    async def connect(self, container_id: str) -> SandboxConnection:
        """Return a connection for a container, within a deadline. Raises SandboxUnavailable and UnknownContainer."""

    @abstractmethod
    async def status(self) -> SandboxStatus:
        """Return what this sandbox is. It is started if necessary."""

    @abstractmethod
    async def close(self) -> None:
        """Stop all containers of this server, if no other one uses the sandbox."""

    async def start(self, container_id: str, limits: ContainerLimits) -> None:
        """Make a container. Raises Busy if there are too many."""
        await start_container(await self.connect(container_id), container_id, limits)

    async def run(
        self, container_id: str, code: str, seconds: float, serve: ServeConnection | None = None
    ) -> AsyncGenerator[CodeEvent, None]:
        """Run code, after earlier calls of the container; the last event is a CodeResult. Nothing is run twice.

        Its time begins when it starts. Raises Busy if earlier calls do not end within ten minutes. Closing the iterator
        interrupts the code, or takes the call out of the queue. `serve` is the proxy of a container with a network: it
        is called with each connection that the code makes.
        """
        connection = await self.connect(container_id)
        relays = Relays(connection, container_id, serve)
        decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        arguments = {
            "id": container_id,
            "seconds": seconds,
            "cpu_seconds": _CORES * (seconds + 1),
        }  # the deadline has a grace
        number, payload = connection.make_number(), code.encode(errors="replace")
        answers = connection.stream(
            "run", seconds + _RUN_MARGIN, payload, number=number, queued=_QUEUE_SECONDS, **arguments
        )
        is_over = False
        try:
            async for header, data in answers:
                is_over = "end" in header
                if "stream" in header:
                    name: StreamName = header["stream"]
                    yield PrintedText(name, decoders[name].decode(data))
                elif "figure" in header:
                    yield Figure(data)
                elif "connection" in header:
                    relays.open(header["connection"])
                else:
                    yield msgspec.convert(header, CodeResult)
        finally:
            await answers.aclose()
            await relays.close()
            if not is_over and connection.is_open:
                with suppress(SandboxUnavailable, UnknownContainer):  # then the code has ended with the connection
                    await connection.request("interrupt", _CONTAINER_SECONDS, id=container_id, run=number)

    async def interrupt(self, container_id: str) -> None:
        """Interrupt the running call, if any; a kernel with a CPU that does not stop within two seconds is killed."""
        await (await self.connect(container_id)).request("interrupt", _CONTAINER_SECONDS, id=container_id)

    async def put(
        self, container_id: str, path: str, pieces: AsyncIterator[bytes], folder: FolderName = "data"
    ) -> None:
        """Write a file."""
        connection, offset = await self.connect(container_id), 0
        arguments = {"id": container_id, "path": path, "folder": folder}
        async for data in pieces:
            for begin in range(0, len(data), _PIECE):
                piece = data[begin : begin + _PIECE]
                await connection.request("put", _FILE_SECONDS, piece, **arguments, offset=offset)
                offset += len(piece)
        if offset == 0:
            await connection.request("put", _FILE_SECONDS, **arguments, offset=0)

    async def get(self, container_id: str, path: str) -> AsyncGenerator[bytes, None]:
        """Return the pieces of a file."""
        connection, offset = await self.connect(container_id), 0
        while True:
            header, data = await connection.request("get", _FILE_SECONDS, id=container_id, path=path, offset=offset)
            offset += len(data)
            if data:
                yield data
            if not data or offset >= header["size"]:
                return

    async def list_files(self, container_id: str, folder: FolderName = "data") -> tuple[ContainerFile, ...]:
        """Return the regular files, sorted by path."""
        connection = await self.connect(container_id)
        header, _ = await connection.request("list", _FILE_SECONDS, id=container_id, folder=folder)
        return msgspec.convert(header["files"], tuple[ContainerFile, ...])

    async def remove(self, container_id: str, path: str) -> None:
        """Delete a file."""
        await (await self.connect(container_id)).request("remove", _FILE_SECONDS, id=container_id, path=path)

    async def stop(self, container_id: str) -> None:
        """Kill all processes of a container, and delete its files."""
        await (await self.connect(container_id)).request("stop", _CONTAINER_SECONDS, id=container_id)


async def start_container(connection: SandboxConnection, container_id: str, limits: ContainerLimits) -> None:
    await connection.request("start", _CONTAINER_SECONDS, id=container_id, **msgspec.structs.asdict(limits))


async def read_status(connection: SandboxConnection) -> SandboxStatus:
    header, _ = await connection.request("stat", _FILE_SECONDS)
    return msgspec.convert(header, SandboxStatus)
