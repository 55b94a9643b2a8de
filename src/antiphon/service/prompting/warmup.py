"""Warm-up requests: the engine reads a prompt into its prefix cache, so that a continuation starts sooner.

One token is requested, since no engine accepts zero, and discarded.
"""

from collections.abc import Sequence
from itertools import chain

from msgspec.structs import replace

from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.protocol.types.items import InputItem, InputText, Message
from antiphon.protocol.types.request import CreateResponse
from antiphon.service.prompting.prepare import PreparedPrompt

_PLACEHOLDER_MESSAGE = Message(role="user", content=[InputText(text="Hello.")])


def is_warmup(request: CreateResponse) -> bool:
    options = request.prompt_cache_options
    return not request.generate or (options is not None and options.get("prewarm") is True)


def ensure_user_message(decoded: DecodedRequest, earlier: Sequence[InputItem]) -> DecodedRequest:
    """Append a user message if there is none: many chat templates reject a conversation without one."""
    input_items = decoded.request.input
    if any(isinstance(item, Message) and item.role == "user" for item in chain(earlier, input_items)):
        return decoded
    return replace(decoded, request=replace(decoded.request, input=[*input_items, _PLACEHOLDER_MESSAGE]))


def to_warmup(prepared: PreparedPrompt) -> PreparedPrompt:
    """Reduce the call to a warm-up: the same prompt on the same engine, without constraints or retries."""
    sampling = replace(prepared.generation.sampling, max_tokens=1, logprobs=None, best_of=None)
    generation = replace(prepared.generation, sampling=sampling, constraint=None)
    return replace(prepared, generation=generation, retry_policy=None, is_warmup=True)
