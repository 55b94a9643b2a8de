"""Events of a response stream: one Struct per event, named after its type. Those of one shape share a base class.

Only the emitter assigns sequence numbers. By default a stream has no other events than these and those of
types/tool_events.py, since SDK helpers throw on unknown types; types/legacy_events.py holds optional ones,
bodies/websocket.py those of a WebSocket.
"""

from typing import Any, Literal, TypeVar, cast

from msgspec import UNSET, Struct, UnsetType, defstruct, field

from antiphon.protocol.types.items import OutputItem
from antiphon.protocol.types.parts import Annotation, LogprobDelta, StreamedPart, SummaryText
from antiphon.protocol.types.response import Response


class Event(Struct, kw_only=True, tag_field="type"):
    """One event of a stream."""

    sequence_number: int = -1

    @property
    def type(self) -> str:
        return str(self.__struct_config__.tag)


E = TypeVar("E", bound=Event)


def define_event(base: type[E], kind: str, *fields: tuple[str, Any]) -> type[E]:
    """Define the event `response.{kind}` with the fields of `base`. Like all events it is named after its type.

    `fields` are those of events that the server does not send itself.
    """
    name = kind.replace(".", "_").title().replace("_", "")
    event = defstruct(name, fields, bases=(base,), tag=f"response.{kind}", kw_only=True, module=base.__module__)
    return cast(type[E], event)


class ItemEvent(Event, kw_only=True, gc=False):
    item_id: str
    output_index: int


class ItemDelta(ItemEvent, kw_only=True):
    delta: str
    obfuscation: str | UnsetType = UNSET


class PartEvent(ItemEvent, kw_only=True):
    content_index: int


class PartDelta(PartEvent, kw_only=True):
    delta: str
    obfuscation: str | UnsetType = UNSET


class PartText(PartEvent, kw_only=True):
    text: str


class ContentPartEvent(PartEvent, kw_only=True):
    part: StreamedPart


class SummaryEvent(ItemEvent, kw_only=True):
    summary_index: int


class SummaryDelta(SummaryEvent, kw_only=True):
    delta: str
    obfuscation: str | UnsetType = UNSET


class SummaryPartEvent(SummaryEvent, kw_only=True):
    part: SummaryText


class OutputItemEvent(Event, kw_only=True):
    output_index: int
    item: OutputItem


class ResponseEvent(Event, kw_only=True):
    response: Response


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


Created = define_event(ResponseEvent, "created")
Queued = define_event(ResponseEvent, "queued")
InProgress = define_event(ResponseEvent, "in_progress")
Completed = define_event(ResponseEvent, "completed")
Failed = define_event(ResponseEvent, "failed")
Incomplete = define_event(ResponseEvent, "incomplete")
OutputItemAdded = define_event(OutputItemEvent, "output_item.added")
OutputItemDone = define_event(OutputItemEvent, "output_item.done")
ContentPartAdded = define_event(ContentPartEvent, "content_part.added")
ContentPartDone = define_event(ContentPartEvent, "content_part.done")
RefusalDelta = define_event(PartDelta, "refusal.delta")
ReasoningTextDelta = define_event(PartDelta, "reasoning_text.delta")
ReasoningTextDone = define_event(PartText, "reasoning_text.done")
ReasoningSummaryPartAdded = define_event(SummaryPartEvent, "reasoning_summary_part.added")
ReasoningSummaryTextDelta = define_event(SummaryDelta, "reasoning_summary_text.delta")
FunctionCallArgumentsDelta = define_event(ItemDelta, "function_call_arguments.delta")
CustomToolCallInputDelta = define_event(ItemDelta, "custom_tool_call_input.delta")


class OutputTextDelta(PartEvent, tag="response.output_text.delta", kw_only=True):
    delta: str
    logprobs: list[LogprobDelta] = field(default_factory=list)
    obfuscation: str | UnsetType = UNSET


class OutputTextDone(PartText, tag="response.output_text.done", kw_only=True):
    logprobs: list[LogprobDelta] = field(default_factory=list)


class OutputTextAnnotationAdded(PartEvent, tag="response.output_text.annotation.added", kw_only=True):
    annotation_index: int
    annotation: Annotation


class RefusalDone(PartEvent, tag="response.refusal.done", kw_only=True):
    refusal: str


class ReasoningSummaryPartDone(SummaryPartEvent, tag="response.reasoning_summary_part.done", kw_only=True):
    status: Literal["incomplete"] | UnsetType = UNSET


class ReasoningSummaryTextDone(SummaryEvent, tag="response.reasoning_summary_text.done", kw_only=True):
    text: str


class FunctionCallArgumentsDone(ItemEvent, tag="response.function_call_arguments.done", kw_only=True):
    name: str
    arguments: str


class CustomToolCallInputDone(ItemEvent, tag="response.custom_tool_call_input.done", kw_only=True):
    input: str
