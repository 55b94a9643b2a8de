"""Twenty times as many requests as the server can answer, and then as many as usual: how much is still done, how long
those wait that are let in, how much memory it takes, and how soon it is over."""

import math

from msgspec import Struct
from msgspec.structs import replace

from bench.harness.servers import Server
from drills.harness.findings import Figure, Findings, percentile
from drills.load.capacity_server import came, good, p99, serving, watched, wrong
from drills.load.load_generator import Asks, Got

GOODPUT, LATER, BACK, CAP_MIB = 0.9, 2.0, 5.0, 256
_SLOTS, _DELAY = 8, 0.8  # little, so that it is the engine that is asked too much, and not the machine
_CAPACITY = _SLOTS / _DELAY
_NORMAL, _OVER = 0.5, 20.0
_CALM = 1.5  # times what it took before: then it is as it was


class Times(Struct, frozen=True):
    """Seconds of each part."""

    normal: float
    overload: float


FULL, QUICK = Times(20.0, 300.0), Times(8.0, 15.0)


async def overload(times: Times, findings: Findings) -> None:
    settings = f"queue = {_SLOTS // 2}\nshed_memory = {CAP_MIB * 1024 * 1024}"
    with serving(_SLOTS, _DELAY, settings) as server:
        usual = Asks(port=server.port, rate=_CAPACITY * _NORMAL, seconds=times.normal)
        await _come(replace(usual, seconds=min(2.0, times.normal)), findings)
        before = await _come(usual, findings)
        peak = await _come(replace(usual, rate=_CAPACITY * 1.2), findings)
        during = await _overloaded(server, replace(usual, rate=_CAPACITY * _OVER, seconds=times.overload), findings)
        after = await _calmed(usual, during, p99(before), findings)
    share = good(during, times.overload) / good(peak, times.normal)
    offered = len(during) / times.overload / _CAPACITY
    findings.figure(Figure("offered × capacity", offered))
    findings.figure(Figure("goodput of peak", share, least=GOODPUT))
    findings.figure(Figure("normal p99 ms", p99(before) * 1000))
    findings.figure(Figure("accepted p99 × normal", p99(during) / p99(before), most=LATER))
    findings.figure(Figure("refused p50 ms", _refused(during)))
    findings.figure(Figure("back to normal s", _back(during, after, p99(before)), most=BACK))


async def _overloaded(server: Server, asks: Asks, findings: Findings) -> list[Got]:
    async with watched(server) as memory:
        got = await _come(asks, findings)
    findings.figure(Figure("memory MiB", max(memory), most=CAP_MIB))
    return got


async def _calmed(usual: Asks, during: list[Got], took: float, findings: Findings) -> list[Got]:
    """As many as usual, until all is as it was: a busy machine may hold up the last of those who come, too."""
    after = await _come(usual, findings)
    while _back(during, after, took) == math.inf and after[-1].at - _over(during) < BACK:
        after += await _come(usual, findings)
    return after


async def _come(asks: Asks, findings: Findings) -> list[Got]:
    got = await came(asks)
    findings.tried(len(got))
    findings.all_violated(wrong(got))
    return got


def _refused(got: list[Got]) -> float:
    return percentile([one.took * 1000 for one in got if one.status != 200], 0.5)


def _back(during: list[Got], after: list[Got], usual: float) -> float:
    """Seconds from the crowd's last answer to the first request from which on none was refused or took much longer."""
    over = _over(during)
    late = max((one.at for one in after if one.status != 200 or one.took > usual * _CALM), default=over)
    return min((one.at for one in after if one.at > late), default=math.inf) - over


def _over(during: list[Got]) -> float:
    """When the last of them was answered."""
    return max(one.at + one.took for one in during)
