"""Events of a response stream: one Struct per event, named after its type.

Only the emitter assigns sequence numbers. By default a stream has no other events than these and those of
types/tool_events.py, since SDK helpers throw on unknown types; types/legacy_events.py holds optional ones,
bodies/websocket.py those of a WebSocket.
"""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType, field

from antiphon.protocol.types.items import OutputItem
from antiphon.protocol.types.parts import Annotation, LogprobDelta, StreamedPart, SummaryText
from antiphon.protocol.types.response import Response


class Event(Struct, kw_only=True, tag_field="type"):
    """One event of a stream."""

    sequence_number: int = -1

    @property
    def type(self) -> str:
        return str(self.__struct_config__.tag)


class ItemEvent(Event, kw_only=True, gc=False):
    item_id: str
    output_index: int


class PartEvent(ItemEvent, kw_only=True, gc=False):
    content_index: int


class SummaryEvent(ItemEvent, kw_only=True, gc=False):
    summary_index: int


class ResponseEvent(Event, kw_only=True):
    response: Response


class Created(ResponseEvent, tag="response.created", kw_only=True):
    pass


class Queued(ResponseEvent, tag="response.queued", kw_only=True):
    pass


class InProgress(ResponseEvent, tag="response.in_progress", kw_only=True):
    pass


class Completed(ResponseEvent, tag="response.completed", kw_only=True):
    pass


class Failed(ResponseEvent, tag="response.failed", kw_only=True):
    pass


class Incomplete(ResponseEvent, tag="response.incomplete", kw_only=True):
    pass


class ErrorBody(Struct, kw_only=True):
    """An error, in the shape of an HTTP error body."""

    type: str
    code: str | None = None
    message: str
    param: str | None = None


class Error(Event, tag="error", kw_only=True):
    """An error event.

    Its fields are given twice, at the top level as in OpenAI's type and in `error`, for clients that read either.
    """

    code: str | None = None
    message: str
    param: str | None = None
    error: ErrorBody
    retry_after: float | UnsetType = UNSET


class Keepalive(Event, tag="keepalive", kw_only=True):
    """Sent while a stream is idle. It repeats the last sequence number and is never stored."""


class OutputItemAdded(Event, tag="response.output_item.added", kw_only=True):
    output_index: int
    item: OutputItem


class OutputItemDone(Event, tag="response.output_item.done", kw_only=True):
    output_index: int
    item: OutputItem


class ContentPartAdded(PartEvent, tag="response.content_part.added", kw_only=True):
    part: StreamedPart


class ContentPartDone(PartEvent, tag="response.content_part.done", kw_only=True):
    part: StreamedPart


class OutputTextDelta(PartEvent, tag="response.output_text.delta", kw_only=True, gc=False):
    delta: str
    logprobs: list[LogprobDelta] = field(default_factory=list)
    obfuscation: str | UnsetType = UNSET


class OutputTextDone(PartEvent, tag="response.output_text.done", kw_only=True, gc=False):
    text: str
    logprobs: list[LogprobDelta] = field(default_factory=list)


class OutputTextAnnotationAdded(PartEvent, tag="response.output_text.annotation.added", kw_only=True):
    annotation_index: int
    annotation: Annotation


class RefusalDelta(PartEvent, tag="response.refusal.delta", kw_only=True, gc=False):
    delta: str
    obfuscation: str | UnsetType = UNSET


class RefusalDone(PartEvent, tag="response.refusal.done", kw_only=True, gc=False):
    refusal: str


class ReasoningTextDelta(PartEvent, tag="response.reasoning_text.delta", kw_only=True, gc=False):
    delta: str
    obfuscation: str | UnsetType = UNSET


class ReasoningTextDone(PartEvent, tag="response.reasoning_text.done", kw_only=True, gc=False):
    text: str


class ReasoningSummaryPartAdded(SummaryEvent, tag="response.reasoning_summary_part.added", kw_only=True):
    part: SummaryText


class ReasoningSummaryPartDone(SummaryEvent, tag="response.reasoning_summary_part.done", kw_only=True):
    part: SummaryText
    status: Literal["incomplete"] | UnsetType = UNSET


class ReasoningSummaryTextDelta(SummaryEvent, tag="response.reasoning_summary_text.delta", kw_only=True, gc=False):
    delta: str
    obfuscation: str | UnsetType = UNSET


class ReasoningSummaryTextDone(SummaryEvent, tag="response.reasoning_summary_text.done", kw_only=True, gc=False):
    text: str


class FunctionCallArgumentsDelta(ItemEvent, tag="response.function_call_arguments.delta", kw_only=True, gc=False):
    delta: str
    obfuscation: str | UnsetType = UNSET


class FunctionCallArgumentsDone(ItemEvent, tag="response.function_call_arguments.done", kw_only=True, gc=False):
    name: str
    arguments: str


class CustomToolCallInputDelta(ItemEvent, tag="response.custom_tool_call_input.delta", kw_only=True, gc=False):
    delta: str
    obfuscation: str | UnsetType = UNSET


class CustomToolCallInputDone(ItemEvent, tag="response.custom_tool_call_input.done", kw_only=True, gc=False):
    input: str
