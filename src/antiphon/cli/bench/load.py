"""Runs a measurement: finds the models and APIs of the servers, then loads the servers level by level and in turns.

Taking turns makes other activity of the machine affect all servers alike. Each level keeps its number of concurrent
requests until its requests are sent. At a fixed rate, latency counts from the time at which a request was due, not from
when it could be sent: queueing caused by a slow server is part of its latency (no coordinated omission).
"""

import asyncio
import resource
from collections.abc import Iterator
from itertools import count
from time import perf_counter, process_time

import uvloop
from msgspec import Struct

from antiphon.cli.bench.figures import Figures, Measurement
from antiphon.cli.bench.plan import BenchPlan, LoadLevel
from antiphon.cli.bench.table import ProgressLine
from antiphon.cli.bench.target import APIS, CHAT, PROBE_TOKENS, RESPONSES, ApiRefused, BenchApi, BenchTarget
from antiphon.cli.client import RequestFailed
from antiphon.errors import AntiphonError

FAILURE_PAUSE_SECONDS = 0.1  # after a failure: limits the rate at which a failing server is retried


def run_benchmark(plan: BenchPlan, api: str, servers: list[tuple[str, str | None]]) -> tuple[list[Figures], bool]:
    """Run the benchmark over an API or `auto`. Returns the figures, and whether it was interrupted."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    # each connection needs a file descriptor, and there may be thousands
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    session = BenchSession(plan, api, servers)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(session.run())
    except KeyboardInterrupt:
        return session.figures(), True
    return session.figures(), False


class LoadRun(Struct, frozen=True):
    """One server at one level of load."""

    target: BenchTarget
    level: LoadLevel
    plan: BenchPlan
    measurement: Measurement

    async def warm_up(self) -> None:
        """Send short requests, so that connections are open and lazy initialisation is done."""
        due_times = (perf_counter() for _ in range(self.plan.count_warmups(self.level)))
        await self._run(due_times, Measurement(), min(PROBE_TOKENS, self.plan.max_tokens))

    async def measure(self, turn: int) -> None:
        started, cpu = perf_counter(), process_time()
        try:
            due_times = self.plan.make_due_times(self.level, turn, perf_counter)
            await self._run(due_times, self.measurement, self.plan.max_tokens)
        finally:
            self.measurement.seconds += perf_counter() - started
            self.measurement.cpu_seconds += process_time() - cpu

    def to_figures(self) -> Figures:
        target, level = self.target, self.level
        return self.measurement.to_figures(target.url, target.api.name, target.model, level.concurrency, level.rate)

    async def _run(self, due_times: Iterator[float], measurement: Measurement, max_tokens: int) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self.level.concurrency):
                group.create_task(self._send_requests(due_times, measurement, max_tokens))

    async def _send_requests(self, due_times: Iterator[float], measurement: Measurement, max_tokens: int) -> None:
        """Send one request after the other, in turn with all other connections."""
        for due in due_times:
            if (delay := due - perf_counter()) > 0:
                await asyncio.sleep(delay)
            try:
                async with asyncio.timeout(self.plan.timeout):
                    measurement.record_answer(await self.target.request_answer(due, max_tokens))
                continue
            except AntiphonError as error:
                measurement.record_failure(self.target.classify_error(error), self.target.describe_error(error))
            except TimeoutError:
                example = f"{self.target.url} did not complete the answer within {self.plan.timeout:g} s."
                measurement.record_failure("too slow", example)
            await asyncio.sleep(FAILURE_PAUSE_SECONDS)


class BenchSession:
    """One run of the benchmark. `servers` are URLs with their keys; `api` is a name, or auto."""

    def __init__(self, plan: BenchPlan, api: str, servers: list[tuple[str, str | None]]) -> None:
        numbers = count()
        self._plan = plan
        self._api = api
        self._targets = [BenchTarget(url, key, plan, numbers) for url, key in servers]
        self._progress = ProgressLine(lambda: sum(target.events for target in self._targets))
        self._runs: list[LoadRun] = []

    async def run(self) -> None:
        """Run all levels. Raises RequestFailed if a server is unreachable or rejects requests.

        Measurements made before an interruption remain available.
        """
        try:
            for target in self._targets:
                self._progress.watch(f"connecting to {target.url}", None, Measurement())
                await target.choose_model()
            await self._choose_apis()
            for level in self._plan.levels:
                await self._measure(level)
        finally:
            self._progress.clear()
            for target in self._targets:
                target.close()

    def figures(self) -> list[Figures]:
        """Return the figures of all measurements with at least one request."""
        return [run.to_figures() for run in self._runs if run.measurement.requests]

    async def _choose_apis(self) -> None:
        """Choose one API for all servers, preferably the Responses API; without a common one, choose per server."""
        if self._api != "auto":
            for refusal in filter(None, await self._probe(APIS[self._api])):
                raise RequestFailed(str(refusal))
            return
        over_responses = await self._probe(RESPONSES)
        if not any(over_responses):
            return
        over_chat = await self._probe(CHAT)
        if not any(over_chat):
            return
        for target, first, second in zip(self._targets, over_responses, over_chat, strict=True):
            if first is not None and second is not None:
                raise RequestFailed(str(first if second.is_absent and not first.is_absent else second))
            target.api = RESPONSES if first is None else CHAT

    async def _probe(self, api: BenchApi) -> list[ApiRefused | None]:
        refusals: list[ApiRefused | None] = []
        for target in self._targets:
            try:
                await target.probe_api(api)
                refusals.append(None)
            except ApiRefused as refusal:
                refusals.append(refusal)
        return refusals

    async def _measure(self, level: LoadLevel) -> None:
        runs = [LoadRun(target, level, self._plan, Measurement()) for target in self._targets]
        self._runs += runs
        for turn in range(self._plan.rounds):
            for run in runs:
                self._progress.watch(f"{run.target.url} · {level}", self._plan.requests, run.measurement)
                await run.warm_up()
                await run.measure(turn)
