"""Drill `upstream`: defective engine responses pass through a whole server twice, for a streaming client and for one
that waits for JSON; every fourth one also through chat completions.

Every response has one terminal event, in time and equal for both clients. A response completes only if the engine
signalled its end. No internal error is logged, no text of another response appears, no redirect is followed, and no
memory is retained.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from time import monotonic
from typing import Any

from drills.engines.chat_judge import judge_chat
from drills.engines.floods import FLOODS, measure_impact, measure_rss
from drills.engines.hostile_upstream import IDLE_TIMEOUT, DefectLog, HostileUpstream
from drills.engines.playbook import Play, make_play
from drills.engines.responses_judge import FAILED, Verdict, judge_response
from drills.harness.client import Client
from drills.harness.findings import Figure, Findings
from tests.engines.http.stubs.recorded_streams import RECORDED_STREAMS

Judge = Callable[..., Awaitable[Verdict]]

CONCURRENCY = 16
ATTEMPTS = 3
CHAT_INTERVAL = 4  # every fourth play is also sent through chat completions
BATCH_PLAYS = 1000  # plays between two progress messages
MAX_GROWTH = 32.0  # MiB over the whole run
MAX_FLOOD_GROWTH = 64.0
MAX_FLOOD_LAG = 1.0  # seconds; the upstream that sends the flood runs in the same process


async def upstream(trials: int, findings: Findings, floods: bool = True) -> None:
    hostile = HostileUpstream()
    with DefectLog() as defects:
        async with hostile.run_servers({wire.kind for wire in RECORDED_STREAMS.values()}) as clients:
            drill = UpstreamDrill(hostile, clients, findings)
            await drill.play_all(trials)
            if floods:
                await drill.run_floods()
    findings.add_violations(f"an internal error was logged: {seen}" for seen in defects.seen)
    if hostile.visits:
        findings.add_violation(f"redirects were followed {hostile.visits} times")


class UpstreamDrill:
    def __init__(self, hostile: HostileUpstream, clients: Mapping[str, Client], findings: Findings) -> None:
        self._hostile = hostile
        self._clients = clients
        self._findings = findings
        self._outcomes = Counter[str]()

    async def play_all(self, trials: int) -> None:
        batches = [range(begin, min(begin + BATCH_PLAYS, trials)) for begin in range(0, trials, BATCH_PLAYS)]
        await self._play_batch(iter(batches[0]))  # warm-up: fills the caches before memory is measured
        memory, files = measure_rss(), _count_open_files()
        for batch in batches[1:]:
            await self._play_batch(iter(batch))
            self._findings.print_line(f"{batch.stop:,} of {trials:,}: {dict(self._outcomes)}")
        self._findings.add_figure(Figure("growth MiB", measure_rss() - memory, maximum=MAX_GROWTH))
        self._findings.add_figure(
            Figure("files left", _count_open_files() - files, maximum=CONCURRENCY * len(self._clients))
        )
        for outcome, number in sorted(self._outcomes.items()):
            self._findings.add_figure(Figure(outcome, number))

    async def _play_batch(self, numbers: Iterator[int]) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(CONCURRENCY):
                group.create_task(self._play_in_sequence(numbers))

    async def _play_in_sequence(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            current = self._hostile.plays[number] = make_play(number)
            wire = RECORDED_STREAMS[current.wire]
            client = self._clients[wire.kind.name]
            verdicts = [await self._judge_with_retry(judge_response, client, number, wire.request_fields)]
            if number % CHAT_INTERVAL == 0:
                verdicts.append(await self._judge_with_retry(judge_chat, client, number, wire.request_fields))
            del self._hostile.plays[number]
            self._findings.add_trials()
            self._outcomes[verdicts[0].outcome] += 1
            for verdict in verdicts:
                for sentence in [*verdict.problems, *_check_completion(current, verdict.outcome)]:
                    self._findings.add_violation(f"play {number} ({current.wire}: {current.changes}): {sentence}")

    async def _judge_with_retry(self, judge: Judge, client: Client, number: int, fields: dict[str, Any]) -> Verdict:
        """Judge a play, and repeat it if only the machine may have been too slow."""
        for _ in range(ATTEMPTS):
            verdict = await judge(client, f"play {number}", number, **fields)
            if not verdict.may_be_timeout:
                break
            self._outcomes["again"] += 1
        return verdict

    async def run_floods(self) -> None:
        """Run the floods one after the other, without any other load."""
        self._hostile.floods = list(FLOODS.values())
        growth = lag = slowest = 0.0
        for number, name in enumerate(FLOODS):
            started = monotonic()
            async with measure_impact() as impact:
                verdict = await judge_response(self._clients["vllm"], f"flood {number}")
            took = monotonic() - started
            self._findings.add_trials()
            self._findings.print_line(f"{name}: {took:.1f} s, {impact.growth:.0f} MiB, lag {impact.lag:.3f} s")
            growth, lag, slowest = max(growth, impact.growth), max(lag, impact.lag), max(slowest, took)
            self._findings.add_violations(f"flood of {name}: {sentence}" for sentence in verdict.problems)
            if verdict.outcome != FAILED:
                self._findings.add_violation(f"flood of {name}: the response is {verdict.outcome}")
            if impact.growth > MAX_FLOOD_GROWTH:
                self._findings.add_violation(f"flood of {name}: the process grew by {impact.growth:.0f} MiB")
        self._findings.add_figure(Figure("flood MiB", growth, maximum=MAX_FLOOD_GROWTH))
        self._findings.add_figure(Figure("flood lag s", lag, maximum=MAX_FLOOD_LAG))
        self._findings.add_figure(Figure("flood s", slowest, maximum=IDLE_TIMEOUT * 4))


def _check_completion(play: Play, outcome: str) -> list[str]:
    """Report a response that completed although the engine had not ended it."""
    if outcome == FAILED or play.may_complete:
        return []
    return [f"the response is {outcome}, although the engine had not ended it"]


def _count_open_files() -> int:
    return len(os.listdir("/proc/self/fd"))
