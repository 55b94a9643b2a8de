"""A server with a known capacity and load for it, for the drills `overload` and `noisy`."""

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import msgspec

from bench.harness.process_meter import rss_bytes
from bench.harness.servers import Server, run_process
from drills.harness.findings import percentile
from drills.load.load_generator import KINDS, LoadResult, LoadSpec, question_text

_MIB = 1024 * 1024


@contextlib.contextmanager
def run_server(slots: int, delay: float, settings: str, keys: str = "") -> Iterator[Server]:
    """Run a server whose engine gives about `slots` answers per `delay` seconds; `keys` are lines of TENANT KEY."""
    with tempfile.TemporaryDirectory() as folder:
        file, key_file, script = Path(folder, "antiphon.toml"), Path(folder, "keys"), Path(folder, "script.toml")
        script.write_text("".join(_render_reply(number, delay) for number in range(KINDS)))
        key_file.write_text(keys)
        key_setting = f"api_key_file = '{key_file}'\n" if keys else ""
        engine = f"[[engines]]\nurl = 'fake'\nslots = {slots}\n"
        file.write_text(f"{key_setting}fake_script = '{script}'\n{settings}\n{engine}")
        command = str(Path(sys.executable).with_name("antiphon"))
        serve = [command, "serve", "--config", str(file), "--port", "0", "--store", f"{folder}/store.db"]
        with run_process(serve) as server:
            yield server


def _render_reply(number: int, delay: float) -> str:
    """Vary the duration: equal durations would end together, and a waiting request would wait for a full one."""
    duration = delay * (0.75 + 0.5 * number / (KINDS - 1))
    when = f'when = {{ contains = "{question_text(number)}" }}'
    return f'[[reply]]\n{when}\nsteps = [{{ delay = {duration:.3f} }}, {{ say = "Fine." }}]\n'


async def run_load(spec: LoadSpec) -> list[LoadResult]:
    """Run one load generator in a separate process, so that several do not delay each other, and return its results."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "drills.load.load_generator",
        msgspec.json.encode(spec).decode(),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError("the load generator failed")
    return msgspec.json.decode(output, type=list[LoadResult])


@contextlib.asynccontextmanager
async def sample_memory(server: Server) -> AsyncIterator[list[float]]:
    """Sample the server's memory in MiB every 0.2 seconds."""
    samples: list[float] = []

    async def sample() -> None:
        while True:
            samples.append(rss_bytes(server.pid) / _MIB)
            await asyncio.sleep(0.2)

    task = asyncio.create_task(sample())
    try:
        yield samples
    finally:
        task.cancel()
        await asyncio.wait([task])


def latency(results: Sequence[LoadResult], share: float) -> float:
    """Return a percentile of the latency of successful requests, in seconds."""
    return percentile([one.took for one in results if one.status == 200], share)


def p99(results: Sequence[LoadResult]) -> float:
    return latency(results, 0.99)


def goodput(results: Sequence[LoadResult], seconds: float) -> float:
    """Return the successful answers per second."""
    return sum(one.status == 200 for one in results) / seconds


def find_violations(results: Sequence[LoadResult]) -> list[str]:
    """Report requests without an answer, with an unexpected status, or with a rejection without Retry-After."""
    found = []
    for one in results:
        if one.status not in (200, 429, 503):
            found.append(f"a request was answered with {one.status or 'nothing'} after {one.took:.1f} s")
        elif one.status != 200 and not one.later:
            found.append(f"a {one.status} has no Retry-After")
    return found
