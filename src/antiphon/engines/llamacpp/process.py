"""One child process from its start to its end: it is ready, or it is gone and there is a sentence why.

Its socket lies in a folder of its own that nobody else may enter. It ends with us: its stdin closes.
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

from antiphon.engines.llamacpp.child import Launch, Report
from antiphon.errors import StartupError

log = logging.getLogger(__name__)

GRACE_SECONDS = 2.0  # between asking a child to end and ending it
LOG_LINES = 40
LOG_LINE_BYTES = 64 * 1024


class Child:
    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self.socket = str(folder / "llama.sock")
        self.batch = 0
        self._folder = folder
        self._process = process
        self._said: deque[str] = deque(maxlen=LOG_LINES)
        self._lines = 0
        self._heard = asyncio.Event()
        self._listener = asyncio.create_task(self._listen(), name=f"log of llama.cpp {process.pid}")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    @classmethod
    async def start(cls, launch: Launch, seconds: float) -> "Child":
        """`launch.socket` and `launch.parent` are filled in here."""
        folder = Path(tempfile.mkdtemp(prefix="antiphon-"))  # 0700
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "antiphon.engines.llamacpp.child",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for us: we let answers end first
                limit=LOG_LINE_BYTES,
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

    async def exited(self) -> int:
        return await self._process.wait()

    async def stop(self) -> None:
        """Within the grace; by force if it must be."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self.alive:
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
            self._listener.cancel()
            await asyncio.wait([self._listener])
            shutil.rmtree(self._folder, ignore_errors=True)

    def mark(self) -> int:
        """How many lines it has logged: for `logged`."""
        return self._lines

    async def logged(self, word: str, since: int, seconds: float) -> str:
        """The first line after a mark that has the word; "" if none comes in time. The log lags behind the answers."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not (found := self._find(word, self._lines - since)):
                    self._heard.clear()
                    await self._heard.wait()
                return found
        return ""

    def _find(self, word: str, lines: int) -> str:
        recent = list(self._said)[-lines:] if lines > 0 else []
        return next((line for line in recent if word in line), "")

    async def _load(self, launch: Launch, seconds: float) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            async with asyncio.timeout(seconds):
                stdin.write(msgspec.json.encode(launch) + b"\n")
                line = await stdout.readline()
        except TimeoutError:
            raise StartupError(f"{launch.model} did not load within {seconds:.0f} seconds.") from None
        report = msgspec.json.decode(line, type=Report) if line.endswith(b"\n") else Report(error="the process died")
        if report.error:
            raise StartupError(f"{launch.model} cannot be loaded: {await self._why(report.error)}.")
        self.batch = report.batch

    async def _why(self, otherwise: str) -> str:
        """The last error that llama.cpp logged says more than its exception."""
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS):
                await self._listener
        errors = [line.split(" E ", 1)[1] for line in self._said if " E " in line]
        return (errors[0] if errors else otherwise).strip().rstrip(".")

    async def _listen(self) -> None:
        stderr = self._process.stderr
        assert stderr is not None
        while True:
            try:
                line = await stderr.readline()
            except ValueError:  # longer than the limit: dropped
                continue
            if not line:
                return
            text = line.decode("utf-8", "replace").rstrip()
            self._said.append(text)
            self._lines += 1
            self._heard.set()
            log.debug("llama.cpp %d: %s", self._process.pid, text)
