"""The body of POST /completions and its reply: one text_completion, or a stream of them.

The prompt is passed on unchanged, control tokens included; nothing is added around it.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.protocol.types.chat.response import CompletionUsage, Tier
from antiphon.protocol.types.chat.sampling import CompletionFields, TokenId
from antiphon.protocol.types.response import ServiceTier
from antiphon.protocol.types.tools import Json

CompletionFinish = Literal["stop", "length", "content_filter"]


class CreateCompletion(CompletionFields, kw_only=True):
    prompt: str | list[str | TokenId | list[TokenId]] | None = None
    echo: bool = False
    suffix: str | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    add_special_tokens: bool | None = None
    prompt_cache_key: str | None = None
    service_tier: ServiceTier | None = None

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
