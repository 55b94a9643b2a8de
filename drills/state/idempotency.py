"""The same key and body, ten times concurrently and again after the server was killed: one response, one run."""

import asyncio
import random
from typing import Any

from drills.harness.client import ANSWER_SECONDS, DISCONNECT_ERRORS, Client
from drills.harness.findings import Findings
from drills.harness.journal import JournalAudit, new_nonce
from drills.harness.oracle import parse_event
from drills.harness.process import Process, Servers, open_servers
from drills.harness.runs import Run, wait_for_ends
from drills.harness.storage_locations import StorageKind, StorageLocation, open_storage

AT_ONCE = 10
_CONFIG = {"lease_seconds": 1.0, "fake_rate": 100.0, "log_level": "warning"}
_KINDS: tuple[dict[str, Any], ...] = ({}, {"stream": True}, {"background": True}, {"background": True, "stream": True})
_KILLS = ("never", "afterwards", "meanwhile")


class Trial:
    """One key. The rounds combine every kind of request with every moment of a kill."""

    def __init__(self, number: int) -> None:
        self.nonce = new_nonce()
        self.key = f"key-{self.nonce}"
        self.body = {"model": "fake", "input": f"{self.nonce} once and only once", **_KINDS[number % len(_KINDS)]}
        self.kill = _KILLS[number % len(_KILLS)]
        self.ids: set[str] = set()

    @property
    def allowed_runs(self) -> range:
        """How often the engine may run it: background runs are resumed by the next server, others are not."""
        if self.body.get("background"):
            return range(1, 2 if self.kill == "never" else 3)
        return range(0 if self.kill == "meanwhile" else 1, 2)


async def idempotency(kind: StorageKind | StorageLocation, rounds: int, findings: Findings) -> None:
    with open_storage(kind) as storage, open_servers(storage, _CONFIG) as processes:
        audit = JournalAudit(storage.journal)
        process = await processes.start()
        for number in range(rounds):
            trial = Trial(number)
            process = await _run_trial(processes, process, trial)
            await _verify(process, trial, findings)
            findings.add_violations(await _wait_for_trial(process, trial))
            findings.add_violations(audit.check_new_lines())
            times = len(audit.generated.get(trial.nonce, []))
            if times not in trial.allowed_runs:
                findings.add_violation(f"{trial.body} (kill {trial.kill}) was sent to the engine {times} times")
            findings.add_trials(AT_ONCE)
        await process.stop()
    findings.add_violations(f"a server wrote a traceback:\n{text}" for text in processes.tracebacks)


async def _run_trial(processes: Servers, process: Process, trial: Trial) -> Process:
    """Run a trial and return the server that is running afterwards."""
    requests = asyncio.gather(*(_send_and_read_id(process.client, trial) for _ in range(AT_ONCE)))
    if trial.kill == "meanwhile":
        await asyncio.sleep(random.uniform(0.0, 0.2))
        process.kill()
    trial.ids = set(await requests) - {""}
    if trial.kill == "never":
        return process
    if process.is_running:
        process.kill()
    processes.discard(process)
    return await processes.start()


async def _send_and_read_id(client: Client, trial: Trial) -> str:
    """Send a request with the key and return the id of its response; "" if the server died before it sent one."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            async with client.open("POST", "/v1/responses", trial.body, trial.key) as stream:
                if stream.is_event_stream:
                    return await _read_first_id(stream)
                body = await stream.read_body()
                return body.partition(b'"id":"')[2].partition(b'"')[0].decode() or f"{stream.status} {body!r}"
    except DISCONNECT_ERRORS:
        return ""


async def _read_first_id(stream: Any) -> str:
    """Read the stream to its end, if it has one, and return the id in its first event."""
    try:
        await stream.read()
    except DISCONNECT_ERRORS:
        if not stream.frames:
            raise
    return str(parse_event(stream.frames[0])["response"]["id"])


async def _wait_for_trial(process: Process, trial: Trial) -> list[str]:
    """Wait for the end of the background responses."""
    return await wait_for_ends(process.client, [Run(kind="background", prompt="", id=each) for each in trial.ids])


async def _verify(process: Process, trial: Trial, findings: Findings) -> None:
    if len(trial.ids) > 1 or (not trial.ids and trial.kill != "meanwhile"):
        findings.add_violation(f"one key created {len(trial.ids)} responses: {trial.ids}")
    repeated_id = await _send_and_read_id(process.client, trial)
    if trial.ids and repeated_id not in trial.ids:
        findings.add_violation(
            f"the same key later returned {repeated_id}, not {trial.ids} (kill {trial.kill}, {trial.body})"
        )
    elif repeated_id.startswith("resp_"):
        trial.ids.add(repeated_id)
    other = await process.client.post({**trial.body, "input": "something else"}, key=trial.key)
    if not 400 <= other.status < 500 or other.status == 409:
        findings.add_violation(f"a different body with the same key was answered with {other.status}")
