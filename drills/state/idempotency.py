"""The same key and body, ten times at once, and again after the server was killed: one response, one run."""

import asyncio
import random
from typing import Any

from drills.harness.client import ANSWER_SECONDS, GONE, Client
from drills.harness.findings import Findings
from drills.harness.journal import Audit, new_nonce
from drills.harness.oracle import event
from drills.harness.process import Process, Servers, servers
from drills.harness.runs import Run, settle
from drills.harness.storage_locations import Kind, Place, place

AT_ONCE = 10
_CONFIG = {"lease_seconds": 1.0, "fake_rate": 100.0, "log_level": "warning"}
_KINDS: tuple[dict[str, Any], ...] = ({}, {"stream": True}, {"background": True}, {"background": True, "stream": True})
_KILLS = ("never", "afterwards", "meanwhile")


class Trial:
    """One key. The rounds go through every kind of request with every moment of a kill."""

    def __init__(self, number: int) -> None:
        self.nonce = new_nonce()
        self.key = f"key-{self.nonce}"
        self.body = {"model": "fake", "input": f"{self.nonce} once and only once", **_KINDS[number % len(_KINDS)]}
        self.kill = _KILLS[number % len(_KILLS)]
        self.ids: set[str] = set()

    @property
    def runs(self) -> range:
        """How often it may be run. Background runs are taken up again by the next server; others are not."""
        if self.body.get("background"):
            return range(1, 2 if self.kill == "never" else 3)
        return range(0 if self.kill == "meanwhile" else 1, 2)


async def idempotency(kind: Kind | Place, rounds: int, findings: Findings) -> None:
    with place(kind) as where, servers(where, _CONFIG) as processes:
        audit = Audit(where.journal)
        process = await processes.start()
        for number in range(rounds):
            trial = Trial(number)
            process = await _carry_out(processes, process, trial)
            await _judge(process, trial, findings)
            findings.all_violated(await _settled(process, trial))
            findings.all_violated(audit.news())
            times = len(audit.generated.get(trial.nonce, []))
            if times not in trial.runs:
                findings.violated(f"{trial.body} (kill {trial.kill}) was given to the engine {times} times")
            findings.tried(AT_ONCE)
        await process.stop()
    findings.all_violated(f"a server wrote a traceback:\n{text}" for text in processes.tracebacks)


async def _carry_out(processes: Servers, process: Process, trial: Trial) -> Process:
    """Gives the server that runs afterwards."""
    asking = asyncio.gather(*(_id(process.client, trial) for _ in range(AT_ONCE)))
    if trial.kill == "meanwhile":
        await asyncio.sleep(random.uniform(0.0, 0.2))
        process.kill()
    trial.ids = set(await asking) - {""}
    if trial.kill == "never":
        return process
    if process.running:
        process.kill()
    processes.gone(process)
    return await processes.start()


async def _id(client: Client, trial: Trial) -> str:
    """The id of the response that a request with this key gives; "" if the server died before it could tell."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            async with client.open("POST", "/v1/responses", trial.body, trial.key) as stream:
                if stream.streams:
                    return await _first_id(stream)
                body = await stream.body()
                return body.partition(b'"id":"')[2].partition(b'"')[0].decode() or f"{stream.status} {body!r}"
    except GONE:
        return ""


async def _first_id(stream: Any) -> str:
    """Of a stream that is read to its end, if it has one."""
    try:
        await stream.read()
    except GONE:
        if not stream.frames:
            raise
    return str(event(stream.frames[0])["response"]["id"])


async def _settled(process: Process, trial: Trial) -> list[str]:
    """Wait for the end of what was begun in the background."""
    return await settle(process.client, [Run(kind="background", said="", id=each) for each in trial.ids])


async def _judge(process: Process, trial: Trial, findings: Findings) -> None:
    if len(trial.ids) > 1 or (not trial.ids and trial.kill != "meanwhile"):
        findings.violated(f"one key gave {len(trial.ids)} responses: {trial.ids}")
    again = await _id(process.client, trial)
    if trial.ids and again not in trial.ids:
        findings.violated(f"the same key later gave {again}, not {trial.ids} (kill {trial.kill}, {trial.body})")
    elif again.startswith("resp_"):
        trial.ids.add(again)
    other = await process.client.post({**trial.body, "input": "something else"}, key=trial.key)
    if not 400 <= other.status < 500 or other.status == 409:
        findings.violated(f"another body under the same key was answered with {other.status}")
