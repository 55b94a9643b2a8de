"""Optional events, sent only if the operator enables them: SDK helpers throw on event types that they do not know.

They are never stored in an event log. One that accompanies a logged event carries the sequence number of that event.
"""

from typing import Any

from msgspec import UNSET, Struct, UnsetType, field

from antiphon.protocol.types.events import Error, Event, ItemEvent, PartEvent, SummaryEvent
from antiphon.protocol.types.items import CodeImage, CodeLogs
from antiphon.protocol.types.parts import StreamedPart, SummaryText
from antiphon.protocol.types.tools import Json


class ResponseRef(Struct, kw_only=True):
    id: str


class Ping(Event, tag="response.ping", kw_only=True):
    timestamp: float
    response: Json = field(default_factory=dict)


class CallsDelta(Struct, kw_only=True):
    content: list[Any]  # tool calls as objects, or each as a JSON string


class ToolCallDelta(Event, tag="response.tool_call.delta", kw_only=True):
    response: ResponseRef
    delta: CallsDelta


class SourcesContext(Event, tag="response.additional_context", kw_only=True):
    sources: list[Any]


class ImagesContext(Event, tag="response.additional_context", kw_only=True):
    image_urls: list[str]


class EncryptedContext(Event, tag="response.additional_context", kw_only=True):
    encrypted_content: str


class RateLimit(Struct, kw_only=True, frozen=True):
    name: str  # "requests" or "tokens"
    limit: int
    remaining: int
    reset_seconds: float


class RateLimitsUpdated(Event, tag="response.rate_limits.updated", kw_only=True):
    rate_limits: list[RateLimit]


class LegacyError(Error, tag="response.error", kw_only=True):
    pass


class LegacyCodeCompleted(ItemEvent, tag="response.code_interpreter_call.completed", kw_only=True):
    outputs: list[CodeLogs | CodeImage]


class LegacyReasoningDelta(PartEvent, tag="response.reasoning.delta", kw_only=True, gc=False):
    delta: str
    obfuscation: str | UnsetType = UNSET


class LegacyReasoningDone(PartEvent, tag="response.reasoning.done", kw_only=True, gc=False):
    text: str


class ReasoningPartAdded(PartEvent, tag="response.reasoning_part.added", kw_only=True):
    part: StreamedPart


class ReasoningPartDone(PartEvent, tag="response.reasoning_part.done", kw_only=True):
    part: StreamedPart


class SummaryAdded(SummaryEvent, tag="response.reasoning.summary.added", kw_only=True):
    part: SummaryText


class SummaryDelta(SummaryEvent, tag="response.reasoning.summary.delta", kw_only=True, gc=False):
    delta: str
    obfuscation: str | UnsetType = UNSET
