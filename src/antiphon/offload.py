"""Work beside the current task: large pieces of CPU-bound work run in a thread, programs that parse untrusted input,
which could keep a parser busy forever, in a child process, and work that outlasts a request in background tasks.

A child reads all of its input before it writes, its output is bounded, and it is killed when the caller stops waiting.
"""

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

MAX_INLINE_BYTES = 256 * 1024  # below this, starting a thread costs more than the work
_READ_BYTES = 256 * 1024
OUTCOMES: Counter[str] = Counter()  # children of this process by result: "done", "failed", or "killed" by this process


async def run_sized(size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that processes `size` bytes, in a thread if they are many."""
    if size <= MAX_INLINE_BYTES:
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)


async def run_python(arguments: Sequence[str], stdin: bytes, max_bytes: int) -> bytes:
    """Run Python with `arguments`, write `stdin` to it, and return at most about `max_bytes` of its output.

    The child has an empty environment, and is killed if the caller is cancelled.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", *arguments,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True, env={}, cwd="/",
        )  # fmt: skip
    except asyncio.CancelledError:  # the loop has killed it
        OUTCOMES["killed"] += 1
        raise
    except NotImplementedError:  # Windows, see new_event_loop
        log.error("Untrusted documents cannot be read: the event loop of this system starts no child processes.")
        OUTCOMES["failed"] += 1
        return b""
    try:
        return await _communicate(process, stdin, max_bytes)
    finally:
        code = process.returncode
        OUTCOMES["killed" if code is None else "failed" if code else "done"] += 1
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _communicate(process: asyncio.subprocess.Process, stdin: bytes, max_bytes: int) -> bytes:
    """Write all input, then read the output until it ends or exceeds `max_bytes`."""
    writer, reader = process.stdin, process.stdout
    assert writer is not None
    assert reader is not None
    with suppress(ConnectionError):  # the child may be killed by its resource limits
        writer.write(stdin)
        await writer.drain()
    writer.close()
    chunks: list[bytes] = []
    while max_bytes > 0 and (chunk := await reader.read(_READ_BYTES)):
        chunks.append(chunk)
        max_bytes -= len(chunk)
    if max_bytes > 0:
        await process.wait()  # stdout is closed: the child is about to exit by itself
    return b"".join(chunks)


class TimedEvent(asyncio.Event):
    """An event that can be awaited for a limited time."""

    async def wait_for(self, seconds: float) -> bool:
        """Wait until the event is set, for at most this many seconds. Returns whether it is set."""
        try:
            async with asyncio.timeout(seconds):
                return await self.wait()
        except TimeoutError:
            return False


class BackgroundTasks:
    """Holds references to tasks until they end, waits for them at shutdown, and logs unexpected errors."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    async def wait_all(self) -> None:
        """Wait until no task remains. Cancelling the waiter does not cancel the tasks."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self, grace: float = 0.0) -> None:
        """Wait for up to `grace` seconds, then cancel the remaining tasks and wait for them."""
        if self._tasks and grace:
            await asyncio.wait(self._tasks, timeout=grace)
        for task in self._tasks:
            task.cancel()
        await self.wait_all()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task failed", exc_info=error)
