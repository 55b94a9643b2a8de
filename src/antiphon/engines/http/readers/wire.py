"""Wire types of engine responses: only the fields that are read, all of them optional, since no two engines send the
same.

Fields are ordered by how often they are sent, and there are no unused ones: each is compared on the token path.
"""

from typing import Any

from msgspec import Struct
from msgspec.json import Decoder

from antiphon.core.prompt import Json, TokenCounts
from antiphon.engines.base import clamp_token_count


class Function(Struct, gc=False):
    name: str | None = None
    arguments: str | Json | None = None  # some engines send an object instead of a JSON string


class WireToolCall(Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: Function | None = None


class Delta(Struct, gc=False):
    """Part of a message, or all of it."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[WireToolCall] | None = None
    function_call: Function | None = None


class Candidate(Struct, gc=False):
    token: str
    logprob: float | None = None
    bytes: list[int] | None = None


class TokenLogprob(Candidate, gc=False):
    top_logprobs: list[Candidate] | None = None


class Logprobs(Struct, gc=False):
    """Log probabilities: `content` of a chat, or parallel lists with one entry per token of a raw completion."""

    content: list[TokenLogprob] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float | None] | None] | None = None


class Choice(Struct, gc=False):
    """Output of a chat, as `delta` or unstreamed as `message`, or of a raw completion, as `text`."""

    index: int | None = None
    delta: Delta | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    text: str | None = None
    stop_reason: int | str | None = None
    message: Delta | None = None
    matched_stop: int | str | list[int] | None = None  # SGLang's name for stop_reason
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: Any = None


class InputDetails(Struct, gc=False):
    cached_tokens: int | None = None


class OutputDetails(Struct, gc=False):
    reasoning_tokens: int | None = None


class WireUsage(Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: InputDetails | None = None
    completion_tokens_details: OutputDetails | None = None
    reasoning_tokens: int | None = None  # SGLang sends it here


class WireCompletion(Struct, gc=False):
    """A chunk of a stream, or an unstreamed response."""

    choices: list[Choice] | None = None
    usage: WireUsage | None = None
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


class VersionReply(Struct):
    version: str | None = None


class TokenCountReply(Struct):
    """Token count: `count` by vLLM and SGLang, `input_tokens` by llama.cpp."""

    count: int | None = None
    input_tokens: int | None = None


class TokenizeReply(Struct):
    tokens: list[int]


class DetokenizeReply(Struct):
    """Text of tokens: `prompt` by vLLM, `text` by SGLang, `content` by llama.cpp."""

    prompt: str | None = None
    text: str | None = None
    content: str | None = None


class EmbeddingVector(Struct):
    embedding: list[float]
    index: int | None = None


class EmbeddingsReply(Struct):
    data: list[EmbeddingVector]
    usage: WireUsage | None = None


COMPLETION = Decoder(WireCompletion)
MODELS = Decoder(ModelCards)
VERSION_REPLY = Decoder(VersionReply)
TOKEN_COUNT_REPLY = Decoder(TokenCountReply)
TOKENIZE_REPLY = Decoder(TokenizeReply)
DETOKENIZE_REPLY = Decoder(DetokenizeReply)
EMBEDDINGS_REPLY = Decoder(EmbeddingsReply)


def counts_from_usage(usage: WireUsage | None) -> TokenCounts:
    if usage is None:
        return TokenCounts()
    inputs, outputs = usage.prompt_tokens_details, usage.completion_tokens_details
    cached = None if inputs is None else inputs.cached_tokens
    reasoning = usage.reasoning_tokens if outputs is None else outputs.reasoning_tokens
    return make_token_counts(usage.prompt_tokens, cached, usage.completion_tokens, reasoning)


def make_token_counts(
    prompt: int | None, cached: int | None, completion: int | None, reasoning: int | None
) -> TokenCounts:
    """Return reported counts within bounds."""
    input_tokens, output_tokens = clamp_token_count(prompt), clamp_token_count(completion)
    return TokenCounts(
        input_tokens=input_tokens,
        cached_tokens=min(input_tokens, clamp_token_count(cached)),
        output_tokens=output_tokens,
        reasoning_tokens=min(output_tokens, clamp_token_count(reasoning)),
    )
