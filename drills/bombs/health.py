"""Asks a server for its health, over and over, and says how long each answer took. A process of its own: whoever throws
bombs is busy making them. It goes on until its input ends."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter

import msgspec

from tests.faults.raw_client import read_answer

_PAUSE = 0.005  # seconds
_ASK = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


class Looks:
    """Seconds that each answer took; filled in at the end."""

    def __init__(self) -> None:
        self.took: list[float] = []


@asynccontextmanager
async def looking(port: int) -> AsyncIterator[Looks]:
    looks = Looks()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, str(port),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 26,
    )  # fmt: skip
    assert process.stdout is not None
    await process.stdout.readline()
    try:
        yield looks
    finally:
        said, _ = await process.communicate(b"")
        if process.returncode:
            raise RuntimeError("Nobody could ask for the health of the server until the end.")
        looks.took = msgspec.json.decode(said, type=list[float])


async def _look(port: int, over: threading.Event) -> list[float]:
    took: list[float] = []
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while not over.is_set():
        began = perf_counter()
        writer.write(_ASK)
        answer = await read_answer(reader)
        if answer.status != 200:
            raise RuntimeError(f"no health: {answer}")
        took.append(perf_counter() - began)
        await asyncio.sleep(_PAUSE)
    writer.close()
    return took


def _await_end(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


def main() -> None:
    over = threading.Event()
    threading.Thread(target=_await_end, args=(over,), daemon=True).start()
    sys.stdout.write("looking\n")
    sys.stdout.flush()
    sys.stdout.write(msgspec.json.encode(asyncio.run(_look(int(sys.argv[1]), over))).decode())


if __name__ == "__main__":
    main()
