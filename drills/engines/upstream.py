"""A hostile upstream: what engines send is changed in every way, and goes through the whole server twice, for a client
that streams and for one that waits for JSON; every fourth time over chat completions, too.

Whatever came: one terminal event, in time, the same for both; nothing completed that the engine had not ended; no
defect, no words of another answer, no redirect followed, and no memory kept.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from time import monotonic
from typing import Any

from drills.engines.chat_judge import chat_judged
from drills.engines.floods import FLOODS, measured, rss
from drills.engines.hostile_upstream import SILENCE, Defects, Upstream
from drills.engines.playbook import Play, play
from drills.engines.responses_judge import FAILED, Verdict, judged
from drills.harness.client import Client
from drills.harness.findings import Figure, Findings
from tests.engines.http.stubs.recorded_streams import WIRES

Judge = Callable[..., Awaitable[Verdict]]

AT_ONCE = 16
AGAIN = 3
CHATS = 4  # every fourth play is heard over chat completions, too
SHARE = 1000  # plays between two words to who watches
MOST_GROWTH = 32.0  # MiB, over the run
MOST_FLOOD_GROWTH = 64.0
MOST_FLOOD_LAG = 0.5


async def upstream(trials: int, findings: Findings) -> None:
    hostile = Upstream()
    with Defects() as defects:
        async with hostile.fronted({wire.kind for wire in WIRES.values()}) as clients:
            drill = Drill(hostile, clients, findings)
            await drill.play_all(trials)
            await drill.flood_all()
    findings.all_violated(f"a defect: {seen}" for seen in defects.seen)
    if hostile.visits:
        findings.violated(f"a redirect was followed, {hostile.visits} times")


class Drill:
    def __init__(self, hostile: Upstream, clients: Mapping[str, Client], findings: Findings) -> None:
        self._hostile = hostile
        self._clients = clients
        self._findings = findings
        self._fates = Counter[str]()

    async def play_all(self, trials: int) -> None:
        shares = [range(begin, min(begin + SHARE, trials)) for begin in range(0, trials, SHARE)]
        await self._play(iter(shares[0]))  # whatever is kept from the first times on is there after these
        memory, files = rss(), _open_files()
        for share in shares[1:]:
            await self._play(iter(share))
            self._findings.say(f"{share.stop:,} of {trials:,}: {dict(self._fates)}")
        self._findings.figure(Figure("growth MiB", rss() - memory, most=MOST_GROWTH))
        self._findings.figure(Figure("files left", _open_files() - files, most=AT_ONCE * len(self._clients)))
        for fate, number in sorted(self._fates.items()):
            self._findings.figure(Figure(fate, number))

    async def _play(self, numbers: Iterator[int]) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._one_after_the_other(numbers))

    async def _one_after_the_other(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            playing = self._hostile.plays[number] = play(number)
            wire = WIRES[playing.wire]
            client = self._clients[wire.kind.name]
            verdicts = [await self._judged(judged, client, number, wire.asked)]
            if number % CHATS == 0:
                verdicts.append(await self._judged(chat_judged, client, number, wire.asked))
            del self._hostile.plays[number]
            self._findings.tried()
            self._fates[verdicts[0].fate] += 1
            for verdict in verdicts:
                for sentence in [*verdict.wrong, *_unfounded(playing, verdict.fate)]:
                    self._findings.violated(f"play {number} ({playing.wire}: {playing.what}): {sentence}")

    async def _judged(self, judge: Judge, client: Client, number: int, wishes: dict[str, Any]) -> Verdict:
        """Once more where only the machine may have been too slow."""
        for _ in range(AGAIN):
            verdict = await judge(client, f"play {number}", number, **wishes)
            if not verdict.late:
                break
            self._fates["again"] += 1
        return verdict

    async def flood_all(self) -> None:
        """One after the other, each with the server to itself."""
        self._hostile.floods = list(FLOODS.values())
        growth = lag = slowest = 0.0
        for number, name in enumerate(FLOODS):
            begun = monotonic()
            async with measured() as found:
                verdict = await judged(self._clients["vllm"], f"flood {number}")
            took = monotonic() - begun
            self._findings.tried()
            self._findings.say(f"{name}: {took:.1f} s, {found.growth:.0f} MiB, lag {found.lag:.3f} s")
            growth, lag, slowest = max(growth, found.growth), max(lag, found.lag), max(slowest, took)
            self._findings.all_violated(f"flood of {name}: {sentence}" for sentence in verdict.wrong)
            if verdict.fate != FAILED:
                self._findings.violated(f"flood of {name}: it is {verdict.fate}")
            if found.growth > MOST_FLOOD_GROWTH:
                self._findings.violated(f"flood of {name}: {found.growth:.0f} MiB were kept")
        self._findings.figure(Figure("flood MiB", growth, most=MOST_FLOOD_GROWTH))
        self._findings.figure(Figure("flood lag s", lag, most=MOST_FLOOD_LAG))
        self._findings.figure(Figure("flood s", slowest, most=SILENCE * 4))


def _unfounded(playing: Play, fate: str) -> list[str]:
    """Completed although the engine had not said so."""
    if fate == FAILED or playing.may_end_well:
        return []
    return [f"it is {fate}, and the engine had not ended it"]


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))
