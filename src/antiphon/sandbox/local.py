"""The sandbox of this host: starts the sandbox process when it is first used, and again, after a pause, if it has died.

Server processes with the same settings share one sandbox process. It belongs to none of them: it ends when the last one
has disconnected.
"""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path
from platform import machine

import msgspec
from msgspec import Struct

from antiphon.config import Config
from antiphon.config.areas import SandboxLevel
from antiphon.errors import SandboxDisabled, SandboxUnavailable
from antiphon.operating_system import get_user_id
from antiphon.sandbox.base import SandboxStatus
from antiphon.sandbox.client import CodeSandbox, read_status
from antiphon.sandbox.connection import LOST, SandboxConnection
from antiphon.sandbox.link import SandboxLink
from antiphon.sandbox.worker.paths import PYTHON_FLAGS

_BOOT = Path(__file__).with_name("worker") / "boot.py"
_MACHINES = ("x86_64", "aarch64")
_START_SECONDS = 120.0  # importing all packages, for the first time
_POLL_SECONDS = 0.1
_CLOSE_SECONDS = 3.0


class SandboxSettings(Struct, frozen=True, kw_only=True):
    folder: Path
    level: SandboxLevel = "auto"
    python: str = sys.executable
    max_containers: int = 64


def make_sandbox_settings(config: Config) -> SandboxSettings:
    tools = config.tools
    folder = tools.sandbox_folder or Path(tempfile.gettempdir()) / f"antiphon-sandbox-{get_user_id()}"
    return SandboxSettings(
        folder=folder.absolute(), level=tools.sandbox, python=tools.sandbox_python or sys.executable,
        max_containers=tools.sandbox_max_containers,
    )  # fmt: skip


class LocalSandbox(SandboxLink, CodeSandbox):
    def __init__(self, settings: SandboxSettings) -> None:
        super().__init__(settings.level)
        self.settings = settings
        self.folder = settings.folder / sha256(repr(settings).encode()).hexdigest()[:12]
        self.name = f"{socket.gethostname()}:{self.folder}"
        self.process: subprocess.Popen[bytes] | None = None

    async def open_streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the sandbox process. Raises OSError if none serves."""
        return await asyncio.open_unix_connection(self.folder / "socket", limit=1 << 24)

    async def connect(self, container_id: str) -> SandboxConnection:
        return await self.open()

    async def status(self) -> SandboxStatus:
        return await read_status(await self.open())

    async def close(self) -> None:
        await super().close()
        await self._reap()

    async def _reap(self) -> int:
        """Wait for the end of the sandbox process, if this server started it and no other one uses it.

        Returns its exit code, or 0 if it serves others.
        """
        process, self.process = self.process, None
        if process is None:
            return 0
        try:
            return await asyncio.to_thread(process.wait, _CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            process.returncode = 0  # Popen would warn that it still runs
            return 0

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
        try:
            self.check_level(level)
        except SandboxUnavailable:
            await connection.close()
            raise
        return connection

    def _check_platform(self) -> None:
        if self.settings.level == "none":
            raise SandboxDisabled("Code is not run on this server (--sandbox none).")
        if sys.platform != "linux" or machine() not in _MACHINES:
            raise SandboxDisabled("Code can be run on Linux only, on x86-64 or aarch64 (--sandbox).")

    async def _join_or_start(self) -> tuple[SandboxConnection, str]:
        """Connect to the sandbox process, and start it until it serves: one that just ends still has the folder."""
        await self._reap()
        while (joined := await self._join()) is None:
            if self.process is not None:
                await asyncio.sleep(_POLL_SECONDS)
                if await self._reap():
                    raise SandboxUnavailable(LOST)
            await self._start_process()
        return joined

    async def _join(self) -> tuple[SandboxConnection, str] | None:
        """Connect to a sandbox process that serves, whoever started it, and read its level."""
        try:
            streams = await self.open_streams()
        except (FileNotFoundError, ConnectionError):
            return None
        connection = SandboxConnection(*streams)
        try:
            return connection, (await read_status(connection)).level
        except SandboxUnavailable:  # it ends, as its last client has just disconnected
            await connection.close()
            return None

    async def _start_process(self) -> None:
        """Start a sandbox process, with an empty environment and no files, and wait until it serves or ends."""
        settings = self.settings
        options = {"folder": str(self.folder), "level": settings.level, "max_containers": settings.max_containers}
        command = [settings.python, *PYTHON_FLAGS, str(_BOOT), "sandbox", msgspec.json.encode(options).decode()]

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
            await self._reap()
            last = reason.rpartition("\n")[2]
            raise SandboxDisabled(f"There is no sandbox on this host (--sandbox {self.settings.level}): {last}")


def _make_private(folder: Path) -> None:
    """Make the folder. One that other users can write to, such as one that they made before, is refused."""
    try:
        folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise SandboxUnavailable(f"The sandbox's folder {folder} cannot be used: {error.strerror}.")
    if not folder.is_dir() or folder.is_symlink() or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise SandboxUnavailable(f"The sandbox's folder {folder} belongs to others, or others can write to it.")
