"""One child process from start to exit: it becomes ready, or it is stopped and the reason is raised.

Its socket is in a folder of its own that other users cannot enter. It exits with the parent, because its stdin closes.
"""

import asyncio
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections import deque
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec.structs import replace

from antiphon.engines.llamacpp.child import LaunchReport, LaunchSpec
from antiphon.errors import StartupError

log = logging.getLogger(__name__)

GRACE_SECONDS = 2.0  # between SIGTERM and SIGKILL
MAX_LOG_LINES = 40
MAX_LOG_LINE_BYTES = 64 * 1024


class ChildProcess:
    """A running llama.cpp child process and its log."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self.socket = str(folder / "llama.sock")
        self.batch = 0
        self._folder = folder
        self._process = process
        self._log_lines: deque[str] = deque(maxlen=MAX_LOG_LINES)
        self._line_count = 0
        self._line_added = asyncio.Event()
        self._log_reader = asyncio.create_task(self._read_log(), name=f"log of llama.cpp {process.pid}")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    @classmethod
    async def start(cls, launch: LaunchSpec, seconds: float) -> "ChildProcess":
        """Start a child and wait until its model is loaded; fills in `launch.socket` and `launch.parent`."""
        folder = Path(tempfile.mkdtemp(prefix="antiphon-"))  # 0700
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "antiphon.engines.llamacpp.child",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C must reach only the parent, which first lets answers finish
                limit=MAX_LOG_LINE_BYTES,
            )  # fmt: skip
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise StartupError(f"No process can be started for {launch.model}: {error.strerror}.") from None
        child = cls(process, folder)
        ready = False
        try:
            await child._load(replace(launch, socket=child.socket, parent=os.getpid()), seconds)
            ready = True
        finally:
            if not ready:
                await child.stop()
        return child

    async def wait_exited(self) -> int:
        return await self._process.wait()

    async def stop(self) -> None:
        """Stop the process; kill it if it does not exit within the grace period."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self.is_alive:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(GRACE_SECONDS):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        finally:
            self._log_reader.cancel()
            await asyncio.wait([self._log_reader])
            shutil.rmtree(self._folder, ignore_errors=True)

    def log_position(self) -> int:
        """Return the number of lines logged so far, for `find_in_log`."""
        return self._line_count

    async def find_in_log(self, text: str, position: int, seconds: float) -> str:
        """Return the first line after `position` that contains the text; "" after `seconds`. The log lags behind the
        responses.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not (found := self._find_line(text, self._line_count - position)):
                    self._line_added.clear()
                    await self._line_added.wait()
                return found
        return ""

    def _find_line(self, text: str, count: int) -> str:
        recent = list(self._log_lines)[-count:] if count > 0 else []
        return next((line for line in recent if text in line), "")

    async def _load(self, launch: LaunchSpec, seconds: float) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            async with asyncio.timeout(seconds):
                stdin.write(msgspec.json.encode(launch) + b"\n")
                line = await stdout.readline()
        except TimeoutError:
            raise StartupError(f"{launch.model} did not load within {seconds:.0f} seconds.") from None
        report = (
            msgspec.json.decode(line, type=LaunchReport)
            if line.endswith(b"\n")
            else LaunchReport(error="the process died")
        )
        if report.error:
            raise StartupError(f"{launch.model} cannot be loaded: {await self._load_error(report.error)}.")
        self.batch = report.batch

    async def _load_error(self, default: str) -> str:
        """Return the first error in llama.cpp's log, which is more precise than its exception, or the default."""
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS):
                await self._log_reader
        errors = [line.split(" E ", 1)[1] for line in self._log_lines if " E " in line]
        return (errors[0] if errors else default).strip().rstrip(".")

    async def _read_log(self) -> None:
        stderr = self._process.stderr
        assert stderr is not None
        while True:
            try:
                line = await stderr.readline()
            except ValueError:  # drop lines above the limit
                continue
            if not line:
                return
            text = line.decode("utf-8", "replace").rstrip()
            self._log_lines.append(text)
            self._line_count += 1
            self._line_added.set()
            log.debug("llama.cpp %d: %s", self._process.pid, text)
