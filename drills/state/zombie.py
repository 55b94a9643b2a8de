"""A server that is stopped for longer than its lease while another takes its work over, and then goes on as if nothing
had happened: nothing ends twice, and no end changes."""

import asyncio
import contextlib
import random
import signal
import sqlite3

from drills.harness.findings import Findings
from drills.harness.journal import Audit
from drills.harness.process import Process, servers
from drills.harness.runs import Run, ask, look, settle
from drills.harness.storage_locations import Kind as PlaceKind
from drills.harness.storage_locations import Place, place
from drills.state.kill9 import cancel

LEASE = 1.0
_CONFIG = {"lease_seconds": LEASE, "fake_rate": 40.0, "background_slots": 16, "log_level": "warning"}
_WORDS = "Nobody knows how long the night is that one sleeps through. " * 2
_KINDS = ("background", "background stream", "foreground stream")


async def zombie(kind: PlaceKind | Place, rounds: int, findings: Findings) -> None:
    with place(kind) as where, servers(where, _CONFIG) as processes:
        audit = Audit(where.journal)
        first, second = await asyncio.gather(processes.start(), processes.start())
        for number in range(rounds):
            runs = [Run(kind=_KINDS[at % len(_KINDS)], said=_WORDS) for at in range(20)]  # type: ignore[arg-type]  # they are Kinds
            owner, heir = (first, second) if number % 2 else (second, first)
            await _pass_on(where, (owner, heir), runs, findings)
            for process in (heir, owner):
                findings.all_violated(await settle(process.client, runs))
                for run in runs:
                    if run.ended is not None:
                        findings.all_violated(await look(process.client, run))
            findings.all_violated(audit.news())
            findings.tried(len(runs))
        await first.stop()
        await second.stop()
        processes.gone(first)
        processes.gone(second)
    findings.all_violated(f"a server wrote a traceback:\n{text}" for text in processes.tracebacks)


async def _pass_on(where: Place, pair: tuple[Process, Process], runs: list[Run], findings: Findings) -> None:
    owner, heir = pair
    async with asyncio.TaskGroup() as clients:
        for run in runs:
            clients.create_task(ask(owner.client, run))
        await asyncio.sleep(random.uniform(0.2, 0.8))
        await _stop(owner, where)
        for run in runs:
            run.orphaned = run.terminal is None and not run.whole
        try:
            known = [run for run in runs if run.id]
            if known:
                await cancel(heir, random.choice([run for run in known if "background" in run.kind] or known))
            if random.random() < 0.5:
                findings.all_violated(await settle(heir.client, known))
            else:  # while the other is still at it
                await asyncio.sleep(random.uniform(LEASE, 2 * LEASE))
        finally:
            owner.send(signal.SIGCONT)
    # The clients of the stopped server have heard the end by now, from a server that had to notice what it had missed.
    await asyncio.sleep(LEASE)


async def _stop(owner: Process, where: Place) -> None:
    """Not in the middle of a commit: SQLite's file would be its own for as long as it sleeps."""
    await owner.pause()
    while "://" not in where.store and await asyncio.to_thread(_taken, where.store):
        owner.send(signal.SIGCONT)
        await asyncio.sleep(0.005)
        await owner.pause()


def _taken(file: str) -> bool:
    with contextlib.closing(sqlite3.connect(file, timeout=1.0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        connection.execute("ROLLBACK")
        return False
