"""Drill `disk`: the disk under a SQLite file is full or fails while the server runs, and recovers without a restart."""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from drills.disk.bad_disk import (
    DatabaseFile,
    Fault,
    SmallDisk,
    can_mount,
    can_trace,
    fill_disk,
    inject_fault,
    limit_file_size,
    mount_small_disk,
)
from drills.disk.startup import check_startup
from drills.disk.trials import RECOVERY_SECONDS, DiskTally, FaultPlan, Trials
from drills.disk.workload import check_rejection, wait_until
from drills.harness.findings import Figure, Findings, percentile
from drills.harness.process import Process, open_servers
from drills.harness.storage_locations import StorageLocation, open_storage

Config = dict[str, Any]

LEASE = 2.0
CONFIG: Config = {
    "lease_seconds": LEASE,
    "fake_rate": 100.0,
    "background_slots": 16,
    "shutdown_grace": 0.2,
    "log_level": "warning",
    "shed": {"free_disk": 0},
}
KIB, MIB = 1 << 10, 1 << 20
_NTH_MANY = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 17, 20, 25, 30, 40)
_NTH_SOME = (1, 2, 3, 5, 8)
_NTH_FEW = (1, 3)
# calls, file, error, numbers of the failing calls, and whether the fault prevents all writes
_FAULTS: tuple[tuple[str, DatabaseFile, str, tuple[int, ...], bool], ...] = (
    ("pwrite64", "-wal", "ENOSPC", _NTH_MANY, True),
    ("pwrite64", "-wal", "EIO", _NTH_MANY, True),
    ("fdatasync,fsync", "-wal", "EIO", _NTH_MANY, True),
    ("fdatasync,fsync", "-wal", "ENOSPC", _NTH_SOME, True),
    ("pwrite64", "", "ENOSPC", _NTH_SOME, False),
    ("pwrite64", "", "EIO", _NTH_SOME, False),
    ("fdatasync,fsync", "", "EIO", _NTH_FEW, False),
    ("ftruncate", "-wal", "EIO", _NTH_FEW, False),
    ("pread64", "", "EIO", _NTH_SOME, False),
    ("pread64", "-wal", "EIO", _NTH_SOME, False),
)
_KILL_INTERVAL, _LONG_INTERVAL = 5, 8  # every n-th plan kills the server, or lasts long
_QUIET_NTH_LIMIT = 4
_SIZE_LIMITS = range(256 * KIB, 512 * KIB, 6_500)  # bytes per file, also in the middle of a page
_FREE_BYTES = range(0, 400 * KIB, 13 * KIB)  # bytes that remain free on the disk
_SMALL_DISK_BYTES = 64 * MIB
_SHED_BYTES = 4 * MIB


async def disk(step: int, findings: Findings) -> None:
    """Run every `step`-th fault."""
    tally = DiskTally()
    if can_trace():
        await run_on_file(partial(plan_faults, step), tally, findings)
        await run_on_file(partial(plan_quiet_faults, step), tally, findings, {**CONFIG, "lease_seconds": 15.0})
        await check_startup(step, tally, findings)
    else:
        findings.print_line("faults of single calls are skipped: strace is missing or not permitted")
    await run_on_file(lambda _: plan_size_limits(step), tally, findings)
    if can_mount():
        await run_on_small_disk(step, tally, findings)
    else:
        findings.print_line("full disks are skipped: mounting a disk is not permitted")
    report(tally, findings)


async def disk_sync(findings: Findings) -> None:
    """Run one fault of syncing the log: the smallest version of the drill."""
    tally, fault = DiskTally(), Fault(calls="fdatasync,fsync", file="-wal", error="EIO", nth=2)
    if not can_trace():
        findings.add_violation("the fault cannot be injected: strace is missing or not permitted")
        return
    await run_on_file(lambda store: [make_fault_plan(store, fault, stops=True)], tally, findings)
    report(tally, findings)


def report(tally: DiskTally, findings: Findings) -> None:
    findings.add_figure(Figure("responses", tally.responses))
    findings.add_figure(Figure("kills", tally.kills))
    findings.add_figure(Figure("faults not met", tally.not_occurred))
    findings.add_figure(Figure("corrupt", tally.corrupt, maximum=0))
    findings.add_figure(Figure("silent loss", tally.lost, maximum=0))
    findings.add_figure(Figure("recovery p50 s", percentile(tally.recoveries, 0.5)))
    findings.add_figure(Figure("recovery max s", max(tally.recoveries, default=0.0), maximum=RECOVERY_SECONDS))


def plan_faults(step: int, store: Path) -> Iterator[FaultPlan]:
    """Yield plans with faults of single system calls."""
    for number, (fault, stops) in enumerate(_every_fault()):
        if number % step == 0:
            yield _vary(make_fault_plan(store, fault, stops and fault.persistent), number // step)


def plan_quiet_faults(step: int, store: Path) -> Iterator[FaultPlan]:
    """Yield faults after which no request arrives, so that the server has to notice the recovery by itself."""
    for number, (fault, stops) in enumerate(_every_fault()):
        if stops and fault.persistent and fault.nth < _QUIET_NTH_LIMIT and number % step == 0:
            yield make_fault_plan(store, fault, stops, quiet=True)


def make_fault_plan(store: Path, fault: Fault, stops: bool, *, kills: bool = False, quiet: bool = False) -> FaultPlan:
    inject = partial(inject_fault, store, fault)
    return FaultPlan(
        name=str(fault),
        inject=inject,
        blocks_writes=stops,
        allows_reads=not fault.affects_reads,
        must_occur=fault.must_occur,
        kills=kills,
        quiet=quiet,
    )


def _vary(plan: FaultPlan, number: int) -> FaultPlan:
    """Make some plans kill the server, and some last longer than a lease."""
    return replace(
        plan, kills=number % _KILL_INTERVAL == 4, seconds=LEASE * 1.5 if number % _LONG_INTERVAL == 2 else plan.seconds
    )


def _every_fault() -> Iterator[tuple[Fault, bool]]:
    for calls, file, error, numbers, stops in _FAULTS:
        for nth in numbers:
            for persistent in (True, False):
                yield Fault(calls=calls, file=file, error=error, nth=nth, persistent=persistent), stops


def plan_size_limits(step: int) -> Iterator[FaultPlan]:
    """Yield plans with a limited file size."""
    for number, limit in enumerate(_SIZE_LIMITS[::step]):
        name = f"no file may have more than {limit} bytes"
        yield _vary(FaultPlan(name=name, inject=partial(limit_file_size, limit), blocks_writes=True), number)


def plan_full_disks(step: int, disk: SmallDisk) -> Iterator[FaultPlan]:
    """Yield plans with a full disk."""
    for number, free in enumerate(_FREE_BYTES[::step]):
        name = f"only {free} bytes of the disk are free"
        yield _vary(FaultPlan(name=name, inject=partial(fill_disk, disk, free), blocks_writes=True), number)


async def run_on_file(
    plans: Callable[[Path], Iterable[FaultPlan]], tally: DiskTally, findings: Findings, config: Config = CONFIG
) -> None:
    with open_storage("sqlite") as storage, open_servers(storage, config) as processes:
        store = Path(storage.store)
        await Trials(store, processes, findings, tally).run([*plans(store)])
        findings.add_violations(f"a server wrote a traceback:\n{text}" for text in processes.tracebacks)


async def run_on_small_disk(step: int, tally: DiskTally, findings: Findings) -> None:
    with tempfile.TemporaryDirectory(prefix="antiphon-drill-") as name:
        folder = Path(name)
        (small := folder / "small").mkdir()
        storage = StorageLocation(folder=folder, store=str(small / "drill.db"))
        with (
            mount_small_disk(small, _SMALL_DISK_BYTES) as disk,
            open_servers(storage, CONFIG, wrapper=disk.command_prefix) as processes,
        ):
            await Trials(disk.path / "drill.db", processes, findings, tally).run([*plan_full_disks(step, disk)])
            findings.add_violations(f"a server wrote a traceback:\n{text}" for text in processes.tracebacks)
        with mount_small_disk(small, _SMALL_DISK_BYTES) as disk:
            await check_shedding(storage, disk, findings)


async def check_shedding(storage: StorageLocation, disk: SmallDisk, findings: Findings) -> None:
    """Check that a filling disk makes the server reject background work, then new work, and accept all again
    afterwards.
    """
    stages = (
        (_SHED_BYTES * 3, 200, 200),
        (_SHED_BYTES * 3 // 2, 503, 200),
        (_SHED_BYTES // 2, 503, 503),
        (_SHED_BYTES * 3, 200, 200),
    )
    with open_servers(
        storage, {**CONFIG, "shed": {"free_disk": _SHED_BYTES}}, wrapper=disk.command_prefix
    ) as processes:
        process = await processes.start()
        for free, background, foreground in stages:
            findings.add_trials()
            disk.leave_free(free)
            if await wait_until(partial(_has_statuses, process, background, foreground), RECOVERY_SECONDS) is None:
                findings.add_violation(f"with {free} bytes free the statuses are not {background} and {foreground}")
            if (status := (await process.client.get("/ready")).status) != foreground:
                findings.add_violation(f"with {free} bytes free /ready is {status}")
        if "the store failed" in process.read_output():
            findings.add_violation("the disk was full before requests were rejected")
        await process.stop()


async def _has_statuses(process: Process, background: int, foreground: int) -> bool:
    """Return whether background and foreground requests have these statuses now."""
    body = {"model": "fake", "input": "is there room?"}
    answers = [await process.client.post({**body, "background": True}), await process.client.post(body)]
    are_valid = all(answer.status == 200 or not check_rejection(answer) for answer in answers)
    return are_valid and [answer.status for answer in answers] == [background, foreground]
