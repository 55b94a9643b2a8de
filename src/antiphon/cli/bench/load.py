"""Load on one server: as many requests at once as a level has, until its quota is used up.

At a rate, an answer's time counts from the moment at which its request was due, not from when there was room for it: a
server that is too slow is not spared the requests that it keeps waiting.

All of a measurement: servers are met, then measured level by level, in turns, so that what else the machine does
meanwhile meets them alike.

One line that tells how far a measurement is, redrawn in its place on a terminal; nothing at all elsewhere.
"""

import asyncio
import resource
import shutil
import sys
from collections import deque
from itertools import count
from time import monotonic, perf_counter, process_time

import uvloop
from msgspec import Struct

from antiphon.cli.bench.figures import Figures, Tally
from antiphon.cli.bench.plan import Level, Plan, Quota
from antiphon.cli.bench.target import APIS, CHAT, PROBE_TOKENS, RESPONSES, Pulse, Target
from antiphon.cli.client import Unanswered
from antiphon.errors import AntiphonError

REST_SECONDS = 0.1  # after a failure: who refuses at once must not be asked as fast as that


class Load:
    """One round of one server at one level. What it measures is added to a tally."""

    def __init__(self, target: Target, level: Level, plan: Plan, tally: Tally) -> None:
        self._target = target
        self._level = level
        self._plan = plan
        self._tally = tally

    async def warm_up(self) -> None:
        """Short requests, so that connections are open and whatever is made at the first request is there."""
        quota = Quota(0.0, None, self._plan.warmups(self._level), None)
        await self._work(quota, Tally(), min(PROBE_TOKENS, self._plan.max_tokens))

    async def measure(self, turn: int) -> None:
        begun, cpu = perf_counter(), process_time()
        try:
            await self._work(self._plan.quota(self._level, turn, begun), self._tally, self._plan.max_tokens)
        finally:
            self._tally.seconds += perf_counter() - begun
            self._tally.cpu_seconds += process_time() - cpu

    async def _work(self, quota: Quota, tally: Tally, most: int) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._level.concurrency, quota.requests)):
                group.create_task(self._ask_on(quota, tally, most))

    async def _ask_on(self, quota: Quota, tally: Tally, most: int) -> None:
        """One request after the other."""
        while (due := quota.next(perf_counter())) is not None:
            if (early := due - perf_counter()) > 0:
                await asyncio.sleep(early)
            if not await self._ask(due, tally, most):
                await asyncio.sleep(REST_SECONDS)

    async def _ask(self, due: float, tally: Tally, most: int) -> bool:
        try:
            async with asyncio.timeout(self._plan.timeout):
                tally.answered(await self._target.ask(due, most))
        except AntiphonError as error:
            tally.fail(self._target.kind(error), self._target.told(error))
            return False
        except TimeoutError:
            tally.fail("too slow", f"{self._target.url} took longer than {self._plan.timeout:g} s for an answer.")
            return False
        return True


REDRAW_SECONDS = 0.2
NOW_SECONDS = 2.0  # over which «now» is averaged


class Line:
    """`watch` follows one measurement after the other; `clear` leaves an empty line."""

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse
        self._drawn = sys.stderr.isatty()
        self._timer: asyncio.TimerHandle | None = None
        self._title = ""
        self._whole: int | None = None
        self._tally = Tally()
        self._before: deque[tuple[float, int]] = deque()

    def watch(self, title: str, whole: int | None, tally: Tally) -> None:
        self._title, self._whole, self._tally = title, whole, tally
        self._before.clear()
        if self._drawn and self._timer is None:
            self._draw()

    def clear(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def _draw(self) -> None:
        text = told(self._title, self._tally, self._whole, self._rate(monotonic()))
        columns = shutil.get_terminal_size().columns
        sys.stderr.write(f"\r{text[: columns - 1]}\x1b[K")
        sys.stderr.flush()
        self._timer = asyncio.get_running_loop().call_later(REDRAW_SECONDS, self._draw)

    def _rate(self, now: float) -> float:
        """Pieces a second, lately."""
        self._before.append((now, self._pulse.pieces))
        while now - self._before[0][0] > NOW_SECONDS:
            self._before.popleft()
        since, pieces = self._before[0]
        return (self._pulse.pieces - pieces) / (now - since) if now > since else 0.0


def told(title: str, tally: Tally, whole: int | None, rate: float) -> str:
    done = f"{tally.requests}/{whole} done" if whole is not None else f"{tally.requests} done"
    failed = f" · {tally.failed} failed" if tally.failed else ""
    return f"{title} · {done} · {rate:,.0f} tokens/s now{failed}"


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
