"""Replies of POST /chat/completions: a chat.completion, or a stream of chat.completion.chunk objects.

OpenAI's fields, and those of vLLM for further output of an engine. Structs with `gc=False` are created per token.
"""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from antiphon.protocol.types.events import ErrorBody
from antiphon.protocol.types.parts import Logprob, Tagged
from antiphon.protocol.types.response import ModerationFailure, ModerationResult
from antiphon.protocol.types.tools import Json

ChatFinish = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]
Tier = Literal["auto", "default", "flex", "scale", "priority", "fast"]


class PromptTokensDetails(Struct, kw_only=True, gc=False):
    cached_tokens: int = 0


class CompletionTokensDetails(Struct, kw_only=True, gc=False):
    reasoning_tokens: int = 0


class CompletionUsage(Struct, kw_only=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class ChoiceLogprobs(Struct, kw_only=True):
    content: list[Logprob] | None = None
    refusal: list[Logprob] | None = None


class CalledFunction(Struct, kw_only=True, gc=False):
    """The called function. In a chunk it is partial: the name comes first, then pieces of the arguments."""

    name: str | UnsetType = UNSET
    arguments: str = ""


class CalledCustom(Struct, kw_only=True, gc=False):
    name: str | UnsetType = UNSET
    input: str = ""


class ToolCall(Struct, kw_only=True):
    """A tool call: complete in a message, partial in a chunk.

    In chunks `index` identifies the call, and only its first chunk has `id`, `type` and the name.
    """

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET
    function: CalledFunction | UnsetType = UNSET
    custom: CalledCustom | UnsetType = UNSET


class ModerationResults(Tagged, tag="moderation_results", kw_only=True):
    model: str
    results: list[ModerationResult]


class ChatModeration(Struct, kw_only=True):
    """The results of a chat completion; those of its output have one for each choice."""

    input: ModerationResults | ModerationFailure
    output: ModerationResults | ModerationFailure


class ChatDelta(Struct, gc=False):
    content: str | UnsetType | None = UNSET
    role: Literal["assistant"] | UnsetType = UNSET
    refusal: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET


class ChunkChoice(Struct, gc=False):
    index: int
    delta: ChatDelta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: ChatFinish | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Struct, gc=False):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: CompletionUsage | UnsetType | None = UNSET
    system_fingerprint: str | UnsetType = UNSET
    service_tier: Tier | UnsetType = UNSET
    obfuscation: str | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: Any = UNSET
    kv_transfer_params: Json | UnsetType = UNSET
    moderation: ChatModeration | UnsetType = UNSET


class StreamFault(Struct, kw_only=True):
    """An error after a stream has started; the last event of that stream."""

    error: ErrorBody
    retry_after: float | UnsetType = UNSET  # seconds, as in the error event of a response


class ChatMessage(Struct, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str | None = None
    refusal: str | None = None
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET


class ChatChoice(Struct, kw_only=True):
    index: int
    message: ChatMessage
    logprobs: ChoiceLogprobs | None = None
    finish_reason: ChatFinish
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: CompletionUsage
    system_fingerprint: str | None = None
    service_tier: Tier | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: Any = UNSET
    kv_transfer_params: Json | UnsetType = UNSET
    moderation: ChatModeration | UnsetType = UNSET
