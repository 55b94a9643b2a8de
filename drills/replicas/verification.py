"""What clients of replicas noticed, held against what was done to these; and the look at everything afterwards.

Hung up on or cut off: only by a server that was killed. Refused: only while PostgreSQL was away, or by a server that
was told to stop a moment ago, and with word when to come back. Failed: only with a server that was killed, or
PostgreSQL.
"""

import asyncio
import time
from collections import Counter

from drills.harness import conversations
from drills.harness.client import GONE, Client
from drills.harness.findings import Findings
from drills.harness.journal import Audit
from drills.harness.oracle import Json, event
from drills.harness.runs import STUCK_SECONDS, look, settle
from drills.replicas.clients import Ask, Fault, World
from drills.replicas.cluster import GRACE, House

_AT_ONCE = 32
_FAREWELLS = (("refused", "service_unavailable"), ("hung up", "1012"))  # 1012: the WebSocket's «service restart»
_ROWS = """
SELECT id, COALESCE(substring(encode(request, 'escape') from 'nonce-[0-9a-f]{16}'), ''), ended IS NULL FROM responses
"""


class Judge:
    def __init__(self, house: House, world: World, lease: float, findings: Findings) -> None:
        self._house = house
        self._lease = lease
        self._world = world
        self._findings = findings
        self.reasons: Counter[str] = Counter()  # why clients noticed something
        self.lost = self.stuck = self.duplicated = self.cut = 0

    def faults(self) -> None:
        for fault in self._world.faults:
            reason = self._reason(fault)
            if reason:
                self.reasons[f"{fault.what} {reason}"] += 1
            else:
                self._unreasonable(fault)
            if fault.what == "refused" and not fault.waits:
                self._findings.violated(f"{fault.label} was refused without Retry-After: {fault.said}")

    def _reason(self, fault: Fault) -> str:
        """ "": there is none."""
        house = self._house
        if fault.what in ("hung up", "cut off", "silent") and fault.pid in house.killed:
            return "by a kill"
        if fault.what == "refused" and house.away(fault.at, fault.at):
            return "without PostgreSQL"
        if fault.pid in house.stopped and (fault.what, fault.code) in _FAREWELLS:
            return "by one that stops"
        if fault.what in ("failed", "broken off"):
            if fault.code == "server_restarted" and self._died(fault):
                return "by a kill"
            if house.away(fault.began, fault.at, later=self._lease):
                return "without PostgreSQL"
            if fault.pid in house.stopped and fault.at >= house.stopped[fault.pid] + GRACE:
                return "when the grace was over"
        return ""

    def _died(self, fault: Fault) -> bool:
        """Was a server killed while this was under way?"""
        return any(fault.began <= at <= fault.at for at in self._house.killed.values())

    def _unreasonable(self, fault: Fault) -> None:
        pid = fault.pid
        whose = "told to stop" if pid in self._house.stopped else "killed" if pid in self._house.killed else "well"
        self.cut += fault.what in ("cut off", "hung up") and whose == "told to stop"
        self._findings.violated(
            f"{fault.label} was {fault.what} {fault.code} {fault.said} by a server that was {whose}, "
            f"{fault.at - fault.began:.1f} s after it was asked for"
        )

    async def everything(self, client: Client, audit: Audit) -> None:
        """When nothing is done to anybody any more."""
        heard = [ask for ask in self._world.asks if ask.run.id]
        for start in range(0, len(heard), _AT_ONCE):
            await self._some(client, heard[start : start + _AT_ONCE])
        for conversation, runs in self._world.talks.items():
            self._findings.all_violated(await conversations.look(client, conversation, runs))
        await self._rows()
        self._findings.all_violated(audit.news())
        self._engine(audit)

    async def _some(self, client: Client, asks: list[Ask]) -> None:
        sentences = await settle(client, [ask.run for ask in asks])
        self.lost += sum("is lost" in one or "cannot be asked for" in one for one in sentences)
        self.stuck += sum("is stuck" in one for one in sentences)
        self._findings.all_violated(sentences)
        found = await asyncio.gather(*(_looked_at(client, ask) for ask in asks if ask.run.ended is not None))
        self._findings.all_violated(sentence for some in found for sentence in some)

    async def _rows(self) -> None:
        """Also those that no client was told of: each has ended, and there is one for each key."""
        rows, deadline = await self._read(), time.monotonic() + STUCK_SECONDS
        while (unended := [row[0] for row in rows if row[2] == "t"]) and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
            rows = await self._read()
        self.stuck += len(unended)
        self._findings.all_violated(f"{response_id} has not ended" for response_id in unended)
        times = Counter(nonce for _, nonce, _ in rows)
        for ask in self._world.asks:
            most = 1 if ask.key is not None else ask.tries
            if times[ask.run.nonce] > most or len(ask.ids) > 1:
                self.duplicated += 1
                self._findings.violated(f"{ask.label} {ask.key}: {times[ask.run.nonce]} responses, told of {ask.ids}")

    async def _read(self) -> list[list[str]]:
        """Ids, what is said in their requests once and only there, and whether they still run."""
        database = self._house.place.store.rpartition("/")[2].partition("?")[0]
        told = await asyncio.to_thread(self._house.postgres.sql, _ROWS, database)
        return [line.split("|") for line in told.splitlines()]

    def _engine(self, audit: Audit) -> None:
        """What runs in the foreground is run once for each time that it may have been begun."""
        for ask in self._world.asks:
            times = len(audit.generated.get(ask.run.nonce, []))
            most = 1 if ask.key is not None else ask.tries
            if "background" not in ask.run.kind and times > most:
                self.duplicated += 1
                self._findings.violated(f"{ask.label} {ask.run.id} was given to the engine {times} times")


async def _looked_at(client: Client, ask: Ask) -> list[str]:
    run = ask.run
    assert run.ended is not None
    told = event(run.frames[-1])["response"] if run.whole else run.ended
    # Who is told that by its own server was told of what another one had taken over: two servers have said it.
    run.orphaned = _word(told) == ("failed", "server_restarted")
    if run.kind == "socket turn" and run.whole and told["status"] == "failed":
        run.whole = False  # on a WebSocket there is no `error` before the end
        if _word(told) != _word(run.ended) or (told != run.ended and not run.orphaned):
            return [f"{run.kind} {run.id} ended as {_word(run.ended)}, and its client was told {_word(told)}"]
    try:
        found = await look(client, run)
    except (TimeoutError, *GONE) as error:
        return [f"{run.kind} {run.id} cannot be replayed: {error!r}"]
    if run.kind == "background" and run.ended["status"] != "completed":
        found.append(f"{run.kind} {run.id} ended {run.ended['status']} {run.ended['error']}")
    return found


def _word(response: Json) -> tuple[str, str | None]:
    return response["status"], (response["error"] or {}).get("code")
