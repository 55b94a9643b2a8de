"""A program of ours in a process of its own, for what somebody may have written to keep a reader busy for ever.

It hears all before it says a word, says so much at most, and lives as long as somebody waits for it.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

_READ = 256 * 1024
OUTCOMES: Counter[str] = Counter()  # of all that this process has had run: "done", "failed", or "killed" by it


async def said_by(program: Sequence[str], given: bytes, most: int) -> bytes:
    """What a Python program says to what it is given; `program`: its arguments, as Python takes them. It has no
    environment, and dies with whoever waits."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", *program,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True, env={}, cwd="/",
    )  # fmt: skip
    try:
        return await _exchanged(process, given, most)
    finally:
        OUTCOMES[_outcome(process.returncode)] += 1
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _outcome(code: int | None) -> str:
    return "killed" if code is None else "failed" if code else "done"


async def _exchanged(process: asyncio.subprocess.Process, given: bytes, most: int) -> bytes:
    ear, mouth = process.stdin, process.stdout
    assert ear is not None
    assert mouth is not None
    with suppress(ConnectionError):  # it died of its bounds
        ear.write(given)
        await ear.drain()
    ear.close()
    pieces: list[bytes] = []
    while most > 0 and (piece := await mouth.read(_READ)):
        pieces.append(piece)
        most -= len(piece)
    if most > 0:
        await process.wait()  # it has closed its mouth: it is about to end by itself
    return b"".join(pieces)
