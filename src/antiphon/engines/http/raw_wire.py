"""Completions of raw prompts as engines send them: only what is read, every bit of it optional."""

from typing import Any

from msgspec import Struct, field
from msgspec.json import Decoder

from antiphon.core.prompt import Json
from antiphon.engines.http.wire import TokenLogprob, Usage


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
