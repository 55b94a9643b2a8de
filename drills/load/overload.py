"""Twenty times more requests than the capacity, followed by normal load.

Measures the remaining goodput, the latency of accepted requests, the memory, and the time until the server is back to
normal.
"""

import math

from msgspec import Struct
from msgspec.structs import replace

from bench.harness.servers import Server
from drills.harness.findings import Figure, Findings, percentile
from drills.load.capacity_server import find_violations, goodput, p99, run_load, run_server, sample_memory
from drills.load.load_generator import LoadResult, LoadSpec

MIN_GOODPUT, MAX_LATENCY_RATIO, MAX_RECOVERY_SECONDS, MAX_MEMORY_MIB = 0.9, 2.0, 5.0, 256
_SLOTS, _DELAY = 8, 0.8  # small, so that the engine is the bottleneck and not the machine
_CAPACITY = _SLOTS / _DELAY
_NORMAL_LOAD, _OVERLOAD = 0.5, 20.0
_RECOVERED_RATIO = 1.5  # times the normal latency, up to which the server counts as recovered


class Times(Struct, frozen=True):
    """Seconds of each phase."""

    normal: float
    overload: float


FULL, QUICK = Times(20.0, 300.0), Times(8.0, 15.0)


async def overload(times: Times, findings: Findings) -> None:
    settings = f"queue = {_SLOTS // 2}\nshed_memory = {MAX_MEMORY_MIB * 1024 * 1024}"
    with run_server(_SLOTS, _DELAY, settings) as server:
        normal = LoadSpec(port=server.port, rate=_CAPACITY * _NORMAL_LOAD, seconds=times.normal)
        await _run_load(replace(normal, seconds=min(2.0, times.normal)), findings)
        before = await _run_load(normal, findings)
        peak = await _run_load(replace(normal, rate=_CAPACITY * 1.2), findings)
        during = await _run_overload(
            server, replace(normal, rate=_CAPACITY * _OVERLOAD, seconds=times.overload), findings
        )
        after = await _run_until_recovered(normal, during, p99(before), findings)
    share = goodput(during, times.overload) / goodput(peak, times.normal)
    offered = len(during) / times.overload / _CAPACITY
    findings.add_figure(Figure("offered × capacity", offered))
    findings.add_figure(Figure("goodput of peak", share, minimum=MIN_GOODPUT))
    findings.add_figure(Figure("normal p99 ms", p99(before) * 1000))
    findings.add_figure(Figure("accepted p99 × normal", p99(during) / p99(before), maximum=MAX_LATENCY_RATIO))
    findings.add_figure(Figure("refused p50 ms", _median_rejection_ms(during)))
    findings.add_figure(
        Figure("back to normal s", _recovery_seconds(during, after, p99(before)), maximum=MAX_RECOVERY_SECONDS)
    )


async def _run_overload(server: Server, spec: LoadSpec, findings: Findings) -> list[LoadResult]:
    async with sample_memory(server) as memory:
        results = await _run_load(spec, findings)
    findings.add_figure(Figure("memory MiB", max(memory), maximum=MAX_MEMORY_MIB))
    return results


async def _run_until_recovered(
    normal: LoadSpec, during: list[LoadResult], normal_p99: float, findings: Findings
) -> list[LoadResult]:
    """Send normal load until the server has recovered: a busy machine may delay the last requests, too."""
    after = await _run_load(normal, findings)
    while (
        _recovery_seconds(during, after, normal_p99) == math.inf
        and after[-1].at - _last_answer_at(during) < MAX_RECOVERY_SECONDS
    ):
        after += await _run_load(normal, findings)
    return after


async def _run_load(spec: LoadSpec, findings: Findings) -> list[LoadResult]:
    results = await run_load(spec)
    findings.add_trials(len(results))
    findings.add_violations(find_violations(results))
    return results


def _median_rejection_ms(results: list[LoadResult]) -> float:
    return percentile([one.took * 1000 for one in results if one.status != 200], 0.5)


def _recovery_seconds(during: list[LoadResult], after: list[LoadResult], normal_p99: float) -> float:
    """Return the seconds from the last answer of the overload to the first request after which none is rejected or much
    slower than normal.
    """
    ended_at = _last_answer_at(during)
    last_disturbed = max(
        (one.at for one in after if one.status != 200 or one.took > normal_p99 * _RECOVERED_RATIO), default=ended_at
    )
    return min((one.at for one in after if one.at > last_disturbed), default=math.inf) - ended_at


def _last_answer_at(during: list[LoadResult]) -> float:
    """Return the time of the last answer."""
    return max(one.at + one.took for one in during)
