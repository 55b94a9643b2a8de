"""The sandbox of this host: starts the sandbox process when it is first used, and again, after a pause, if it has died.

Server processes with the same settings share one sandbox process. It belongs to none of them: it ends when the last one
has disconnected.
"""

import asyncio
import codecs
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from platform import machine

import msgspec
from msgspec import Struct

from antiphon.config import Config
from antiphon.config.areas import SandboxLevel
from antiphon.errors import SandboxDisabled, SandboxUnavailable
from antiphon.sandbox.base import (
    CodeEvent,
    CodeResult,
    ContainerFile,
    ContainerLimits,
    Figure,
    PrintedText,
    SandboxStatus,
    StreamName,
)
from antiphon.sandbox.connection import LOST, SandboxConnection

_BOOT = Path(__file__).with_name("worker") / "boot.py"
_MACHINES = ("x86_64", "aarch64")
_START_SECONDS = 120.0  # importing all packages, for the first time
_POLL_SECONDS = 0.1
_CLOSE_SECONDS = 3.0
_CONTAINER_SECONDS = 40.0
_FILE_SECONDS = 60.0
_RUN_MARGIN = 60.0  # beyond the deadline of the code, for its start and its end
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 60.0
_STABLE_SECONDS = 60.0  # a process that has lived that long has not failed at its start
_PIECE = 1024 * 1024
_CORES = 2  # CPU time of a call, relative to its deadline


class SandboxSettings(Struct, frozen=True, kw_only=True):
    folder: Path
    level: SandboxLevel = "auto"
    python: str = sys.executable
    max_containers: int = 64


def make_sandbox_settings(config: Config) -> SandboxSettings:
    tools = config.tools
    folder = tools.sandbox_folder or Path(tempfile.gettempdir()) / f"antiphon-sandbox-{os.geteuid()}"
    return SandboxSettings(
        folder=folder.absolute(), level=tools.sandbox, python=tools.sandbox_python or sys.executable,
        max_containers=tools.sandbox_max_containers,
    )  # fmt: skip


class LocalSandbox:
    """Implements CodeSandbox."""

    def __init__(self, settings: SandboxSettings) -> None:
        self.settings = settings
        self.folder = settings.folder / sha256(repr(settings).encode()).hexdigest()[:12]
        self.name = f"{socket.gethostname()}:{self.folder}"
        self._connection: SandboxConnection | None = None
        self._disabled: SandboxDisabled | None = None  # why the last start failed, if the host was the reason
        self._connected_at = 0.0
        self._failures = 0
        self._not_before = 0.0
        self.process: subprocess.Popen[bytes] | None = None
        self._lock = asyncio.Lock()

    async def start(self, container_id: str, limits: ContainerLimits) -> None:
        connection = await self._connect()
        await connection.request("start", _CONTAINER_SECONDS, id=container_id, **msgspec.structs.asdict(limits))

    async def run(self, container_id: str, code: str, seconds: float) -> AsyncGenerator[CodeEvent, None]:
        connection = await self._connect()
        decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}
        arguments = {
            "id": container_id,
            "seconds": seconds,
            "cpu_seconds": _CORES * (seconds + 1),
        }  # the deadline has a grace
        answers = connection.stream("run", seconds + _RUN_MARGIN, code.encode(errors="replace"), **arguments)
        is_over = False
        try:
            async for header, data in answers:
                is_over = "end" in header
                if "stream" in header:
                    name: StreamName = header["stream"]
                    yield PrintedText(name, decoders[name].decode(data))
                elif "figure" in header:
                    yield Figure(data)
                else:
                    yield msgspec.convert(header, CodeResult)
        finally:
            await answers.aclose()
            if not is_over and connection.is_open:
                await self.interrupt(container_id)

    async def interrupt(self, container_id: str) -> None:
        await (await self._connect()).request("interrupt", _CONTAINER_SECONDS, id=container_id)

    async def put(self, container_id: str, path: str, pieces: AsyncIterator[bytes]) -> None:
        connection, offset = await self._connect(), 0
        async for data in pieces:
            for begin in range(0, len(data), _PIECE):
                piece = data[begin : begin + _PIECE]
                await connection.request("put", _FILE_SECONDS, piece, id=container_id, path=path, offset=offset)
                offset += len(piece)
        if offset == 0:
            await connection.request("put", _FILE_SECONDS, id=container_id, path=path, offset=0)

    async def get(self, container_id: str, path: str) -> AsyncGenerator[bytes, None]:
        connection, offset = await self._connect(), 0
        while True:
            header, data = await connection.request("get", _FILE_SECONDS, id=container_id, path=path, offset=offset)
            offset += len(data)
            if data:
                yield data
            if not data or offset >= header["size"]:
                return

    async def list_files(self, container_id: str) -> tuple[ContainerFile, ...]:
        header, _ = await (await self._connect()).request("list", _FILE_SECONDS, id=container_id)
        return msgspec.convert(header["files"], tuple[ContainerFile, ...])

    async def remove(self, container_id: str, path: str) -> None:
        await (await self._connect()).request("remove", _FILE_SECONDS, id=container_id, path=path)

    async def stop(self, container_id: str) -> None:
        await (await self._connect()).request("stop", _CONTAINER_SECONDS, id=container_id)

    async def status(self) -> SandboxStatus:
        return await _read_status(await self._connect())

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None
        await self._reap()

    async def _reap(self) -> None:
        """Wait for the end of the sandbox process, if this server started it and no other one uses it."""
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self.process.wait, _CLOSE_SECONDS)
            self.process = None

    async def _connect(self) -> SandboxConnection:
        """Return the connection, made if necessary. Raises SandboxUnavailable, at once if a start has just failed."""
        async with self._lock:
            if self._connection is not None and self._connection.is_open:
                return self._connection
            if self._connection is not None:
                self._note_failure(is_stable=time.monotonic() - self._connected_at > _STABLE_SECONDS)
                await self.close()
            if (pause := self._not_before - time.monotonic()) > 0:
                if self._disabled is not None:
                    raise SandboxDisabled(self._disabled.message)
                raise SandboxUnavailable("The sandbox has failed and is being restarted.", retry_after=pause)
            try:
                self._connection = await self._open()
            except SandboxUnavailable as error:
                self._disabled = error if isinstance(error, SandboxDisabled) else None
                self._note_failure(is_stable=False)
                raise
            self._connected_at = time.monotonic()
            return self._connection

    def _note_failure(self, is_stable: bool) -> None:
        """Set the time of the next start. The first failure after a long time costs no pause."""
        self._failures = 0 if is_stable else self._failures + 1
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (self._failures - 1)) if self._failures else 0.0
        self._not_before = time.monotonic() + pause

    async def _open(self) -> SandboxConnection:
        self._check_platform()
        _make_private(self.settings.folder)
        try:
            async with asyncio.timeout(_START_SECONDS):
                connection, level = await self._join_or_start()
        except TimeoutError:
            if self.process is not None:
                self.process.kill()
            raise SandboxUnavailable(f"The sandbox was not ready within {_START_SECONDS:g} s.")
        if level == "none" or self.settings.level not in ("auto", level):  # a defect, or another program
            await connection.close()
            raise SandboxUnavailable(f"The sandbox has the level {level} instead of {self.settings.level}.")
        return connection

    def _check_platform(self) -> None:
        if self.settings.level == "none":
            raise SandboxDisabled("Code is not run on this server (--sandbox none).")
        if sys.platform != "linux" or machine() not in _MACHINES:
            raise SandboxDisabled("Code can be run on Linux only, on x86-64 or aarch64 (--sandbox).")

    async def _join_or_start(self) -> tuple[SandboxConnection, str]:
        """Connect to the sandbox process, and start it until it serves: one that just ends still has the folder."""
        self.process = None
        while (joined := await self._join()) is None:
            if self.process is not None:
                await asyncio.sleep(_POLL_SECONDS)
                if self.process.poll():
                    raise SandboxUnavailable(LOST)
            await self._start_process()
        return joined

    async def _join(self) -> tuple[SandboxConnection, str] | None:
        """Connect to a sandbox process that serves, whoever started it, and read its level."""
        try:
            streams = await asyncio.open_unix_connection(self.folder / "socket", limit=1 << 24)
        except (FileNotFoundError, ConnectionError):
            return None
        connection = SandboxConnection(*streams)
        try:
            return connection, (await _read_status(connection)).level
        except SandboxUnavailable:  # it ends, as its last client has just disconnected
            await connection.close()
            return None

    async def _start_process(self) -> None:
        """Start a sandbox process, with an empty environment and no files, and wait until it serves or ends."""
        options = {"folder": str(self.folder), "level": self.settings.level}
        command = [
            self.settings.python, "-I", "-B", "-X", "utf8", str(_BOOT), "sandbox",
            msgspec.json.encode({**options, "max_containers": self.settings.max_containers}).decode(),
        ]  # fmt: skip

        def start() -> "subprocess.Popen[bytes]":
            """Start it, but not by asyncio, which would kill it with this server although others use it."""
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                start_new_session=True, env={}, cwd="/",
            )  # fmt: skip

        try:
            self.process = process = await asyncio.to_thread(start)
        except OSError as error:
            raise SandboxUnavailable(f"{self.settings.python} cannot be started: {error.strerror}.")
        assert process.stderr is not None
        with process.stderr:  # it is closed when the process serves, and written to only if it fails
            reason = (await asyncio.to_thread(process.stderr.read, 4096)).decode(errors="replace").strip()
        if reason:
            last = reason.rpartition("\n")[2]
            raise SandboxDisabled(f"There is no sandbox on this host (--sandbox {self.settings.level}): {last}")


async def _read_status(connection: SandboxConnection) -> SandboxStatus:
    header, _ = await connection.request("stat", _FILE_SECONDS)
    return msgspec.convert(header, SandboxStatus)


def _make_private(folder: Path) -> None:
    """Make the folder. One that other users can write to, such as one that they made before, is refused."""
    try:
        folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise SandboxUnavailable(f"The sandbox's folder {folder} cannot be used: {error.strerror}.")
    if not folder.is_dir() or folder.is_symlink() or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise SandboxUnavailable(f"The sandbox's folder {folder} belongs to others, or others can write to it.")
