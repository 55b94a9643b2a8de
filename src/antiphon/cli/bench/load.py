"""Load on one server: as many requests at once as a level has, until its quota is used up.

At a rate, an answer's time counts from the moment at which its request was due, not from when there was room for it: a
server that is too slow is not spared the requests that it keeps waiting.
"""

import asyncio
from time import perf_counter, process_time

from antiphon.cli.bench.figures import Tally
from antiphon.cli.bench.plan import Level, Plan, Quota
from antiphon.cli.bench.target import PROBE_TOKENS, Target
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
