"""What a client of Anthropic's API is told: the message, its blocks, the events of a stream; each named by its type.

What Anthropic's API calls an error: the one table from a status to its type there.

An error has no `param` in that API, so its sentence begins with the field, unless it names it anyway.
"""

from typing import Final, Literal

from msgspec import UNSET, Struct, UnsetType, field

from antiphon.errors import AntiphonError
from antiphon.protocol.types.tools import Json

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]


class ThinkingTokens(Struct, kw_only=True):
    thinking_tokens: int


class MessageUsage(Struct, kw_only=True):
    """The prompt's tokens are the sum of the first three."""

    input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int = 0
    output_tokens_details: ThinkingTokens | UnsetType = UNSET


class SaidBlock(Struct, kw_only=True, tag_field="type"):
    """A piece of what the model said."""


class SaidText(SaidBlock, tag="text", kw_only=True):
    text: str = ""


class SaidThinking(SaidBlock, tag="thinking", kw_only=True):
    thinking: str = ""
    signature: str = ""


class SaidToolUse(SaidBlock, tag="tool_use", kw_only=True):
    id: str
    name: str
    input: Json = field(default_factory=dict)


AnyBlock = SaidText | SaidThinking | SaidToolUse


class RefusalDetails(Struct, kw_only=True, tag_field="type", tag="refusal"):
    category: str | None = None
    explanation: str | None = None


class SaidMessage(Struct, kw_only=True, tag_field="type", tag="message"):
    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnyBlock] = field(default_factory=list)
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    stop_details: RefusalDetails | UnsetType = UNSET
    usage: MessageUsage = field(default_factory=MessageUsage)


class MessageEvent(Struct, kw_only=True, tag_field="type"):
    """One thing that the client of a stream is told."""


class MessageStart(MessageEvent, tag="message_start", kw_only=True):
    message: SaidMessage


class ContentBlockStart(MessageEvent, tag="content_block_start", kw_only=True):
    index: int
    content_block: AnyBlock


class TextDelta(Struct, kw_only=True, tag_field="type", tag="text_delta", gc=False):
    text: str


class ThinkingDelta(Struct, kw_only=True, tag_field="type", tag="thinking_delta", gc=False):
    thinking: str


class SignatureDelta(Struct, kw_only=True, tag_field="type", tag="signature_delta", gc=False):
    signature: str


class InputJsonDelta(Struct, kw_only=True, tag_field="type", tag="input_json_delta", gc=False):
    partial_json: str


BlockDelta = TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class ContentBlockDelta(MessageEvent, tag="content_block_delta", kw_only=True, gc=False):
    index: int
    delta: BlockDelta


class ContentBlockStop(MessageEvent, tag="content_block_stop", kw_only=True):
    index: int


class Stopped(Struct, kw_only=True):
    stop_reason: StopReason
    stop_sequence: str | None = None
    stop_details: RefusalDetails | UnsetType = UNSET


class MessageDelta(MessageEvent, tag="message_delta", kw_only=True):
    delta: Stopped
    usage: MessageUsage


class MessageStop(MessageEvent, tag="message_stop", kw_only=True):
    pass


class Ping(MessageEvent, tag="ping", kw_only=True):
    pass


class MessageError(Struct, kw_only=True):
    type: str
    message: str


class MessageProblem(MessageEvent, tag="error", kw_only=True):
    """The body of every error, and the event that ends a stream that failed."""

    error: MessageError
    request_id: str | UnsetType = UNSET


StreamedMessage = (
    MessageStart
    | ContentBlockStart
    | ContentBlockDelta
    | ContentBlockStop
    | MessageDelta
    | MessageStop
    | Ping
    | MessageProblem
)


class InputTokens(Struct, kw_only=True):
    """The reply of count_tokens."""

    input_tokens: int


TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}  # any other is an invalid_request_error


def problem(error: AntiphonError, request_id: str) -> MessageProblem:
    kind = TYPES.get(error.status, "invalid_request_error")
    return MessageProblem(error=MessageError(type=kind, message=_sentence(error)), request_id=request_id or UNSET)


def _sentence(error: AntiphonError) -> str:
    if error.param is None or error.param in error.message:
        return error.message
    return f"{error.param}: {error.message}"
