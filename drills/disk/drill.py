"""A disk that is full, or fails, under a server with a SQLite file; and then does not any more. Nobody restarts it."""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from drills.disk.bad_disk import Fault, File, SmallDisk, can_mount, can_trace, failing, filled, small_disk, stinted
from drills.disk.startup import starts
from drills.disk.trials import RECOVERY_SECONDS, Plan, Tally, Trials
from drills.disk.workload import until, wrong_refusal
from drills.harness.findings import Figure, Findings, percentile
from drills.harness.process import Process, servers
from drills.harness.storage_locations import Place, place

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
_OFTEN = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 17, 20, 25, 30, 40)
_SELDOM = (1, 2, 3, 5, 8)
_ONCE = (1, 3)
# calls, file, error, at which of them, and whether nothing can be written while it lasts
_FAULTS: tuple[tuple[str, File, str, tuple[int, ...], bool], ...] = (
    ("pwrite64", "-wal", "ENOSPC", _OFTEN, True),
    ("pwrite64", "-wal", "EIO", _OFTEN, True),
    ("fdatasync,fsync", "-wal", "EIO", _OFTEN, True),
    ("fdatasync,fsync", "-wal", "ENOSPC", _SELDOM, True),
    ("pwrite64", "", "ENOSPC", _SELDOM, False),
    ("pwrite64", "", "EIO", _SELDOM, False),
    ("fdatasync,fsync", "", "EIO", _ONCE, False),
    ("ftruncate", "-wal", "EIO", _ONCE, False),
    ("pread64", "", "EIO", _SELDOM, False),
    ("pread64", "-wal", "EIO", _SELDOM, False),
)
_KILLED, _LONG = 5, 8  # each so many-th
_FEW = 4
_STINTS = range(256 * KIB, 512 * KIB, 6_500)  # bytes that a file may have: in the middle of pages, too
_FREE = range(0, 400 * KIB, 13 * KIB)  # bytes that others leave of a disk
_SMALL = 64 * MIB
_BOUND = 4 * MIB


async def disk(step: int, findings: Findings) -> None:
    """Every `step`-th of all faults."""
    tally = Tally()
    if can_trace():
        await on_file(partial(faults, step), tally, findings)
        await on_file(partial(lulls, step), tally, findings, {**CONFIG, "lease_seconds": 15.0})
        await starts(step, tally, findings)
    else:
        findings.say("single calls do not fail here: there is no strace, or it may not watch")
    await on_file(lambda _: stints(step), tally, findings)
    if can_mount():
        await on_small_disk(step, tally, findings)
    else:
        findings.say("no disk gets full here: none may be mounted")
    report(tally, findings)


def report(tally: Tally, findings: Findings) -> None:
    findings.figure(Figure("responses", tally.responses))
    findings.figure(Figure("kills", tally.kills))
    findings.figure(Figure("faults not met", tally.unmet))
    findings.figure(Figure("corrupt", tally.corrupt, most=0))
    findings.figure(Figure("silent loss", tally.lost, most=0))
    findings.figure(Figure("recovery p50 s", percentile(tally.recoveries, 0.5)))
    findings.figure(Figure("recovery max s", max(tally.recoveries, default=0.0), most=RECOVERY_SECONDS))


def faults(step: int, store: Path) -> Iterator[Plan]:
    """Of single system calls."""
    for number, (fault, stops) in enumerate(_every_fault()):
        if number % step == 0:
            yield _varied(fails(store, fault, stops and fault.lasts), number // step)


def lulls(step: int, store: Path) -> Iterator[Plan]:
    """Nobody who would find out comes when it is over."""
    for number, (fault, stops) in enumerate(_every_fault()):
        if stops and fault.lasts and fault.nth < _FEW and number % step == 0:
            yield fails(store, fault, stops, quiet=True)


def fails(store: Path, fault: Fault, stops: bool, *, kills: bool = False, quiet: bool = False) -> Plan:
    begin = partial(failing, store, fault)
    return Plan(name=str(fault), begin=begin, stops=stops, reads=not fault.reading, kills=kills, quiet=quiet)


def _varied(plan: Plan, number: int) -> Plan:
    """Some are killed, and some last longer than a lease."""
    return replace(plan, kills=number % _KILLED == 4, seconds=LEASE * 1.5 if number % _LONG == 2 else plan.seconds)


def _every_fault() -> Iterator[tuple[Fault, bool]]:
    for calls, file, error, numbers, stops in _FAULTS:
        for nth in numbers:
            for lasts in (True, False):
                yield Fault(calls=calls, file=file, error=error, nth=nth, lasts=lasts), stops


def stints(step: int) -> Iterator[Plan]:
    """Of the size of files."""
    for number, most in enumerate(_STINTS[::step]):
        name = f"no file may have more than {most} bytes"
        yield _varied(Plan(name=name, begin=partial(stinted, most), stops=True), number)


def fills(step: int, disk: SmallDisk) -> Iterator[Plan]:
    """Of all that there is."""
    for number, free in enumerate(_FREE[::step]):
        name = f"others leave {free} bytes of the disk"
        yield _varied(Plan(name=name, begin=partial(filled, disk, free), stops=True), number)


async def on_file(
    plans: Callable[[Path], Iterable[Plan]], tally: Tally, findings: Findings, config: Config = CONFIG
) -> None:
    with place("sqlite") as where, servers(where, config) as processes:
        store = Path(where.store)
        await Trials(store, processes, findings, tally).series([*plans(store)])
        findings.all_violated(f"a server wrote a traceback:\n{text}" for text in processes.tracebacks)


async def on_small_disk(step: int, tally: Tally, findings: Findings) -> None:
    with tempfile.TemporaryDirectory(prefix="antiphon-drill-") as name:
        folder = Path(name)
        (small := folder / "small").mkdir()
        where = Place(folder=folder, store=str(small / "drill.db"))
        with small_disk(small, _SMALL) as disk, servers(where, CONFIG, within=disk.within) as processes:
            await Trials(disk.outside / "drill.db", processes, findings, tally).series([*fills(step, disk)])
            findings.all_violated(f"a server wrote a traceback:\n{text}" for text in processes.tracebacks)
        with small_disk(small, _SMALL) as disk:
            await sheds(where, disk, findings)


async def sheds(where: Place, disk: SmallDisk, findings: Findings) -> None:
    """Before it is full the server takes no background work, and then no new work; and all again when it may."""
    stages = ((_BOUND * 3, 200, 200), (_BOUND * 3 // 2, 503, 200), (_BOUND // 2, 503, 503), (_BOUND * 3, 200, 200))
    with servers(where, {**CONFIG, "shed": {"free_disk": _BOUND}}, within=disk.within) as processes:
        process = await processes.start()
        for free, background, foreground in stages:
            findings.tried()
            disk.leave(free)
            if await until(partial(_takes, process, background, foreground), RECOVERY_SECONDS) is None:
                findings.violated(f"with {free} bytes free it does not answer {background} and {foreground}")
            if (status := (await process.client.get("/ready")).status) != foreground:
                findings.violated(f"with {free} bytes free /ready is {status}")
        if "the store failed" in process.output():
            findings.violated("the disk was full before work was refused")
        await process.stop()


async def _takes(process: Process, background: int, foreground: int) -> bool:
    """Is this how it answers now?"""
    asked = {"model": "fake", "input": "is there room?"}
    answers = [await process.client.post({**asked, "background": True}), await process.client.post(asked)]
    in_form = all(answer.status == 200 or not wrong_refusal(answer) for answer in answers)
    return in_form and [answer.status for answer in answers] == [background, foreground]
