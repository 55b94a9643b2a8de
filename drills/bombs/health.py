"""Requests a server's health repeatedly and reports how long each answer took, until its stdin ends.

It is a separate process, because the process that sends the bombs is busy creating them.
"""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter

import msgspec

from tests.faults.raw_client import read_response

_PAUSE_SECONDS = 0.005  # seconds
_REQUEST = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


class HealthTimes:
    """Seconds of each answer; filled in at the end."""

    def __init__(self) -> None:
        self.took: list[float] = []


@asynccontextmanager
async def measure_health(port: int) -> AsyncIterator[HealthTimes]:
    times = HealthTimes()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, str(port),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 26,
    )  # fmt: skip
    assert process.stdout is not None
    await process.stdout.readline()
    try:
        yield times
    finally:
        output, _ = await process.communicate(b"")
        if process.returncode:
            raise RuntimeError("The health requests failed before the drill ended.")
        times.took = msgspec.json.decode(output, type=list[float])


async def _request_health(port: int, stopped: threading.Event) -> list[float]:
    took: list[float] = []
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while not stopped.is_set():
        began = perf_counter()
        writer.write(_REQUEST)
        answer = await read_response(reader)
        if answer.status != 200:
            raise RuntimeError(f"the health request failed: {answer}")
        took.append(perf_counter() - began)
        await asyncio.sleep(_PAUSE_SECONDS)
    writer.close()
    return took


def _wait_for_eof(stopped: threading.Event) -> None:
    sys.stdin.read()
    stopped.set()


def main() -> None:
    stopped = threading.Event()
    threading.Thread(target=_wait_for_eof, args=(stopped,), daemon=True).start()
    sys.stdout.write("looking\n")
    sys.stdout.flush()
    sys.stdout.write(msgspec.json.encode(asyncio.run(_request_health(int(sys.argv[1]), stopped))).decode())


if __name__ == "__main__":
    main()
