"""A tenant that asks for far more than there is, in long prompts; and one that asks now and then: what that notices."""

import asyncio

from msgspec import Struct
from msgspec.structs import replace

from drills.harness.findings import Figure, Findings
from drills.load.capacity_server import came, p99, serving, wrong
from drills.load.load_generator import Asks

RATIO = 1.5
_SLOTS, _DELAY = 8, 0.5
_LONG = 32_000  # characters
_QUIET = 2.0  # requests in a second
_LOUD = 160.0  # ten times as many as there are answers


class Times(Struct, frozen=True):
    seconds: float


FULL, QUICK = Times(120.0), Times(20.0)


async def noisy(times: Times, findings: Findings) -> None:
    with serving(_SLOTS, _DELAY, "queue = 64", "loud sk-loud-0123456789\nquiet sk-quiet-0123456789\n") as server:
        quiet = Asks(port=server.port, rate=_QUIET, seconds=times.seconds, key="sk-quiet-0123456789")
        loud = replace(quiet, rate=_LOUD, before="word " * (_LONG // 5), key="sk-loud-0123456789")
        await came(replace(quiet, seconds=min(2.0, times.seconds)))
        alone = await came(quiet)
        beside, noise = await asyncio.gather(came(quiet), came(loud))
    for got in (alone, beside, noise):
        findings.tried(len(got))
        findings.all_violated(wrong(got))
    findings.all_violated("the quiet tenant was refused" for one in beside if one.status != 200)
    findings.figure(Figure("quiet p99 ms alone", p99(alone) * 1000))
    findings.figure(Figure("quiet p99 × alone", p99(beside) / p99(alone), most=RATIO))
    findings.figure(Figure("loud refused %", 100 * sum(one.status != 200 for one in noise) / len(noise)))
