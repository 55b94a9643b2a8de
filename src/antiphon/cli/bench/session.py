"""All of a measurement: servers are met, then measured level by level, in turns, so that what else the machine does
meanwhile meets them alike.
"""

import asyncio
import resource
from itertools import count

import uvloop
from msgspec import Struct

from antiphon.cli.bench.figures import Figures, Tally
from antiphon.cli.bench.hearing import Pulse
from antiphon.cli.bench.line import Line
from antiphon.cli.bench.load import Load
from antiphon.cli.bench.plan import Level, Plan
from antiphon.cli.bench.reading import APIS, CHAT, RESPONSES
from antiphon.cli.bench.target import Target
from antiphon.cli.client import Unanswered


def perform(plan: Plan, api: str, places: list[tuple[str, str | None]]) -> tuple[list[Figures], bool]:
    """The figures, and whether somebody interrupted it before it was done."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection is a file, and there may be thousands
    session = Session(plan, api, places)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(session.run())
    except KeyboardInterrupt:
        return session.figures(), True
    return session.figures(), False


class Measured(Struct, frozen=True):
    target: Target
    level: Level
    tally: Tally


class Session:
    """`places` are URLs and their keys; `api` is a name, or auto."""

    def __init__(self, plan: Plan, api: str, places: list[tuple[str, str | None]]) -> None:
        pulse, numbers = Pulse(), count()
        self._plan = plan
        self._api = api
        self._targets = [Target(url, key, plan, pulse, numbers) for url, key in places]
        self._line = Line(pulse)
        self._measured: list[Measured] = []

    async def run(self) -> None:
        """Unanswered if a server is not there or says no. What was measured before an interruption stays."""
        try:
            for target in self._targets:
                self._line.watch(f"asking {target.url}", None, Tally())
                await target.meet()
            await self._agree()
            for level in self._plan.levels:
                await self._measure(level)
        finally:
            self._line.clear()
            for target in self._targets:
                target.close()

    def figures(self) -> list[Figures]:
        """Of what was measured so far, if anything came of it."""
        return [
            one.tally.figures(
                one.target.url, one.target.api.name, one.target.model, one.level.concurrency, one.level.rate
            )
            for one in self._measured
            if one.tally.requests
        ]

    async def _agree(self) -> None:
        """On one API for all, the Responses API if they have it; where there is none, each is asked as it can be."""
        if self._api != "auto":
            for target in self._targets:
                if (refusal := await target.refusal(APIS[self._api])) is not None:
                    raise Unanswered(refusal.sentence)
            return
        refusals = [await target.refusal(RESPONSES) for target in self._targets]
        if not any(refusals):
            return
        over_chat = [await target.refusal(CHAT) for target in self._targets]
        if not any(over_chat):
            return
        for target, first, second in zip(self._targets, refusals, over_chat, strict=True):
            if first is not None and second is not None:
                raise Unanswered((first if second.absent and not first.absent else second).sentence)
            target.api = RESPONSES if first is None else CHAT

    async def _measure(self, level: Level) -> None:
        measured = [Measured(target, level, Tally()) for target in self._targets]
        self._measured += measured
        for turn in range(self._plan.rounds):
            for one in measured:
                load = Load(one.target, level, self._plan, one.tally)
                self._line.watch(f"{one.target.url} · {level}", self._plan.requests, one.tally)
                await load.warm_up()
                await load.measure(turn)
