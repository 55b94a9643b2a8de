"""A server that is paused for longer than its lease while another one takes over its work, and then resumes: no
response ends twice, and no end changes.

In every second round it is paused at a random moment, and otherwise when it is about to write the ends of its runs. At
that moment only the fence in the row prevents it from ending a response that the other server generates again: the
lease of a response is not renewed while its end is written.
"""

import asyncio
import contextlib
import random
import signal
import sqlite3
import time
from collections.abc import Callable

from drills.harness.findings import Figure, Findings
from drills.harness.journal import JournalAudit
from drills.harness.process import Process, open_servers
from drills.harness.runs import Run, execute, verify_run, wait_for_ends
from drills.harness.storage_locations import StorageKind as PlaceKind
from drills.harness.storage_locations import StorageLocation, open_storage
from drills.state.kill9 import cancel_run

LEASE = 2.5  # long enough for a live server to renew it on a machine that delays a process for a second or more
_CONFIG = {
    "lease_seconds": LEASE,
    "fake_rate": 40.0,
    "background_slots": 16,
    "shed": {"lag": 0},  # a server on a busy machine would take nothing over
    "log_level": "warning",
}
_SAMPLE_TEXT = "Nobody knows how long the night is that one sleeps through. " * 2
_KINDS = ("background", "background stream", "foreground stream")
_TAKEOVER_SECONDS = 8 * LEASE
_POLL_SECONDS = 0.02


async def zombie(kind: PlaceKind | StorageLocation, rounds: int, findings: Findings) -> None:
    with open_storage(kind) as storage, open_servers(storage, _CONFIG) as processes:
        audit, ends_fenced = JournalAudit(storage.journal), 0
        first, second = await asyncio.gather(processes.start(), processes.start())
        for number in range(rounds):
            runs = [Run(kind=_KINDS[at % len(_KINDS)], prompt=_SAMPLE_TEXT) for at in range(20)]  # type: ignore[arg-type]  # they are RunKinds
            owner, successor = (first, second) if number // 2 % 2 else (second, first)
            audit.resumed.add(owner.pid)
            if number % 2:
                await _pause_and_take_over(storage, (owner, successor), runs, findings)
            else:
                ends_fenced += await _pause_before_end(storage, owner, runs, audit, findings)
            for process in (successor, owner):
                findings.add_violations(await wait_for_ends(process.client, runs))
                for run in runs:
                    if run.ended is not None:
                        findings.add_violations(await verify_run(process.client, run))
            findings.add_violations(audit.check_new_lines())
            findings.add_trials(len(runs))
        await first.stop()
        await second.stop()
        processes.discard(first)
        processes.discard(second)
    findings.add_violations(f"a server wrote a traceback:\n{text}" for text in processes.tracebacks)
    findings.add_figure(Figure("ends after a takeover", ends_fenced, minimum=1))


async def _pause_and_take_over(
    storage: StorageLocation, pair: tuple[Process, Process], runs: list[Run], findings: Findings
) -> None:
    owner, successor = pair
    async with asyncio.TaskGroup() as clients:
        for run in runs:
            clients.create_task(execute(owner.client, run))
        await asyncio.sleep(random.uniform(0.2, 0.8))
        await _pause_outside_commit(owner, storage)
        for run in runs:
            run.orphaned = run.terminal_body is None and not run.stream_complete
        try:
            acknowledged = [run for run in runs if run.id]
            if acknowledged:
                await cancel_run(
                    successor, random.choice([run for run in acknowledged if "background" in run.kind] or acknowledged)
                )
            if random.random() < 0.5:
                findings.add_violations(await wait_for_ends(successor.client, acknowledged))
            else:  # while the other server is still working
                await asyncio.sleep(random.uniform(LEASE, 2 * LEASE))
        finally:
            owner.send_signal(signal.SIGCONT)
    # By then the resumed server has noticed the takeover and sent the end to its clients.
    await asyncio.sleep(LEASE)


async def _pause_before_end(
    storage: StorageLocation, owner: Process, runs: list[Run], audit: JournalAudit, findings: Findings
) -> int:
    """Pause the server before it writes the ends, until the other one generates one of the same responses again.

    Returns the number of such responses. It is 0 if the server lost its leases before, on a machine that is too busy.
    """
    repeatable = {run.nonce for run in runs if run.kind == "background"}  # the other server ends the rest at once
    owner.hold("store.finish")
    async with asyncio.TaskGroup() as clients:
        for run in runs:
            clients.create_task(execute(owner.client, run))
        await _poll(audit, findings, lambda: any(audit.nonces.get(one) in repeatable for one in audit.held))
        await _pause_outside_commit(owner, storage)
        for run in runs:
            run.orphaned = run.terminal_body is None and not run.stream_complete
        held = repeatable & {audit.nonces.get(one, "") for one in audit.held}
        await _poll(audit, findings, lambda: any(len(audit.generated[one]) > 1 for one in held))
        taken_over = sum(len(audit.generated[one]) > 1 for one in held)
        owner.release()
        owner.send_signal(signal.SIGCONT)
    await asyncio.sleep(LEASE)
    return taken_over


async def _poll(audit: JournalAudit, findings: Findings, condition: Callable[[], bool]) -> None:
    """Read the journal until the condition holds, or until the timeout."""
    deadline = time.monotonic() + _TAKEOVER_SECONDS
    while True:
        findings.add_violations(audit.check_new_lines())
        if condition() or time.monotonic() > deadline:
            return
        await asyncio.sleep(_POLL_SECONDS)


async def _pause_outside_commit(owner: Process, storage: StorageLocation) -> None:
    """Pause the server, but not in the middle of a commit: it would hold the lock of the SQLite file while paused."""
    await owner.pause()
    while "://" not in storage.store and await asyncio.to_thread(_is_locked, storage.store):
        owner.send_signal(signal.SIGCONT)
        await asyncio.sleep(0.005)
        await owner.pause()


def _is_locked(file: str) -> bool:
    with contextlib.closing(sqlite3.connect(file, timeout=1.0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        connection.execute("ROLLBACK")
        return False
