"""The body of POST /completions and its reply, and the fields that it shares with chat completions.

The reply is one text_completion, or a stream of them. The prompt is passed on unchanged, control tokens included;
nothing is added around it. The shared fields (sampling, constraints and streaming) are OpenAI's, and extensions of
vLLM, SGLang and OpenVINO Model Server. None means not sent.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.protocol.types.chat.response import CompletionUsage, Tier
from antiphon.protocol.types.request import SharedFields
from antiphon.protocol.types.tools import Json

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class ChatStreamOptions(Struct, kw_only=True):
    include_usage: bool = False
    include_obfuscation: bool = False
    continuous_usage_stats: bool = False


class StructuredOutputs(Struct, kw_only=True):
    """Output constraints in the format of vLLM: exactly one of the fields."""

    json: str | Json | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | Json | None = None


class SchemaFormat(Struct, kw_only=True):
    name: str
    schema: Json
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Struct, kw_only=True):
    """The output format; `type` determines which of the other fields apply."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: SchemaFormat | None = None
    structures: list[Json] | UnsetType = UNSET
    triggers: list[str] | UnsetType = UNSET
    format: Json | UnsetType = UNSET


class CompletionFields(SharedFields, kw_only=True):
    stream_options: ChatStreamOptions | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None

    # Extensions that engines support in addition to OpenAI's fields.
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    stop_token_ids: list[TokenId] | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    return_token_ids: bool | None = None
    kv_transfer_params: Json | None = None

    # Output constraints, under their current and their older names.
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | Json | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    # Unsupported fields, declared so that they can be rejected by name.
    use_beam_search: Any = None
    truncate_prompt_tokens: Any = None
    allowed_token_ids: Any = None
    bad_words: Any = None
    logits_processors: Any = None
    thinking_token_budget: Any = None
    repetition_detection: Any = None


CompletionFinish = Literal["stop", "length", "content_filter"]


class CreateCompletion(CompletionFields, kw_only=True):
    prompt: str | list[str | TokenId | list[TokenId]] | None = None
    echo: bool = False
    suffix: str | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    add_special_tokens: bool | None = None

    # Unsupported fields, declared so that they can be rejected by name.
    prompt_embeds: Any = None
    request_id: Any = None


class LegacyLogprobs(Struct, kw_only=True):
    """Four lists of equal length, with one entry for each token."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None] | None


class CompletionChoice(Struct):
    """One choice. In a stream it holds a piece of the text, and `finish_reason` comes with the last piece."""

    index: int
    text: str
    logprobs: LegacyLogprobs | None = None
    finish_reason: CompletionFinish | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: Any = UNSET


class Completion(Struct):
    """A complete reply or one chunk of a stream; both have this shape."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: CompletionUsage | UnsetType | None = UNSET
    system_fingerprint: str | UnsetType = UNSET
    service_tier: Tier | UnsetType = UNSET
    kv_transfer_params: Json | UnsetType = UNSET
