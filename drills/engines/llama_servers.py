"""llama.cpp servers with the built-in model as child processes that can be killed and restarted on the same socket."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from antiphon.config.base_folders import cache_home
from antiphon.engines.embedded.known_models import DEFAULT_MODEL
from antiphon.engines.embedded.model_files import fetch_model
from antiphon.engines.llamacpp.child import LlamaCppLaunch

START_SECONDS = 60.0
SLOTS = 4
CONTEXT = 1024


class LlamaServer:
    """A llama.cpp server on a Unix socket."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"llamacpp-server+unix://{self._socket}"

    async def start(self) -> None:
        """Start the process and wait until it listens."""
        self._socket.unlink(missing_ok=True)
        launch = LlamaCppLaunch(
            model=str(fetch_model(DEFAULT_MODEL, cache_home())),
            context=CONTEXT,
            slots=SLOTS,
            threads=1,
            connections=4 * SLOTS,
            batch=256,
            socket=str(self._socket),
            parent=os.getpid(),
        )
        self._process = subprocess.Popen(  # noqa: ASYNC220 - starting takes a moment, and no other task waits
            [sys.executable, "-m", "antiphon.engines.llamacpp.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(launch) + b"\n")
        self._process.stdin.flush()
        async with asyncio.timeout(START_SECONDS):
            line = await asyncio.to_thread(self._process.stdout.readline)
        if error := msgspec.json.decode(line or b'"it died"', type=str):
            raise RuntimeError(f"llama.cpp did not start: {error}")

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait(timeout=10)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self._process = None


@contextlib.asynccontextmanager
async def run_llama_servers(folder: Path, count: int) -> AsyncIterator[list[LlamaServer]]:
    servers = [LlamaServer(folder / f"{number}.sock") for number in range(count)]
    try:
        for server in servers:
            await server.start()
        yield servers
    finally:
        for server in servers:
            server.kill()
