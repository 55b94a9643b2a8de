"""POST /v1/completions: a stream of pieces that ends with `[DONE]`, or one JSON body, as `stream` says."""

from antiphon.core.dialects.completions.request import read_completion
from antiphon.limits import Limits
from antiphon.protocol.types.completions import Completion, CreateCompletion
from antiphon.service.completions import Completions
from antiphon.transport.dialogue import Dialogue
from antiphon.transport.http import Route

PATH = "/v1/completions"


def completions_route(service: Completions, limits: Limits, ping_interval: float, model: str) -> Route:
    """`model`: a name for the example."""
    return Dialogue(read_completion, service.create, limits, ping_interval).route(
        path=PATH,
        summary="Create a completion",
        description="The prompt goes to the model as it is, without a chat template. One JSON body, or with "
        "`stream: true` server-sent events that end with `[DONE]`.",
        takes=CreateCompletion,
        example={"model": model, "prompt": "Once upon a time", "max_tokens": 16},
        gives=Completion,
        streams=Completion,
    )
