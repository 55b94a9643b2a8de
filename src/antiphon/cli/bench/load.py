"""Runs a measurement: finds the models and APIs of the servers, then loads the servers level by level and in turns.

Taking turns makes other activity of the machine affect all servers alike. Each level keeps its number of concurrent
requests until its quota is used up. At a fixed rate, latency counts from the time at which a request was due, not from
when it could be sent: queueing caused by a slow server is part of its latency (no coordinated omission).

On a terminal, one line shows the progress and is redrawn in place; otherwise nothing is printed.
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

from antiphon.cli.bench.apis import APIS, CHAT, RESPONSES
from antiphon.cli.bench.figures import Figures, Measurement
from antiphon.cli.bench.plan import BenchPlan, LoadLevel, RequestQuota
from antiphon.cli.bench.target import PROBE_TOKENS, BenchTarget, EventCounter
from antiphon.cli.client import RequestFailed
from antiphon.errors import AntiphonError

FAILURE_PAUSE_SECONDS = 0.1  # after a failure: limits the rate at which a failing server is retried


class LoadRound:
    """One round of load on one server at one level, recorded in a measurement."""

    def __init__(self, target: BenchTarget, level: LoadLevel, plan: BenchPlan, measurement: Measurement) -> None:
        self._target = target
        self._level = level
        self._plan = plan
        self._measurement = measurement

    async def warm_up(self) -> None:
        """Send short requests, so that connections are open and lazy initialisation is done."""
        quota = RequestQuota(0.0, None, self._plan.count_warmups(self._level), None)
        await self._run(quota, Measurement(), min(PROBE_TOKENS, self._plan.max_tokens))

    async def measure(self, turn: int) -> None:
        started, cpu = perf_counter(), process_time()
        try:
            await self._run(self._plan.make_quota(self._level, turn, started), self._measurement, self._plan.max_tokens)
        finally:
            self._measurement.seconds += perf_counter() - started
            self._measurement.cpu_seconds += process_time() - cpu

    async def _run(self, quota: RequestQuota, measurement: Measurement, max_tokens: int) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._level.concurrency, quota.requests)):
                group.create_task(self._send_requests(quota, measurement, max_tokens))

    async def _send_requests(self, quota: RequestQuota, measurement: Measurement, max_tokens: int) -> None:
        """Send one request after the other until the quota is used up."""
        while (due := quota.next(perf_counter())) is not None:
            if (delay := due - perf_counter()) > 0:
                await asyncio.sleep(delay)
            if not await self._send_request(due, measurement, max_tokens):
                await asyncio.sleep(FAILURE_PAUSE_SECONDS)

    async def _send_request(self, due: float, measurement: Measurement, max_tokens: int) -> bool:
        """Send one request and record the result. Returns False if it failed."""
        try:
            async with asyncio.timeout(self._plan.timeout):
                measurement.record_answer(await self._target.request_answer(due, max_tokens))
        except AntiphonError as error:
            measurement.record_failure(self._target.classify_error(error), self._target.describe_error(error))
            return False
        except TimeoutError:
            measurement.record_failure(
                "too slow", f"{self._target.url} did not complete the answer within {self._plan.timeout:g} s."
            )
            return False
        return True


REDRAW_SECONDS = 0.2
RATE_WINDOW_SECONDS = 2.0  # window of the current token rate


class ProgressLine:
    """The progress line. `watch` switches to another measurement; `clear` erases the line."""

    def __init__(self, counter: EventCounter) -> None:
        self._counter = counter
        self._interactive = sys.stderr.isatty()
        self._timer: asyncio.TimerHandle | None = None
        self._title = ""
        self._total: int | None = None
        self._measurement = Measurement()
        self._samples: deque[tuple[float, int]] = deque()

    def watch(self, title: str, total: int | None, measurement: Measurement) -> None:
        self._title, self._total, self._measurement = title, total, measurement
        self._samples.clear()
        if self._interactive and self._timer is None:
            self._draw()

    def clear(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def _draw(self) -> None:
        text = render_progress(self._title, self._measurement, self._total, self._rate(monotonic()))
        columns = shutil.get_terminal_size().columns
        sys.stderr.write(f"\r{text[: columns - 1]}\x1b[K")
        sys.stderr.flush()
        self._timer = asyncio.get_running_loop().call_later(REDRAW_SECONDS, self._draw)

    def _rate(self, now: float) -> float:
        """Content events per second in the window."""
        self._samples.append((now, self._counter.events))
        while now - self._samples[0][0] > RATE_WINDOW_SECONDS:
            self._samples.popleft()
        since, events = self._samples[0]
        return (self._counter.events - events) / (now - since) if now > since else 0.0


def render_progress(title: str, measurement: Measurement, total: int | None, rate: float) -> str:
    done = f"{measurement.requests}/{total} done" if total is not None else f"{measurement.requests} done"
    failed = f" · {measurement.failed} failed" if measurement.failed else ""
    return f"{title} · {done} · {rate:,.0f} tokens/s now{failed}"


def run_benchmark(plan: BenchPlan, api: str, servers: list[tuple[str, str | None]]) -> tuple[list[Figures], bool]:
    """Run the benchmark. Returns the figures, and whether it was interrupted."""
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


class TargetMeasurement(Struct, frozen=True):
    target: BenchTarget
    level: LoadLevel
    measurement: Measurement


class BenchSession:
    """One run of the benchmark. `servers` are URLs with their keys; `api` is a name, or auto."""

    def __init__(self, plan: BenchPlan, api: str, servers: list[tuple[str, str | None]]) -> None:
        counter, numbers = EventCounter(), count()
        self._plan = plan
        self._api = api
        self._targets = [BenchTarget(url, key, plan, counter, numbers) for url, key in servers]
        self._progress = ProgressLine(counter)
        self._measurements: list[TargetMeasurement] = []

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
        return [
            measured.measurement.to_figures(
                measured.target.url,
                measured.target.api.name,
                measured.target.model,
                measured.level.concurrency,
                measured.level.rate,
            )
            for measured in self._measurements
            if measured.measurement.requests
        ]

    async def _choose_apis(self) -> None:
        """Choose one API for all servers, preferably the Responses API; without a common one, choose per server."""
        if self._api != "auto":
            for target in self._targets:
                if (refusal := await target.probe_api(APIS[self._api])) is not None:
                    raise RequestFailed(refusal.message)
            return
        refusals = [await target.probe_api(RESPONSES) for target in self._targets]
        if not any(refusals):
            return
        over_chat = [await target.probe_api(CHAT) for target in self._targets]
        if not any(over_chat):
            return
        for target, first, second in zip(self._targets, refusals, over_chat, strict=True):
            if first is not None and second is not None:
                raise RequestFailed((first if second.absent and not first.absent else second).message)
            target.api = RESPONSES if first is None else CHAT

    async def _measure(self, level: LoadLevel) -> None:
        measured = [TargetMeasurement(target, level, Measurement()) for target in self._targets]
        self._measurements += measured
        for turn in range(self._plan.rounds):
            for entry in measured:
                load = LoadRound(entry.target, level, self._plan, entry.measurement)
                self._progress.watch(f"{entry.target.url} · {level}", self._plan.requests, entry.measurement)
                await load.warm_up()
                await load.measure(turn)
