"""A request that could run now: everything about it is settled, and nobody has taken a place for it."""

from msgspec import Struct
from msgspec.structs import replace

from antiphon.engines.base import Capabilities
from antiphon.protocol.decoding.codec import Decoded
from antiphon.service.model_io.models import Served
from antiphon.service.prompting.prepare import Prepared


class Settled(Struct, frozen=True, kw_only=True):
    tenant: str
    decoded: Decoded  # references resolved
    served: Served
    able: Capabilities
    prepared: Prepared
    ignored: list[str]


def repeated(settled: Settled, times: int) -> list[Settled]:
    """So many calls of the same; with a seed, each has its own."""
    prepared = settled.prepared
    sampling = prepared.work.sampling
    if sampling.seed is None:
        return [settled] * times
    seeds = [(sampling.seed + number) % 2**32 for number in range(times)]
    works = [replace(prepared.work, sampling=replace(sampling, seed=seed)) for seed in seeds]
    return [replace(settled, prepared=replace(prepared, work=work)) for work in works]
