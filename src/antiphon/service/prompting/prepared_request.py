"""A request that is checked and rendered, but holds no model slot yet."""

from msgspec import Struct
from msgspec.structs import replace

from antiphon.engines.base import Capabilities
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.service.model_io.served_model import ServedModel
from antiphon.service.prompting.prepare import PreparedPrompt


class PreparedRequest(Struct, frozen=True, kw_only=True):
    tenant: str
    decoded: DecodedRequest  # references resolved
    served: ServedModel
    capabilities: Capabilities
    prepared: PreparedPrompt
    ignored: list[str]


def repeat_request(prepared_request: PreparedRequest, times: int) -> list[PreparedRequest]:
    """Return the request `times` times; with a seed, each copy gets its own."""
    prepared = prepared_request.prepared
    sampling = prepared.generation.sampling
    if sampling.seed is None:
        return [prepared_request] * times
    seeds = [(sampling.seed + number) % 2**32 for number in range(times)]
    generations = [replace(prepared.generation, sampling=replace(sampling, seed=seed)) for seed in seeds]
    return [replace(prepared_request, prepared=replace(prepared, generation=generation)) for generation in generations]
