"""Attributes the faults that clients of replicas observed to the recorded interruptions, and verifies the final state.

Disconnects and cut streams are allowed only at a killed server; rejections only while PostgreSQL was down or at a
server that was just stopped, always with a Retry-After; failed responses only because of a killed server or PostgreSQL.
"""

import asyncio
import time
from collections import Counter

from drills.harness import conversations
from drills.harness.client import DISCONNECT_ERRORS, Client
from drills.harness.findings import Findings
from drills.harness.journal import JournalAudit
from drills.harness.oracle import Json, parse_event
from drills.harness.runs import STUCK_SECONDS, verify_run, wait_for_ends
from drills.replicas.clients import Fault, LoadRequest, LoadState
from drills.replicas.cluster import GRACE_SECONDS, ReplicaCluster

_BATCH_SIZE = 32
# 1012: «service restart», a close code of WebSockets
_SHUTDOWN_FAULTS = (("refused", "service_unavailable"), ("hung up", "1012"))
_ROWS = """
SELECT id, COALESCE(substring(encode(request, 'escape') from 'nonce-[0-9a-f]{16}'), ''), ended IS NULL FROM responses
"""


class Verifier:
    def __init__(self, cluster: ReplicaCluster, state: LoadState, lease: float, findings: Findings) -> None:
        self._cluster = cluster
        self._lease = lease
        self._state = state
        self._findings = findings
        self.reasons: Counter[str] = Counter()  # number of faults by kind and reason
        self.lost = self.stuck = self.duplicated = self.cut = 0

    def check_faults(self) -> None:
        """Attribute every fault to a reason; those without one are violations."""
        for fault in self._state.faults:
            reason = self._find_reason(fault)
            if reason:
                self.reasons[f"{fault.kind} {reason}"] += 1
            else:
                self._report_unexplained(fault)
            if fault.kind == "refused" and not fault.has_retry_after:
                self._findings.add_violation(f"{fault.label} was refused without Retry-After: {fault.detail}")

    def _find_reason(self, fault: Fault) -> str:
        """Return the reason of a fault; empty if there is none."""
        cluster = self._cluster
        if fault.kind in ("hung up", "cut off", "silent") and fault.pid in cluster.killed:
            return "by a kill"
        if fault.kind == "refused" and cluster.is_postgres_down(fault.at, fault.at):
            return "without PostgreSQL"
        if fault.pid in cluster.stopped and (fault.kind, fault.code) in _SHUTDOWN_FAULTS:
            return "by one that stops"
        if fault.kind in ("failed", "broken off"):
            if fault.code == "server_restarted" and self._was_killed_during(fault):
                return "by a kill"
            if cluster.is_postgres_down(fault.began, fault.at, margin=self._lease):
                return "without PostgreSQL"
            if fault.pid in cluster.stopped and fault.at >= cluster.stopped[fault.pid] + GRACE_SECONDS:
                return "when the grace was over"
        return ""

    def _was_killed_during(self, fault: Fault) -> bool:
        """Whether a server was killed while the request was running."""
        return any(fault.began <= at <= fault.at for at in self._cluster.killed.values())

    def _report_unexplained(self, fault: Fault) -> None:
        pid = fault.pid
        condition = (
            "stopped" if pid in self._cluster.stopped else "killed" if pid in self._cluster.killed else "running"
        )
        self.cut += fault.kind in ("cut off", "hung up") and condition == "stopped"
        self._findings.add_violation(
            f"{fault.label} was {fault.kind} {fault.code} {fault.detail} by a server that was {condition}, "
            f"{fault.at - fault.began:.1f} s after its start"
        )

    async def check_all(self, client: Client, audit: JournalAudit) -> None:
        """Verify the final state, after the last interruption."""
        acknowledged = [request for request in self._state.requests if request.run.id]
        for start in range(0, len(acknowledged), _BATCH_SIZE):
            await self._check_batch(client, acknowledged[start : start + _BATCH_SIZE])
        for conversation, runs in self._state.conversations.items():
            self._findings.add_violations(await conversations.verify_conversation(client, conversation, runs))
        await self._check_rows()
        self._findings.add_violations(audit.check_new_lines())
        self._check_engine_calls(audit)

    async def _check_batch(self, client: Client, requests: list[LoadRequest]) -> None:
        sentences = await wait_for_ends(client, [request.run for request in requests])
        self.lost += sum("is lost" in one or "cannot be retrieved" in one for one in sentences)
        self.stuck += sum("is stuck" in one for one in sentences)
        self._findings.add_violations(sentences)
        found = await asyncio.gather(
            *(_verify_request(client, request) for request in requests if request.run.ended is not None)
        )
        self._findings.add_violations(sentence for some in found for sentence in some)

    async def _check_rows(self) -> None:
        """Check all rows, also those not reported to any client: each has ended, and there is only one per key."""
        rows, deadline = await self._read_rows(), time.monotonic() + STUCK_SECONDS
        while (unended := [row[0] for row in rows if row[2] == "t"]) and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
            rows = await self._read_rows()
        self.stuck += len(unended)
        self._findings.add_violations(f"{response_id} has not ended" for response_id in unended)
        times = Counter(nonce for _, nonce, _ in rows)
        for request in self._state.requests:
            allowed = 1 if request.key is not None else request.attempts
            if times[request.run.nonce] > allowed or len(request.ids) > 1:
                self.duplicated += 1
                self._findings.add_violation(
                    f"{request.label} {request.key}: {times[request.run.nonce]} responses, received ids {request.ids}"
                )

    async def _read_rows(self) -> list[list[str]]:
        """Read the ids of all responses, the nonces in their requests, and whether they have not ended."""
        database = self._cluster.storage.store.rpartition("/")[2].partition("?")[0]
        output = await asyncio.to_thread(self._cluster.postgres.run_sql, _ROWS, database)
        return [line.split("|") for line in output.splitlines()]

    def _check_engine_calls(self, audit: JournalAudit) -> None:
        """The engine must have received a foreground request at most once per attempt, or once in total if it has a
        key.
        """
        for request in self._state.requests:
            times = len(audit.generated.get(request.run.nonce, []))
            allowed = 1 if request.key is not None else request.attempts
            if "background" not in request.run.kind and times > allowed:
                self.duplicated += 1
                self._findings.add_violation(f"{request.label} {request.run.id} was sent to the engine {times} times")


async def _verify_request(client: Client, request: LoadRequest) -> list[str]:
    run = request.run
    assert run.ended is not None
    received = parse_event(run.frames[-1])["response"] if run.stream_complete else run.ended
    # A server that reports `server_restarted` itself had lost the response to another server: both have sent an end.
    run.orphaned = _outcome(received) == ("failed", "server_restarted")
    if run.kind == "socket turn" and run.stream_complete and received["status"] == "failed":
        run.stream_complete = False  # on a WebSocket no `error` precedes the end
        if _outcome(received) != _outcome(run.ended) or (received != run.ended and not run.orphaned):
            return [f"{run.kind} {run.id} ended as {_outcome(run.ended)}, but its client received {_outcome(received)}"]
    try:
        violations = await verify_run(client, run)
    except (TimeoutError, *DISCONNECT_ERRORS) as error:
        return [f"{run.kind} {run.id} cannot be replayed: {error!r}"]
    if run.kind == "background" and run.ended["status"] != "completed":
        violations.append(f"{run.kind} {run.id} ended as {run.ended['status']} {run.ended['error']}")
    return violations


def _outcome(response: Json) -> tuple[str, str | None]:
    return response["status"], (response["error"] or {}).get("code")
