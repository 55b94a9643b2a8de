"""Chat completions as engines send them: only what is read, every bit of it optional, since no two send the same.

Fields stand in the order in which they come most often, and there are none in vain: each is compared on the token path.

Completions of raw prompts as engines send them: only what is read, every bit of it optional.
"""

from typing import Any

from msgspec import Struct, field
from msgspec.json import Decoder

from antiphon.core.prompt import Counts, Json
from antiphon.engines.base import MOST_TOKENS, believed


class Function(Struct, gc=False):
    name: str | None = None
    arguments: str | Json | None = None  # some send what should be a string of JSON as JSON


class ToolCall(Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: Function | None = None


class Delta(Struct, gc=False):
    """A piece of a message, or all of it."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: Function | None = None


class Candidate(Struct, gc=False):
    token: str
    logprob: float | None = None
    bytes: list[int] | None = None


class TokenLogprob(Candidate, gc=False):
    top_logprobs: list[Candidate] | None = None


class Logprobs(Struct, gc=False):
    content: list[TokenLogprob] | None = None


class Choice(Struct, gc=False):
    index: int | None = None
    delta: Delta | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    message: Delta | None = None


class FullChoice(Choice, gc=False):
    token_ids: list[int] | None = None
    matched_stop: int | str | list[int] | None = None  # SGLang's name for stop_reason


class InputDetails(Struct, gc=False):
    cached_tokens: int | None = None


class OutputDetails(Struct, gc=False):
    reasoning_tokens: int | None = None


class Usage(Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: InputDetails | None = None
    completion_tokens_details: OutputDetails | None = None
    reasoning_tokens: int | None = None  # SGLang's place for it


class Completion(Struct, gc=False):
    """A chunk of a stream, or a whole answer: what differs is `delta` and `message`."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None
    system_fingerprint: str | None = None
    service_tier: str | None = None


class FullCompletion(Struct, gc=False):
    """The same with all that an engine says only if it is asked for, or seldom."""

    choices: list[FullChoice] | None = None
    usage: Usage | None = None
    error: Any = None
    system_fingerprint: str | None = None
    service_tier: str | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: Any = None
    kv_transfer_params: Json | None = None


class ModelCard(Struct):
    id: str
    created: int | None = None
    max_model_len: int | None = None
    meta: Json | None = None


class ModelCards(Struct):
    data: list[ModelCard] | None = None


class Version(Struct):
    version: str | None = None


class Counted(Struct):
    """vLLM's word for it, and llama.cpp's."""

    count: int | None = None
    input_tokens: int | None = None


class Tokenized(Struct):
    tokens: list[int]


class Detokenized(Struct):
    """vLLM's word for it, SGLang's and llama.cpp's."""

    prompt: str | None = None
    text: str | None = None
    content: str | None = None


class Vector(Struct):
    embedding: list[float]
    index: int | None = None


class Vectors(Struct):
    data: list[Vector]
    usage: Usage | None = None


COMPLETION = Decoder(Completion)
FULL_COMPLETION = Decoder(FullCompletion)
MODELS = Decoder(ModelCards)
VERSION = Decoder(Version)
COUNTED = Decoder(Counted)
TOKENIZED = Decoder(Tokenized)
DETOKENIZED = Decoder(Detokenized)
VECTORS = Decoder(Vectors)


def counts(usage: Usage | None) -> Counts:
    if usage is None:
        return Counts()
    inputs, outputs = usage.prompt_tokens_details, usage.completion_tokens_details
    cached = None if inputs is None else inputs.cached_tokens
    thought = usage.reasoning_tokens if outputs is None else outputs.reasoning_tokens
    read, said = usage.prompt_tokens or 0, usage.completion_tokens or 0
    if not (0 <= read <= MOST_TOKENS and 0 <= said <= MOST_TOKENS):
        read, said = believed(read), believed(said)
    return Counts(
        input_tokens=read,
        cached_tokens=min(read, believed(cached)) if cached else 0,
        output_tokens=said,
        reasoning_tokens=min(said, believed(thought)) if thought else 0,
    )


class TextLogprobs(Struct, gc=False):
    """Lists beside each other, of as many as there are tokens; Ollama tells them as for chats."""

    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float | None] | None] | None = None
    content: list[TokenLogprob] | None = None


class TextChoice(Struct, gc=False):
    index: int | None = None
    text: str | None = None
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    prompt_logprobs: Any = None


class TextCompletion(Struct, gc=False):
    """A chunk of a stream, or a whole answer."""

    choices: list[TextChoice] | None = None
    usage: Usage | None = None
    error: Any = None
    system_fingerprint: str | None = None
    service_tier: str | None = None
    kv_transfer_params: Json | None = None


# SGLang's /generate. A log probability is a list: its value, the token's id, its text.
Told = tuple[float | None, int, str | None]


class Ending(Struct):
    type: str = ""
    matched: int | str | list[int] | None = None
    message: str | None = None
    status_code: int | None = None


class MetaInfo(Struct):
    finish_reason: Ending | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    output_token_logprobs: list[Told] | None = None
    output_top_logprobs: list[list[Told] | None] | None = None


class Generated(Struct):
    text: str | None = None
    output_ids: list[int] | None = None
    meta_info: MetaInfo = field(default_factory=MetaInfo)
    prompt_token_ids: list[int] | None = None
    error: Any = None


TEXT_COMPLETION = Decoder(TextCompletion)
GENERATED = Decoder(Generated)
