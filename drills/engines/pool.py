"""Drill `pool`: two engines behind one server, one of which is killed at token k of a run.

Runs without a token are answered by the other engine, runs with tokens fail, no client hangs, and the killed engine is
used again after its restart.
"""

import asyncio
import random
import re
import tempfile
import time
from pathlib import Path
from typing import Any

from msgspec import Struct

from drills.engines.llama_servers import LlamaServer, run_llama_servers
from drills.harness.client import Client
from drills.harness.findings import Figure, Findings, percentile
from drills.harness.oracle import InvalidStream, output_text, terminal_response
from tests.support.server_process import run_server

NAMES = ("left", "right")
EXTRA_RUNS = 3  # runs besides the one whose tokens are counted
EXTRA_TOKENS = 8  # tokens of a run after the one at which its engine is killed
LAST_TOKEN = 30  # latest token at which an engine is killed
HANG_SECONDS = 60.0  # between two events
RECOVERY_SECONDS = 60.0  # until the server notices a restarted engine
_START_EVENTS = 2  # `response.created` and `response.in_progress`
_BURST_REQUESTS = 4  # concurrent requests, enough to be spread over both engines
_BURSTS = 6
_POLL_SECONDS = 0.02
_DELTA = b"event: response.output_text.delta"
_METRIC = re.compile(r'^antiphon_engine_(\w+)\{engine="(\w+)"\} (\d+)', re.MULTILINE)


class Run(Struct):
    """A response as its client received it."""

    frames: list[bytes] = []
    complete: bool = False
    hung: bool = False
    ended_at: float = 0.0

    @property
    def tokens(self) -> int:
        return sum(frame.startswith(_DELTA) for frame in self.frames)


class Tally(Struct):
    """Counts over all rounds."""

    runs: int = 0
    moved: int = 0  # runs that continued on the other engine after a kill
    failed: int = 0
    hung: int = 0
    failure_seconds: list[float] = []  # from a kill to the end of each response that failed because of it
    recovery_seconds: list[float] = []  # from the restart of an engine until the server considers it up


async def pool(kills: list[int], findings: Findings) -> None:
    """Run one round per entry of `kills`, the token at which an engine is killed; 0 is before the first token."""
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="antiphon-pool-") as folder:
        async with run_llama_servers(Path(folder), len(NAMES)) as engines:
            settings = Path(folder) / "antiphon.toml"
            settings.write_text(_render_config(engines))
            with run_server("--config", str(settings), ready_seconds=60.0) as live:
                client = Client(live.port)
                await _wait_until_all_up(client)
                for token in kills:
                    await _run_round(client, dict(zip(NAMES, engines, strict=True)), token, tally, findings)
                if "Traceback" in (output := live.read_output().decode(errors="replace")):
                    findings.add_violation(
                        f"the server wrote a traceback: {output[output.index('Traceback') :][:2000]}"
                    )
    _report(tally, findings)


def choose_kill_tokens(kills: int) -> list[int]:
    """Return token numbers from 1 to LAST_TOKEN, with 0 for every third kill."""
    return [0 if number % 3 == 0 else 1 + (LAST_TOKEN - 1) * number // max(kills - 1, 1) for number in range(kills)]


def _render_config(engines: list[LlamaServer]) -> str:
    tables = [f'[[engines]]\nurl = "{one.url}"\nname = "{name}"\n' for name, one in zip(NAMES, engines, strict=True)]
    return "\n".join(['store = "memory"', 'log_level = "warning"', "accept_any_model = true", *tables])


async def _run_round(
    client: Client, engines: dict[str, LlamaServer], token: int, tally: Tally, findings: Findings
) -> None:
    before = await _read_metrics(client)
    runs = [Run() for _ in range(1 + EXTRA_RUNS)]
    reached = asyncio.Event()
    async with asyncio.TaskGroup() as clients:
        clients.create_task(_read_stream(client, runs[0], _make_body(token, repeats=4), token, reached))
        await _wait_for_metric(client, "running", 1)
        victim = max(NAMES, key=(await _read_metrics(client))["running"].__getitem__)
        for run in runs[1:]:
            clients.create_task(_read_stream(client, run, _make_body(token), None, asyncio.Event()))
        async with asyncio.timeout(HANG_SECONDS):
            await reached.wait()
        tokens_at_kill = [run.tokens for run in runs]
        killed_at = time.monotonic()
        engines[victim].kill()
    after = await _read_metrics(client)
    tally.moved += after["works"]["left"] + after["works"]["right"] - sum(before["works"].values()) - len(runs)
    _check_runs(runs, tokens_at_kill, killed_at, tally, findings)
    await engines[victim].start()
    await _check_reuse(client, victim, tally, findings)
    findings.add_trials(len(runs))


async def _read_stream(
    client: Client, run: Run, body: dict[str, Any], token: int | None, reached: asyncio.Event
) -> None:
    """Read a stream to its end and record the frames as they arrive, since the caller counts them.

    `reached` is set after `token` tokens, or at the end.
    """
    try:
        async with client.open("POST", "/v1/responses", body) as stream:
            while not stream.done:
                async with asyncio.timeout(HANG_SECONDS):
                    await stream.read(max_frames=len(stream.frames) + 1)
                run.frames, run.complete = list(stream.frames), stream.done
                if token is not None and run.tokens >= token and len(run.frames) >= _START_EVENTS:
                    reached.set()
    except TimeoutError:
        run.hung = True
    finally:
        reached.set()
        run.ended_at = time.monotonic()


def _make_body(token: int, repeats: int = 1) -> dict[str, Any]:
    """Return a request; a long prompt leaves time to kill the engine before the first token."""
    prompt = "Tell me what you know about the sea. " * repeats
    return {
        "model": "any",
        "input": f"{random.randrange(10**9)} {prompt}",
        "stream": True,
        "max_output_tokens": token + EXTRA_TOKENS,
        "ignore_eos": True,
    }


def _check_runs(runs: list[Run], tokens_at_kill: list[int], killed_at: float, tally: Tally, findings: Findings) -> None:
    for number, (run, tokens_then) in enumerate(zip(runs, tokens_at_kill, strict=True)):
        tally.runs += 1
        if run.hung or not run.complete:
            tally.hung += 1
            findings.add_violation(f"a client received no end of its stream after {run.tokens} tokens")
            continue
        try:
            response = terminal_response(run.frames)
        except InvalidStream as wrong:
            findings.add_violation(f"invalid stream: {wrong}")
            continue
        status = response["status"]
        if status == "failed":
            tally.failed += 1
            tally.failure_seconds.append(run.ended_at - killed_at)
            if not run.tokens:
                findings.add_violation(f"a response failed before its first token: {response['error']}")
        elif status != "incomplete" or not output_text(response):
            findings.add_violation(f"a response ended as {status} with {output_text(response)!r}")
        elif number == 0 and tokens_then:
            findings.add_violation(f"a response whose engine was killed at token {tokens_then} ended as {status}")


async def _check_reuse(client: Client, name: str, tally: Tally, findings: Findings) -> None:
    """Measure when the server notices the restarted engine, and check that it sends requests to it."""
    began, before = time.monotonic(), (await _read_metrics(client))["works"][name]
    await _wait_until_all_up(client)
    tally.recovery_seconds.append(time.monotonic() - began)
    for _ in range(_BURSTS):
        await asyncio.gather(*(_send_short_request(client) for _ in range(_BURST_REQUESTS)))
        if (await _read_metrics(client))["works"][name] > before:
            return
    findings.add_violation(f"the engine {name} is up again, but receives no requests")


async def _send_short_request(client: Client) -> None:
    await client.post({**_make_body(0, repeats=0), "stream": False, "max_output_tokens": 1})


async def _wait_until_all_up(client: Client) -> None:
    async with asyncio.timeout(RECOVERY_SECONDS):
        while (await client.get("/ready")).json().get("engines") != {"up": len(NAMES), "all": len(NAMES)}:  # noqa: ASYNC110 - the state is only available by polling
            await asyncio.sleep(_POLL_SECONDS)


async def _wait_for_metric(client: Client, metric: str, minimum: int) -> None:
    async with asyncio.timeout(RECOVERY_SECONDS):
        while sum((await _read_metrics(client))[metric].values()) < minimum:  # noqa: ASYNC110 - the state is only available by polling
            await asyncio.sleep(_POLL_SECONDS)


async def _read_metrics(client: Client) -> dict[str, dict[str, int]]:
    """Return the server's engine metrics (running, works, failures), each by engine name."""
    found: dict[str, dict[str, int]] = {"running": {}, "works": {}, "failures": {}}
    for metric, name, value in _METRIC.findall((await client.get("/metrics")).body.decode()):
        found.setdefault(metric.removesuffix("_total"), {})[name] = int(value)
    return found


def _report(tally: Tally, findings: Findings) -> None:
    if not tally.moved:
        findings.add_violation("no run moved to the other engine, so the drill is inconclusive")
    findings.add_figure(Figure("runs", tally.runs))
    findings.add_figure(Figure("moved", tally.moved))
    findings.add_figure(Figure("failed", tally.failed))
    findings.add_figure(Figure("hangs", tally.hung, maximum=0))
    findings.add_figure(Figure("told p99 s", percentile(tally.failure_seconds, 0.99), maximum=2.0))
    findings.add_figure(Figure("noticed p99 s", percentile(tally.recovery_seconds, 0.99), maximum=12.0))
