"""One tenant sends far more requests than the capacity, with long prompts; the drill measures the effect on another
tenant with few requests.
"""

import asyncio

from msgspec import Struct
from msgspec.structs import replace

from drills.harness.findings import Figure, Findings
from drills.load.capacity_server import find_violations, latency, run_load, run_server
from drills.load.load_generator import LoadSpec

# Latency of the quiet tenant relative to its latency alone. Its turn comes after at most one of the other tenant; the
# 99th percentile of few requests also shows other activity on the machine.
MAX_RATIOS = {0.5: 2.0, 0.99: 3.0}
_SLOTS, _DELAY = 8, 0.5
_PROMPT_CHARACTERS = 32_000
_QUIET_RATE = 2.0  # requests per second
_LOUD_RATE = 160.0  # requests per second: ten times the capacity


class Times(Struct, frozen=True):
    seconds: float


FULL, QUICK = Times(120.0), Times(20.0)


async def noisy(times: Times, findings: Findings) -> None:
    with run_server(_SLOTS, _DELAY, "queue = 64", "loud sk-loud-0123456789\nquiet sk-quiet-0123456789\n") as server:
        quiet = LoadSpec(port=server.port, rate=_QUIET_RATE, seconds=times.seconds, key="sk-quiet-0123456789")
        loud = replace(quiet, rate=_LOUD_RATE, before="word " * (_PROMPT_CHARACTERS // 5), key="sk-loud-0123456789")
        await run_load(replace(quiet, seconds=min(2.0, times.seconds)))
        alone = await run_load(quiet)
        disturbed, noise = await asyncio.gather(run_load(quiet), run_load(loud))
    for results in (alone, disturbed, noise):
        findings.add_trials(len(results))
        findings.add_violations(find_violations(results))
    findings.add_violations("a request of the quiet tenant was rejected" for one in disturbed if one.status != 200)
    findings.add_figure(Figure("quiet p99 ms alone", latency(alone, 0.99) * 1000))
    for share, max_ratio in MAX_RATIOS.items():
        ratio = latency(disturbed, share) / latency(alone, share)
        findings.add_figure(Figure(f"quiet p{share * 100:.0f} × alone", ratio, maximum=max_ratio))
    findings.add_figure(Figure("loud refused %", 100 * sum(one.status != 200 for one in noise) / len(noise)))
