"""A server with a known capacity, and crowds that come to it: for the drills of overload and of a noisy tenant."""

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import msgspec

from bench.harness.process_meter import rss_bytes
from bench.harness.servers import Server, started
from drills.harness.findings import percentile
from drills.load.load_generator import KINDS, Asks, Got, question

_MIB = 1024 * 1024


@contextlib.contextmanager
def serving(slots: int, delay: float, settings: str, keys: str = "") -> Iterator[Server]:
    """An engine that gives `slots` answers in each `delay`, more or less; `keys` are lines of TENANT KEY."""
    with tempfile.TemporaryDirectory() as folder:
        file, key_file, script = Path(folder, "antiphon.toml"), Path(folder, "keys"), Path(folder, "script.toml")
        script.write_text("".join(_reply(number, delay) for number in range(KINDS)))
        key_file.write_text(keys)
        named = f"api_key_file = '{key_file}'\n" if keys else ""
        engine = f"[[engines]]\nurl = 'fake'\nslots = {slots}\n"
        file.write_text(f"{named}fake_script = '{script}'\n{settings}\n{engine}")
        command = str(Path(sys.executable).with_name("antiphon"))
        serve = [command, "serve", "--config", str(file), "--port", "0", "--store", f"{folder}/store.db"]
        with started(serve) as server:
            yield server


def _reply(number: int, delay: float) -> str:
    """Not all take equally long, or they would end together, and whoever waits would wait for all of it."""
    took = delay * (0.75 + 0.5 * number / (KINDS - 1))
    when = f'when = {{ contains = "{question(number)}" }}'
    return f'[[reply]]\n{when}\nsteps = [{{ delay = {took:.3f} }}, {{ say = "Fine." }}]\n'


async def came(asks: Asks) -> list[Got]:
    """What came of it. A process of its own, so that crowds do not hold each other up."""
    crowd = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "drills.load.load_generator",
        msgspec.json.encode(asks).decode(),
        stdout=asyncio.subprocess.PIPE,
    )
    answer, _ = await crowd.communicate()
    if crowd.returncode:
        raise RuntimeError("the crowd did not get home")
    return msgspec.json.decode(answer, type=list[Got])


@contextlib.asynccontextmanager
async def watched(server: Server) -> AsyncIterator[list[float]]:
    """MiB of the server's memory, a few times a second."""
    seen: list[float] = []

    async def watch() -> None:
        while True:
            seen.append(rss_bytes(server.pid) / _MIB)
            await asyncio.sleep(0.2)

    task = asyncio.create_task(watch())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.wait([task])


def p99(got: Sequence[Got]) -> float:
    """Seconds, of those that were answered."""
    return percentile([one.took for one in got if one.status == 200], 0.99)


def good(got: Sequence[Got], seconds: float) -> float:
    """Answers in a second."""
    return sum(one.status == 200 for one in got) / seconds


def wrong(got: Sequence[Got]) -> list[str]:
    """What nobody should have got: no answer, a refusal without a word about when to come back, a defect."""
    found = []
    for one in got:
        if one.status not in (200, 429, 503):
            found.append(f"a request was answered with {one.status or 'nothing'} after {one.took:.1f} s")
        elif one.status != 200 and not one.later:
            found.append(f"a {one.status} has no Retry-After")
    return found
