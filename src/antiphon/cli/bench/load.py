"""Runs a measurement: finds the models and APIs of the servers, then loads the servers level by level and in turns.

Taking turns makes other activity of the machine affect all servers alike. Each level keeps its number of concurrent
requests until its requests are sent. At a fixed rate, latency counts from the time at which a request was due, not from
when it could be sent: queueing caused by a slow server is part of its latency (no coordinated omission).
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from itertools import count
from time import perf_counter, process_time
from typing import Any

from antiphon.cli.bench.figures import Figures, Measurement
from antiphon.cli.bench.plan import BenchPlan, LoadLevel
from antiphon.cli.bench.table import render_progress, show_progress
from antiphon.cli.bench.target import APIS, CHAT, PROBE_TOKENS, RESPONSES, ApiRefused, BenchApi, BenchTarget
from antiphon.errors import AntiphonError
from antiphon.operating_system import new_event_loop, raise_file_limit

FAILURE_PAUSE_SECONDS = 0.1  # after a failure: limits the rate at which a failing server is retried


def run_benchmark(plan: BenchPlan, api: str, servers: list[tuple[str, str | None]]) -> tuple[list[Figures], bool]:
    """Run the benchmark over an API or `auto`. Returns the figures, and whether it was interrupted."""
    raise_file_limit()  # each connection needs a file descriptor, and there may be thousands
    session = BenchSession(plan, api, servers)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(session.run())
    except KeyboardInterrupt:
        return session.figures(), True
    return session.figures(), False


class BenchSession:
    """One run of the benchmark. `servers` are URLs with their keys; `api` is a name, or auto."""

    def __init__(self, plan: BenchPlan, api: str, servers: list[tuple[str, str | None]]) -> None:
        numbers = count()
        self._plan = plan
        self._api = api
        self._targets = [BenchTarget(url, key, plan, numbers) for url, key in servers]
        self._title, self._watched = "", Measurement()  # what the progress line shows
        self._results: list[tuple[BenchTarget, LoadLevel, Measurement]] = []

    async def run(self) -> None:
        """Run all levels; an interruption keeps the measurements. Raises RequestFailed if a server rejects requests."""
        progress = asyncio.create_task(self._show_progress())
        try:
            for target in self._targets:
                self._title = f"connecting to {target.url}"
                await target.choose_model()
            await self._choose_apis()
            for level in self._plan.levels:
                await self._measure(level)
        finally:
            progress.cancel()
            await asyncio.gather(progress, return_exceptions=True)
            for target in self._targets:
                target.http.close()

    def figures(self) -> list[Figures]:
        """Return the figures of all measurements with at least one request."""
        return [
            measurement.to_figures(target.url, target.api.name, target.model, level.concurrency, level.rate)
            for target, level, measurement in self._results
            if measurement.requests
        ]

    async def _show_progress(self) -> None:
        """Show the progress on a terminal; elsewhere nothing is printed."""
        if sys.stderr.isatty():
            await show_progress(
                lambda rate: render_progress(self._title, self._watched, self._plan.requests, rate),
                lambda: sum(target.events for target in self._targets),
            )

    async def _choose_apis(self) -> None:
        """Choose one API for all servers, preferably the Responses API; without a common one, choose per server."""
        if self._api != "auto":
            for target in self._targets:
                await target.probe_api(APIS[self._api])
            return
        over_responses = await self._probe(RESPONSES)
        if not any(over_responses):
            return
        over_chat = await self._probe(CHAT)
        if not any(over_chat):
            return
        for target, first, second in zip(self._targets, over_responses, over_chat, strict=True):
            if first is not None and second is not None:
                raise first if second.is_absent and not first.is_absent else second
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
        """Measure the servers in turns. Short requests before each turn open connections and end lazy setup."""
        plan, results = self._plan, [(target, level, Measurement()) for target in self._targets]
        self._results += results
        for turn in range(plan.rounds):
            for target, _, measurement in results:
                self._title, self._watched = f"{target.url} · {level}", measurement
                warmups = (perf_counter() for _ in range(plan.count_warmups(level)))
                tokens = min(PROBE_TOKENS, plan.max_tokens)
                send = partial(self._send_requests, target, warmups, Measurement(), tokens)
                await _run_copies(level.concurrency, send)
                started, cpu = perf_counter(), process_time()
                try:
                    due_times = plan.make_due_times(level, turn, perf_counter)
                    send = partial(self._send_requests, target, due_times, measurement, plan.max_tokens)
                    await _run_copies(level.concurrency, send)
                finally:
                    measurement.seconds += perf_counter() - started
                    measurement.cpu_seconds += process_time() - cpu

    async def _send_requests(
        self, target: BenchTarget, due_times: Iterator[float], measurement: Measurement, max_tokens: int
    ) -> None:
        """Send one request after the other, in turn with all other connections."""
        for due in due_times:
            if (delay := due - perf_counter()) > 0:
                await asyncio.sleep(delay)
            try:
                async with asyncio.timeout(self._plan.timeout):
                    measurement.record_answer(await target.request_answer(due, max_tokens))
                continue
            except AntiphonError as error:
                measurement.record_failure(target.classify_error(error), target.describe_error(error))
            except TimeoutError:
                example = f"{target.url} did not complete the answer within {self._plan.timeout:g} s."
                measurement.record_failure("too slow", example)
            await asyncio.sleep(FAILURE_PAUSE_SECONDS)


async def _run_copies(count: int, start: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(start())
