"""Two replicas on PostgreSQL and Redis behind a proxy, with work of every kind in flight, while they are killed and
stopped in turn and PostgreSQL is restarted.

No acknowledged response is lost, stuck, duplicated or changed. A server that is stopped cuts off no client. Every fault
that clients observe has a reason, and without PostgreSQL they receive a Retry-After.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from msgspec import Struct

from drills.harness.client import Client
from drills.harness.findings import Figure, Findings
from drills.harness.journal import JournalAudit
from drills.replicas.clients import (
    LoadState,
    run_background_client,
    run_background_stream_client,
    run_conversation_client,
    run_json_client,
    run_stream_client,
)
from drills.replicas.cluster import GRACE_SECONDS, REPLICAS, ReplicaCluster, open_cluster
from drills.replicas.verification import Verifier
from drills.replicas.websocket import run_websocket_client

LoadClient = Callable[[LoadState], Coroutine[Any, Any, None]]

_CLIENT_COUNTS: dict[LoadClient, int] = {
    run_stream_client: 8,
    run_json_client: 6,
    run_background_client: 6,
    run_background_stream_client: 6,
    run_websocket_client: 5,
    run_conversation_client: 5,
}


class DrillSettings(Struct, frozen=True, kw_only=True):
    seconds: float
    max_pause: float  # maximum seconds between two interruptions of replicas
    # of PostgreSQL: start as a share of the total time, seconds, by a crash
    outages: tuple[tuple[float, float, bool], ...]
    lease: float
    client_share: float = 1.0  # share of the clients in _CLIENT_COUNTS


# PostgreSQL is down for a moment, after a crash, and for longer than a lease.
FULL = DrillSettings(
    seconds=300.0, max_pause=6.0, outages=((0.2, 0.0, False), (0.5, 3.0, True), (0.75, 10.0, False)), lease=8.0
)
QUICK = DrillSettings(seconds=3.0, max_pause=0.3, outages=((0.4, 0.2, False),), lease=3.0, client_share=0.2)


async def replicas(settings: DrillSettings, findings: Findings) -> None:
    async with open_cluster(settings.lease) as cluster:
        state = LoadState(cluster.proxy)
        await _run_clients(cluster, state, settings, findings)
        verifier = Verifier(cluster, state, settings.lease, findings)
        verifier.check_faults()
        await verifier.check_all(Client(cluster.proxy.port), JournalAudit(cluster.storage.journal))
        await cluster.close()
        findings.add_violations(f"a server wrote a traceback:\n{text}" for text in cluster.tracebacks)
        _report(cluster, state, verifier, findings)


async def _run_clients(cluster: ReplicaCluster, state: LoadState, settings: DrillSettings, findings: Findings) -> None:
    async with asyncio.TaskGroup() as group:
        for load, count in _CLIENT_COUNTS.items():
            for _ in range(max(1, round(count * settings.client_share))):
                group.create_task(load(state))
        interruptions = group.create_task(_interrupt_replicas(cluster, settings, findings))
        restarts = group.create_task(_restart_postgres(cluster, settings))
        await asyncio.sleep(settings.seconds)
        await asyncio.wait([interruptions, restarts])
        state.stopping = True


async def _interrupt_replicas(cluster: ReplicaCluster, settings: DrillSettings, findings: Findings) -> None:
    """Kill one replica, then stop the other one; then the same with exchanged roles."""
    deadline = asyncio.get_running_loop().time() + settings.seconds
    number = 0
    while number < 2 or asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(random.uniform(settings.max_pause / 3, settings.max_pause))
        index = (number + number // 2) % REPLICAS
        if number % 2 == 0:
            await cluster.kill(index)
        elif violation := await cluster.stop(index):
            findings.add_violation(violation)
        number += 1


async def _restart_postgres(cluster: ReplicaCluster, settings: DrillSettings) -> None:
    began = asyncio.get_running_loop().time()
    for share, seconds, crash in settings.outages:
        await asyncio.sleep(max(0.0, began + share * settings.seconds - asyncio.get_running_loop().time()))
        await cluster.restart_postgres(seconds, crash)


def _report(cluster: ReplicaCluster, state: LoadState, verifier: Verifier, findings: Findings) -> None:
    counts = Counter(request.label for request in state.requests)
    completed = sum((request.run.ended or {}).get("status") == "completed" for request in state.requests)
    findings.add_trials(len(state.requests))
    figures: Mapping[str, float] = {
        **dict(sorted(counts.items())),
        "completed": completed,
        "kills": len(cluster.killed),
        "stops": len(cluster.stopped),
        "PostgreSQL restarts": len(cluster.outages),
        "PostgreSQL away s": sum((outage.up or 0.0) - outage.down for outage in cluster.outages),
        **dict(sorted(verifier.reasons.items())),
    }
    for name, value in figures.items():
        findings.add_figure(Figure(name, value))
    for name, value in (("lost", verifier.lost), ("stuck", verifier.stuck), ("duplicated", verifier.duplicated)):
        findings.add_figure(Figure(name, value, maximum=0))
    findings.add_figure(Figure("cut off in good order", verifier.cut, maximum=0))
    findings.add_figure(Figure("slowest stop s", cluster.slowest_stop, maximum=GRACE_SECONDS + 2.0))
