"""All drills by name, in three sizes, and how one of them is run.

The modules of a family are imported when one of its drills is requested: some of them take seconds.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

from drills.harness.findings import Findings
from drills.harness.storage_locations import StorageKind

T = TypeVar("T")
Drill = Callable[[Findings], Awaitable[None]]
Drills = dict[str, Drill]
Size = Literal["full", "quick", "smallest"]  # the smallest one is enough to find the planted fault (drills/planted)

_REDIS: StorageKind = "postgres with redis"


class SizeChoice:
    """Selects one of the values for each size."""

    def __init__(self, size: Size) -> None:
        self._size = size

    def __call__(self, full: T, quick: T, smallest: T) -> T:
        return {"full": full, "quick": quick, "smallest": smallest}[self._size]


def _tenants(pick: SizeChoice) -> Drills:
    from drills.tenants.drill import tenants

    return {
        "tenants-sqlite": lambda found: tenants("sqlite", pick(1, 7, 61), found),
        "tenants-postgres": lambda found: tenants("postgres", pick(1, 11, 61), found),
    }


def _fuzz(pick: SizeChoice) -> Drills:
    from drills.fuzz.drill import FULL, QUICK, SHORT, FuzzAmount, fuzz

    smallest = FuzzAmount(60, 0)
    return {
        "fuzz-sqlite": lambda found: fuzz("sqlite", pick(FULL, QUICK, smallest), found),
        "fuzz-postgres": lambda found: fuzz("postgres", pick(SHORT, QUICK, smallest), found),
    }


def _bombs(pick: SizeChoice) -> Drills:
    from drills.bombs import box, distinct, failures
    from drills.bombs.twins import twins

    selection = pick(box.FULL, box.QUICK, box.BombSelection(step=150, documents=False))
    few_failures = failures.FailureCounts(warm_up=len(failures.STAGES), measured=2 * len(failures.STAGES))
    failure_counts = pick(failures.FULL, failures.QUICK, few_failures)
    schema_counts = pick(distinct.FULL, distinct.QUICK, distinct.SchemaCounts(warm_up=20, measured=20))
    return {
        "bombs": lambda found: box.bombs(selection, found),
        "bombs-twins": lambda found: twins(pick(1, 5, 37), found),
        "bombs-failures": lambda found: failures.failures(failure_counts, found),
        "bombs-schemas": lambda found: distinct.distinct(schema_counts, found),
    }


def _egress(pick: SizeChoice) -> Drills:
    from drills.egress.drill import egress

    return {"egress": lambda found: egress(pick(1, 7, 211), found)}


def _sandbox(pick: SizeChoice) -> Drills:
    from drills.sandbox.drill import FULL, QUICK, SMALLEST, sandbox

    return {"sandbox": lambda found: sandbox(pick(FULL, QUICK, SMALLEST), found)}


def _secret(pick: SizeChoice) -> Drills:
    from drills.tool_loop.credentials import secret
    from drills.tool_loop.mirror_server import BEHAVIOURS

    step = pick(1, 5, len(BEHAVIOURS))
    log_formats = pick(("text", "json"), ("text", "json"), ("json",))
    return {
        "secret-sqlite": lambda found: secret("sqlite", found, step, log_formats),
        "secret-postgres": lambda found: secret("postgres", found, step, log_formats),
    }


def _canaries(pick: SizeChoice) -> Drills:
    from drills.tenants.canaries import canaries

    return {"canaries": lambda found: canaries(pick(10, 1, 1), found)}


def _forgery(pick: SizeChoice) -> Drills:
    from drills.forgery.drill import forgery

    return {"forgery": lambda found: forgery(pick(20_000, 2_000, 100), pick(10, 100, 10_000), found)}


def _upstream(pick: SizeChoice) -> Drills:
    from drills.engines.upstream import upstream

    return {"upstream": lambda found: upstream(pick(20_000, 2_000, 100), found, floods=pick(True, True, False))}


def _mcp(pick: SizeChoice) -> Drills:
    from drills.tool_loop.hostile_mcp import mcp

    return {"mcp": lambda found: mcp(pick(10_000, 2_000, 20), found, pick(1, 1, 91))}


def _nth(pick: SizeChoice) -> Drills:
    from drills.state.nth_failure import nth_failure

    return {"nth-failure": lambda found: nth_failure(pick(1, 7, 19), found)}


def _replays(pick: SizeChoice) -> Drills:
    from drills.state.replays import replays

    return {
        "replays-sqlite": lambda found: replays("sqlite", pick(200, 50, 2), found),
        "replays-postgres": lambda found: replays("postgres", pick(200, 25, 2), found),
    }


def _pairs(pick: SizeChoice) -> Drills:
    from drills.state.pairs import pairs

    return {
        "pairs-postgres": lambda found: pairs("postgres", pick(20, 2, 1), found),
        "pairs-redis": lambda found: pairs(_REDIS, pick(20, 2, 1), found),
    }


def _idempotency(pick: SizeChoice) -> Drills:
    from drills.state.idempotency import idempotency

    return {
        "idempotency-sqlite": lambda found: idempotency("sqlite", pick(60, 12, 1), found),
        "idempotency-postgres": lambda found: idempotency("postgres", pick(60, 12, 1), found),
    }


def _zombie(pick: SizeChoice) -> Drills:
    from drills.state.zombie import zombie

    return {
        "zombie-sqlite": lambda found: zombie("sqlite", pick(25, 2, 1), found),
        "zombie-postgres": lambda found: zombie("postgres", pick(25, 2, 1), found),
        "zombie-redis": lambda found: zombie(_REDIS, pick(10, 2, 1), found),
    }


def _loop(pick: SizeChoice) -> Drills:
    from drills.tool_loop.kill9 import InterruptionPoint, loop, make_points
    from drills.tool_loop.zombie import loop_zombie, make_pause_points

    approved = [InterruptionPoint(name="approved", scene="approved", counter_event="counted", slow_phase="after")]
    return {
        "loop-sqlite": lambda found: loop("sqlite", pick(make_points(120), make_points(9), approved), found),
        "loop-postgres": lambda found: loop("postgres", pick(make_points(70), make_points(6), approved), found),
        "loop-zombie": lambda found: loop_zombie(
            "postgres", pick(make_pause_points(40), make_pause_points(4), approved), found
        ),
    }


def _workers(pick: SizeChoice) -> Drills:
    from drills.state.workers import workers

    return {
        "workers-sqlite": lambda found: workers("sqlite", pick(60, 8, 4), found),
        "workers-postgres": lambda found: workers("postgres", pick(40, 4, 4), found),
    }


def _replicas(pick: SizeChoice) -> Drills:
    from drills.replicas.drill import FULL, QUICK, replicas

    return {"replicas": lambda found: replicas(pick(FULL, QUICK, QUICK), found)}


def _overload(pick: SizeChoice) -> Drills:
    from drills.load.overload import FULL, QUICK, Times, overload

    return {"overload": lambda found: overload(pick(FULL, QUICK, Times(1.0, 1.0)), found)}


def _noisy(pick: SizeChoice) -> Drills:
    from drills.load.noisy import FULL, QUICK, Times, noisy

    return {"noisy": lambda found: noisy(pick(FULL, QUICK, Times(1.5)), found)}


def _engine(pick: SizeChoice) -> Drills:
    from drills.engines.engine_kills import ADAPTERS, engine_kills

    adapters = pick(ADAPTERS, ADAPTERS[:3], ADAPTERS[:1])
    return {"engine-kills": lambda found: engine_kills(adapters, pick(20, 2, 3), found)}


def _pool(pick: SizeChoice) -> Drills:
    from drills.engines.pool import choose_kill_tokens, pool

    return {"pool": lambda found: pool(choose_kill_tokens(pick(25, 2, 1)), found)}


def _disk(pick: SizeChoice) -> Drills:
    from drills.disk.drill import disk, disk_sync

    return {"disk": pick(lambda found: disk(1, found), lambda found: disk(12, found), disk_sync)}


def _disconnects(pick: SizeChoice) -> Drills:
    from drills.state.disconnects import disconnects

    return {"disconnects": lambda found: disconnects(pick(2_000, 200, 12), found)}


def _sockets(pick: SizeChoice) -> Drills:
    from drills.load.websockets import FULL, QUICK, SocketLoad, sockets

    smallest = SocketLoad(idle=50, unreading=2, requests=5, stall_seconds=4.0)
    return {"sockets": lambda found: sockets(pick(FULL, QUICK, smallest), found)}


def _kill9(pick: SizeChoice) -> Drills:
    from drills.state.kill9 import KillPlan, kill9, make_plans

    streaming = [KillPlan("live.append:before:12")]  # clients of background streams have received events by then
    return {
        "kill9-sqlite": lambda found: kill9("sqlite", pick(make_plans(200), make_plans(12), streaming), found),
        "kill9-postgres": lambda found: kill9("postgres", pick(make_plans(200), make_plans(12), streaming), found),
        "kill9-redis": lambda found: kill9(_REDIS, pick(make_plans(50), make_plans(6), streaming), found),
    }


def _files(pick: SizeChoice) -> Drills:
    from drills.state.files import files, make_points

    points = ["store.delete_file:before:2", "store.write_chunks:after:2"]
    return {
        "files-sqlite": lambda found: files("sqlite", pick(make_points(200), make_points(20), points), found),
        "files-postgres": lambda found: files("postgres", pick(make_points(100), make_points(10), points), found),
    }


# By the first word of their names, in execution order: those that find the most in the least time come first.
_FAMILIES: dict[str, Callable[[SizeChoice], Drills]] = {
    "tenants": _tenants,
    "fuzz": _fuzz,
    "bombs": _bombs,
    "egress": _egress,
    "sandbox": _sandbox,
    "secret": _secret,
    "canaries": _canaries,
    "forgery": _forgery,
    "upstream": _upstream,
    "mcp": _mcp,
    "nth": _nth,
    "replays": _replays,
    "pairs": _pairs,
    "idempotency": _idempotency,
    "zombie": _zombie,
    "loop": _loop,
    "workers": _workers,
    "replicas": _replicas,
    "overload": _overload,
    "noisy": _noisy,
    "engine": _engine,
    "pool": _pool,
    "disk": _disk,
    "disconnects": _disconnects,
    "sockets": _sockets,
    "kill9": _kill9,
    "files": _files,
}


def build_drills(size: Size) -> Drills:
    """Return all drills by name."""
    pick = SizeChoice(size)
    return {name: drill for build_family in _FAMILIES.values() for name, drill in build_family(pick).items()}


def load_drill(name: str, size: Size) -> Drill:
    return _FAMILIES[name.partition("-")[0]](SizeChoice(size))[name]


def run_drill(name: str, drill: Drill) -> Findings:
    findings = Findings(name)
    began = time.monotonic()
    findings.print_line("…")
    asyncio.run(_await_drill(drill, findings))
    findings.check_figures()
    findings.seconds = time.monotonic() - began
    return findings


async def _await_drill(drill: Drill, findings: Findings) -> None:
    await drill(findings)
