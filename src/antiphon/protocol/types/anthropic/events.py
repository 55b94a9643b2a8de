"""Replies of Anthropic's Messages API: the message, its content blocks, stream events and errors.

`ERROR_TYPES` maps HTTP statuses to Anthropic's error types. Errors of that API have no `param`, so the error message is
prefixed with the field unless it mentions the field already.
"""

from typing import Final, Literal

from msgspec import UNSET, Struct, UnsetType, field

from antiphon.errors import AntiphonError
from antiphon.protocol.types.anthropic.request import TextBlock, ThinkingBlock, ToolUseBlock
from antiphon.protocol.types.parts import Tagged

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]


class ThinkingTokens(Struct, kw_only=True):
    thinking_tokens: int


class MessageUsage(Struct, kw_only=True):
    """Token counts; the prompt is the sum of the first three."""

    input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int = 0
    output_tokens_details: ThinkingTokens | UnsetType = UNSET


OutputBlock = TextBlock | ThinkingBlock | ToolUseBlock


class RefusalDetails(Tagged, tag="refusal", kw_only=True):
    category: str | None = None
    explanation: str | None = None


class AnthropicMessage(Tagged, tag="message", kw_only=True):
    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[OutputBlock] = field(default_factory=list)
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    stop_details: RefusalDetails | UnsetType = UNSET
    usage: MessageUsage = field(default_factory=MessageUsage)


class MessageStart(Tagged, tag="message_start", kw_only=True):
    message: AnthropicMessage


class ContentBlockStart(Tagged, tag="content_block_start", kw_only=True):
    index: int
    content_block: OutputBlock


class TextDelta(Tagged, tag="text_delta", kw_only=True, gc=False):
    text: str


class ThinkingDelta(Tagged, tag="thinking_delta", kw_only=True, gc=False):
    thinking: str


class SignatureDelta(Tagged, tag="signature_delta", kw_only=True, gc=False):
    signature: str


class InputJsonDelta(Tagged, tag="input_json_delta", kw_only=True, gc=False):
    partial_json: str


BlockDelta = TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class ContentBlockDelta(Tagged, tag="content_block_delta", kw_only=True, gc=False):
    index: int
    delta: BlockDelta


class ContentBlockStop(Tagged, tag="content_block_stop", kw_only=True):
    index: int


class Stopped(Struct, kw_only=True):
    stop_reason: StopReason
    stop_sequence: str | None = None
    stop_details: RefusalDetails | UnsetType = UNSET


class MessageDelta(Tagged, tag="message_delta", kw_only=True):
    delta: Stopped
    usage: MessageUsage


class MessageStop(Tagged, tag="message_stop", kw_only=True): ...


class Ping(Tagged, tag="ping", kw_only=True): ...


class MessageError(Struct, kw_only=True):
    type: str
    message: str


class MessageProblem(Tagged, tag="error", kw_only=True):
    """The body of every error, and the event that ends a failed stream."""

    error: MessageError
    request_id: str | UnsetType = UNSET


_BlockEvent = ContentBlockStart | ContentBlockDelta | ContentBlockStop
AnthropicStreamEvent = MessageStart | _BlockEvent | MessageDelta | MessageStop | Ping | MessageProblem


class InputTokens(Struct, kw_only=True):
    """The reply of count_tokens."""

    input_tokens: int


ERROR_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}  # all others are invalid_request_error


def to_problem(error: AntiphonError, request_id: str) -> MessageProblem:
    """Convert an error to the format of Anthropic's API."""
    error_type = ERROR_TYPES.get(error.status, "invalid_request_error")
    return MessageProblem(
        error=MessageError(type=error_type, message=_error_message(error)), request_id=request_id or UNSET
    )


def _error_message(error: AntiphonError) -> str:
    if error.param is None or error.param in error.message:
        return error.message
    return f"{error.param}: {error.message}"
