"""Optional events, sent only if the operator enables them: SDK helpers throw on event types that they do not know.

They are never stored in an event log. One that accompanies a logged event carries the sequence number of that event.
"""

from typing import Any

from msgspec import Struct, field

from antiphon.protocol.types import events as ev
from antiphon.protocol.types.events import Event, define_event
from antiphon.protocol.types.items import CodeImage, CodeLogs
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


class LegacyCodeCompleted(ev.ItemEvent, tag="response.code_interpreter_call.completed", kw_only=True):
    outputs: list[CodeLogs | CodeImage]


LegacyReasoningDelta = define_event(ev.PartDelta, "reasoning.delta")
LegacyReasoningDone = define_event(ev.PartText, "reasoning.done")
ReasoningPartAdded = define_event(ev.ContentPartEvent, "reasoning_part.added")
ReasoningPartDone = define_event(ev.ContentPartEvent, "reasoning_part.done")
SummaryAdded = define_event(ev.SummaryPartEvent, "reasoning.summary.added")
LegacySummaryDelta = define_event(ev.SummaryDelta, "reasoning.summary.delta")
LegacyError = define_event(ev.Error, "error")
