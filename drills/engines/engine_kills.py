"""Drill `engine-kills`: an engine server behind an HTTP adapter is killed with SIGKILL while responses run, and started
again.

No acknowledged response is lost, stuck or changed. Every response ends with its whole text, or fails with a code, soon
after the kill; a request that arrives while the engine is down gets such an error too. The server uses the engine again
by itself.
"""

import asyncio
import random
import time
from collections.abc import Sequence

from drills.engines.engine_server import EngineProcess, open_engine
from drills.harness.findings import Figure, Findings, percentile
from drills.harness.journal import JournalAudit
from drills.harness.oracle import output_text
from drills.harness.process import Process, open_servers
from drills.harness.runs import STUCK_SECONDS, Run, RunKind, execute, verify_replay, wait_for_ends
from drills.harness.storage_locations import open_storage

ADAPTERS = ("vllm", "sglang", "openai", "llamacpp-server", "ovms")
REPORT_SECONDS = 5.0  # from the kill, or from a request while the engine is down, to the end of the response
RECOVERY_SECONDS = 15.0  # from the restart of the engine to the first response
ERROR_CODES = ("server_error", "service_unavailable")
_CONFIG = {"lease_seconds": 5.0, "background_slots": 16, "log_level": "error"}
_RUN_COUNTS: tuple[tuple[RunKind, int], ...] = (
    ("background", 4),
    ("background stream", 3),
    ("foreground stream", 4),
    ("foreground JSON", 3),
)
_SAMPLE_TEXT = "an engine that is gone cannot say what it would have said " * 2
_POLL_SECONDS = 0.05


async def engine_kills(adapters: Sequence[str], kills: int, findings: Findings) -> None:
    """Kill the engine this many times behind each of these adapters."""
    drill = EngineKillDrill(findings)
    for adapter in adapters:
        with open_storage("sqlite") as storage, open_engine() as engine:
            await engine.start()
            config = {**_CONFIG, "engine": f"{adapter}://127.0.0.1:{engine.port}"}
            with open_servers(storage, config, mark_answers=False, pooled=True) as processes:
                process, audit = await processes.start(), JournalAudit(storage.journal)
                for _ in range(kills):
                    await drill.round(process, engine, audit, f"behind {adapter}")
                    findings.add_violations(audit.check_new_lines())
                await process.stop()
        findings.add_violations(f"a server wrote a traceback:\n{text}" for text in processes.tracebacks)
    drill.report()


class EngineKillDrill:
    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._delays: list[float] = []  # seconds from the kill, or from a later request, to the failure
        self._recoveries: list[float] = []
        self._completed = 0

    async def round(self, process: Process, engine: EngineProcess, audit: JournalAudit, where: str) -> None:
        """Kill the engine during its work, send the same requests again while it is down, and start it again."""
        runs, late_runs = _make_runs(), _make_runs()
        ended_at: dict[str, float] = {}
        async with asyncio.TaskGroup() as clients:
            for run in runs:
                clients.create_task(_execute(process, run, ended_at))
            await self._wait_until_busy(audit)
            await asyncio.sleep(random.uniform(0.0, 0.5))  # the answers take from 0.4 to 1 s
            engine.kill()
            killed_at = time.monotonic()
            for run in late_runs:
                clients.create_task(_execute(process, run, ended_at))
            await asyncio.sleep(random.uniform(0.1, 1.0))
            await engine.start()
            self._recoveries.append(await self._wait_until_used(process, where))
        everything = [*runs, *late_runs]
        violations = await wait_for_ends(process.client, everything)
        for run in everything:
            violations += await self._check(process, run, ended_at[run.nonce] - killed_at)
        self._findings.add_violations(f"{where}: {sentence}" for sentence in violations)
        self._findings.add_trials(len(everything))

    async def _wait_until_busy(self, audit: JournalAudit) -> None:
        async with asyncio.timeout(STUCK_SECONDS):
            while not audit.running:
                self._findings.add_violations(audit.check_new_lines())
                await asyncio.sleep(_POLL_SECONDS)

    async def _check(self, process: Process, run: Run, seconds: float) -> list[str]:
        """Return what is wrong with a response; `seconds`: from the kill to its end."""
        if run.ended is None and run.rejection is None:
            return [f"{run.kind} has neither a response nor an error"] if not run.id else []
        violations = [] if run.ended is None else [*await verify_replay(process.client, run), *_check_text(run)]
        if run.ended is not None and run.ended["status"] == "completed":
            self._completed += 1
            return violations
        self._delays.append(seconds)
        error = run.rejection.error() if run.rejection is not None else (run.ended or {})["error"] or {}
        if error.get("code") not in ERROR_CODES or not error.get("message"):
            violations.append(f"{run.kind} {run.id} failed with {error}")
        if run.rejection is not None and run.rejection.status == 503 and not run.rejection.has_retry_after:
            violations.append(f"{run.kind} was rejected without Retry-After: {error}")
        if seconds > REPORT_SECONDS:
            violations.append(f"the client of {run.kind} {run.id} got its error {seconds:.1f} s after the kill")
        return violations

    async def _wait_until_used(self, process: Process, where: str) -> float:
        """Return the seconds until a response completes."""
        began = time.monotonic()
        while time.monotonic() - began < RECOVERY_SECONDS:
            run = Run(kind="foreground JSON", prompt="again")
            await execute(process.client, run)
            if run.id:
                break
            await asyncio.sleep(_POLL_SECONDS)
        else:
            self._findings.add_violation(f"{where}: no response {RECOVERY_SECONDS:g} s after the restart of the engine")
        return time.monotonic() - began

    def report(self) -> None:
        if not self._delays:
            self._findings.add_violation("no response failed, so the drill is inconclusive")
        self._findings.add_figure(Figure("completed", self._completed))
        self._findings.add_figure(Figure("failed", len(self._delays)))
        self._findings.add_figure(Figure("failure p99 s", percentile(self._delays, 0.99), maximum=REPORT_SECONDS))
        self._findings.add_figure(
            Figure("recovery p99 s", percentile(self._recoveries, 0.99), maximum=RECOVERY_SECONDS)
        )


def _check_text(run: Run) -> list[str]:
    assert run.ended is not None
    status, text, whole = run.ended["status"], output_text(run.ended), f"You said: {run.input}"
    if text == whole or (status == "failed" and whole.startswith(text)):
        return []
    return [f"{run.kind} {run.id} is {status} with the text {text!r}"]


async def _execute(process: Process, run: Run, ended_at: dict[str, float]) -> None:
    await execute(process.client, run)
    ended_at[run.nonce] = time.monotonic()


def _make_runs() -> list[Run]:
    runs = [Run(kind=kind, prompt=_random_text()) for kind, count in _RUN_COUNTS for _ in range(count)]
    random.shuffle(runs)
    return runs


def _random_text() -> str:
    return _SAMPLE_TEXT[: random.randrange(20, 110)].strip()
