"""Two engines behind one server, one of which is killed at token k of a run: who had no token yet is answered by the
other, who had some is told that the response failed, nobody is left without a word, and the killed one comes back."""

import asyncio
import random
import re
import tempfile
import time
from pathlib import Path
from typing import Any

from msgspec import Struct

from drills.engines.llama_servers import LlamaServer, llama_servers
from drills.harness.client import Client
from drills.harness.findings import Figure, Findings, percentile
from drills.harness.oracle import Wrong, text_of, whole
from tests.support.server_process import serving

NAMES = ("left", "right")
BESIDE = 3  # runs beside the one whose tokens are counted
MORE = 8  # tokens that a run has beyond that at which its engine is killed
LAST_TOKEN = 30  # at which an engine is killed at the latest
HANG_SECONDS = 60.0  # without a word
BACK_SECONDS = 60.0  # for an engine that is there again to be noticed
_BEGUN = 2  # events: created and in_progress
_ENOUGH = 4  # requests at once that one of two engines does not get alone, if they are at once
_TIMES = 6
_SECONDS = 0.02
_DELTA = b"event: response.output_text.delta"
_STATIC = re.compile(r'^antiphon_engine_(\w+)\{engine="(\w+)"\} (\d+)', re.MULTILINE)


class Run(Struct):
    """A response as its client saw it."""

    frames: list[bytes] = []
    whole: bool = False
    hung: bool = False
    ended_at: float = 0.0

    @property
    def tokens(self) -> int:
        return sum(frame.startswith(_DELTA) for frame in self.frames)


class Tally(Struct):
    """Over all rounds."""

    runs: int = 0
    moved: int = 0  # by the killing of an engine to another, and completed there
    failed: int = 0
    hung: int = 0
    told: list[float] = []  # seconds from a kill to the end of a response that failed of it
    back: list[float] = []  # seconds from the moment that an engine is there again until it can be given work


async def pool(kills: list[int], findings: Findings) -> None:
    """`kills`: the token at which an engine is killed, for each time; 0 is before the first."""
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="antiphon-pool-") as folder:
        async with llama_servers(Path(folder), len(NAMES)) as engines:
            settings = Path(folder) / "antiphon.toml"
            settings.write_text(_settings(engines))
            with serving("--config", str(settings), ready_seconds=60.0) as live:
                client = Client(live.port)
                await _all_there(client)
                for token in kills:
                    await _round(client, dict(zip(NAMES, engines, strict=True)), token, tally, findings)
                if "Traceback" in (said := live.output().decode(errors="replace")):
                    findings.violated(f"the server wrote a traceback: {said[said.index('Traceback') :][:2000]}")
    _conclude(tally, findings)


def tokens(times: int) -> list[int]:
    """From the first to the last, and every third time none."""
    return [0 if number % 3 == 0 else 1 + (LAST_TOKEN - 1) * number // max(times - 1, 1) for number in range(times)]


def _settings(engines: list[LlamaServer]) -> str:
    tables = [f'[[engines]]\nurl = "{one.url}"\nname = "{name}"\n' for name, one in zip(NAMES, engines, strict=True)]
    return "\n".join(['store = "memory"', 'log_level = "warning"', "accept_any_model = true", *tables])


async def _round(client: Client, engines: dict[str, LlamaServer], token: int, tally: Tally, findings: Findings) -> None:
    before = await _numbers(client)
    runs = [Run() for _ in range(1 + BESIDE)]
    reached = asyncio.Event()
    async with asyncio.TaskGroup() as clients:
        clients.create_task(_listen(client, runs[0], _body(token, reads=4), token, reached))
        await _until(client, "running", 1)
        victim = max(NAMES, key=(await _numbers(client))["running"].__getitem__)
        for run in runs[1:]:
            clients.create_task(_listen(client, run, _body(token), None, asyncio.Event()))
        async with asyncio.timeout(HANG_SECONDS):
            await reached.wait()
        had = [run.tokens for run in runs]
        killed_at = time.monotonic()
        engines[victim].kill()
    after = await _numbers(client)
    tally.moved += after["works"]["left"] + after["works"]["right"] - sum(before["works"].values()) - len(runs)
    _judge(runs, had, killed_at, tally, findings)
    await engines[victim].start()
    await _used_again(client, victim, tally, findings)
    findings.tried(len(runs))


async def _listen(client: Client, run: Run, body: dict[str, Any], token: int | None, reached: asyncio.Event) -> None:
    """To the end; what came is noted as it comes, since others look at it. `reached`: when there are so many tokens."""
    try:
        async with client.open("POST", "/v1/responses", body) as stream:
            while not stream.done:
                async with asyncio.timeout(HANG_SECONDS):
                    await stream.read(most=len(stream.frames) + 1)
                run.frames, run.whole = list(stream.frames), stream.done
                if token is not None and run.tokens >= token and len(run.frames) >= _BEGUN:
                    reached.set()
    except TimeoutError:
        run.hung = True
    finally:
        reached.set()
        run.ended_at = time.monotonic()


def _body(token: int, reads: int = 1) -> dict[str, Any]:
    """A run that reads much before its first token leaves time to kill its engine."""
    words = "Tell me what you know about the sea. " * reads
    return {
        "model": "any",
        "input": f"{random.randrange(10**9)} {words}",
        "stream": True,
        "max_output_tokens": token + MORE,
        "ignore_eos": True,
    }


def _judge(runs: list[Run], had: list[int], killed_at: float, tally: Tally, findings: Findings) -> None:
    for number, (run, tokens_then) in enumerate(zip(runs, had, strict=True)):
        tally.runs += 1
        if run.hung or not run.whole:
            tally.hung += 1
            findings.violated(f"a client was left without a word after {run.tokens} tokens")
            continue
        try:
            response = whole(run.frames)
        except Wrong as wrong:
            findings.violated(f"a stream is none: {wrong}")
            continue
        status = response["status"]
        if status == "failed":
            tally.failed += 1
            tally.told.append(run.ended_at - killed_at)
            if not run.tokens:
                findings.violated(f"a response failed before its first token: {response['error']}")
        elif status != "incomplete" or not text_of(response):
            findings.violated(f"a response ended {status} with {text_of(response)!r}")
        elif number == 0 and tokens_then:
            findings.violated(f"a response whose engine was killed at token {tokens_then} ended {status}")


async def _used_again(client: Client, name: str, tally: Tally, findings: Findings) -> None:
    """The engine is there; how long until that is known, and does it get work then?"""
    began, before = time.monotonic(), (await _numbers(client))["works"][name]
    await _all_there(client)
    tally.back.append(time.monotonic() - began)
    for _ in range(_TIMES):
        await asyncio.gather(*(_ask(client) for _ in range(_ENOUGH)))
        if (await _numbers(client))["works"][name] > before:
            return
    findings.violated(f"the engine {name} is there again, but gets no work")


async def _ask(client: Client) -> None:
    await client.post({**_body(0, reads=0), "stream": False, "max_output_tokens": 1})


async def _all_there(client: Client) -> None:
    async with asyncio.timeout(BACK_SECONDS):
        while (await client.get("/ready")).json().get("engines") != {"up": len(NAMES), "all": len(NAMES)}:  # noqa: ASYNC110 - only asking tells
            await asyncio.sleep(_SECONDS)


async def _until(client: Client, what: str, number: int) -> None:
    async with asyncio.timeout(BACK_SECONDS):
        while sum((await _numbers(client))[what].values()) < number:  # noqa: ASYNC110 - only asking tells
            await asyncio.sleep(_SECONDS)


async def _numbers(client: Client) -> dict[str, dict[str, int]]:
    """What the server says of its engines: running, works, failures, each by name."""
    found: dict[str, dict[str, int]] = {"running": {}, "works": {}, "failures": {}}
    for what, name, value in _STATIC.findall((await client.get("/metrics")).body.decode()):
        found.setdefault(what.removesuffix("_total"), {})[name] = int(value)
    return found


def _conclude(tally: Tally, findings: Findings) -> None:
    if not tally.moved:
        findings.violated("no run moved to the other engine: the drill has shown nothing")
    findings.figure(Figure("runs", tally.runs))
    findings.figure(Figure("moved", tally.moved))
    findings.figure(Figure("failed", tally.failed))
    findings.figure(Figure("hangs", tally.hung, most=0))
    findings.figure(Figure("told p99 s", percentile(tally.told, 0.99), most=2.0))
    findings.figure(Figure("noticed p99 s", percentile(tally.back, 0.99), most=12.0))
