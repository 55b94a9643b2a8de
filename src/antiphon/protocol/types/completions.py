"""The body of POST /completions, and what it answers: a text_completion, in pieces or whole.

The prompt is the caller's, to the last control token; nothing is put around it.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.protocol.types.chat.response import CompletionUsage, Tier
from antiphon.protocol.types.chat.sampling import Generation, TokenId
from antiphon.protocol.types.response import ServiceTier
from antiphon.protocol.types.tools import Json

CompletionFinish = Literal["stop", "length", "content_filter"]


class CreateCompletion(Generation, kw_only=True):
    prompt: str | list[str | TokenId | list[TokenId]] | None = None
    echo: bool = False
    suffix: str | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    add_special_tokens: bool | None = None
    prompt_cache_key: str | None = None
    service_tier: ServiceTier | None = None

    # Known by name, so that they can be refused by name.
    prompt_embeds: Any = None
    request_id: Any = None


class LegacyLogprobs(Struct, kw_only=True):
    """Four lists of the same length: an entry for each token."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None] | None


class CompletionChoice(Struct):
    """Of a chunk, a piece of it; the finish_reason comes with the last one."""

    index: int
    text: str
    logprobs: LegacyLogprobs | None = None
    finish_reason: CompletionFinish | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: Any = UNSET


class Completion(Struct):
    """A whole one, or a chunk: both have this shape."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: CompletionUsage | UnsetType | None = UNSET
    system_fingerprint: str | UnsetType = UNSET
    service_tier: Tier | UnsetType = UNSET
    kv_transfer_params: Json | UnsetType = UNSET
