"""Items of the model in progress: each emits the events that open it, carry a piece of it and close it.

    message      added → [part added → text|refusal delta* → (annotation)* → text|refusal done → part done]* → done
    reasoning    added → [part added → reasoning_text delta* → done → part done]? → done
    … summary    added → [summary part added → summary delta* → done → summary part done]* → done
    call         added → arguments|input delta* → done → done

Events are created without a number; the emitter numbers them. Closing an item at the end of the response does not
modify it: if the end cannot be stored, the item is closed again with another status.
"""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from antiphon.core.deltas import CallStarted, Citation, EncryptedReasoning, ReasoningDelta, Refusal, Summary
from antiphon.core.emitter.parts_in_progress import REASONING, REFUSAL, SUMMARY, EventList, OpenPart, OpenText
from antiphon.protocol.types import events as ev
from antiphon.protocol.types.items import CustomToolCall, FunctionCall, Message, Phase, Reasoning
from antiphon.protocol.types.parts import MessagePart, OutputText, ReasoningText, RefusalPart, SummaryText

Status = Literal["completed", "incomplete"]


class OpenMessage(Struct, eq=False):
    """A message of text and refusal parts, one of them open at a time."""

    _id: str
    _index: int
    _phase: Phase | UnsetType
    _content: list[OutputText | RefusalPart] = []
    _part: OpenText | OpenPart | None = None

    @property
    def text(self) -> OpenText | None:
        return self._part if isinstance(self._part, OpenText) else None

    def take(self, delta: Refusal | Citation, out: EventList) -> None:
        if isinstance(delta, Citation):
            self.open_text(out).cite(delta, out)
            return
        if not isinstance(self._part, OpenPart):
            self._close_part(out)
            self._part = OpenPart(REFUSAL, (self._id, self._index, len(self._content)), out)
        self._part.take(delta.text, out)

    def open_text(self, out: EventList, suppress_events: bool = False) -> OpenText:
        """Return the open text part; open one if necessary."""
        if not isinstance(self._part, OpenText):
            if self._part is not None:
                self._close_part(out)
            self._part = OpenText((self._id, self._index, len(self._content)), suppress_events)
            if not suppress_events:
                out.append(self._part.added())
        return self._part

    def close(self, status: Status, out: EventList) -> None:
        content: list[MessagePart] = [*self._content]
        if self._part is not None:
            content.append(self._part.close(out))
        item = Message(id=self._id, role="assistant", status=status, content=content, phase=self._phase)
        out.append(ev.OutputItemDone(output_index=self._index, item=item))

    def _close_part(self, out: EventList) -> None:
        if self._part is not None:
            self._content.append(self._part.close(out))
            self._part = None


def begin_message(item_id: str, index: int, phase: Phase | None, out: EventList) -> OpenMessage:
    item_phase = phase or UNSET
    item = Message(id=item_id, role="assistant", status="in_progress", content=[], phase=item_phase)
    out.append(ev.OutputItemAdded(output_index=index, item=item))
    return OpenMessage(item_id, index, item_phase)


class OpenReasoning:
    """Raw reasoning, a summary in numbered paragraphs, or both, with the encrypted content for the client."""

    def __init__(self, item_id: str, index: int, out: EventList) -> None:
        self._id = item_id
        self._index = index
        self._content: list[ReasoningText] = []
        self._summary: list[SummaryText] = []
        self._part: OpenPart | None = None
        self._paragraph: int | None = None  # number of the open part in the summary; None: it is raw reasoning
        self._encrypted: str | UnsetType = UNSET
        out.append(ev.OutputItemAdded(output_index=index, item=Reasoning(id=item_id, summary=[])))

    def take(self, delta: ReasoningDelta | Summary | EncryptedReasoning, out: EventList) -> None:
        match delta:
            case ReasoningDelta(text=text):
                self._open_part(None, out).take(text, out)
            case Summary(text=text, part=number):
                self._open_part(number, out).take(text, out)
            case EncryptedReasoning(text=text):
                self._encrypted = text

    def close(self, status: Status, out: EventList) -> None:
        content, summary = self._close_part(out)
        item = Reasoning(
            id=self._id, summary=summary, content=content or UNSET, encrypted_content=self._encrypted, status=status
        )
        out.append(ev.OutputItemDone(output_index=self._index, item=item))

    def _open_part(self, paragraph: int | None, out: EventList) -> OpenPart:
        if self._part is None or self._paragraph != paragraph:
            self._content, self._summary = self._close_part(out)
            kind, parts = (REASONING, self._content) if paragraph is None else (SUMMARY, self._summary)
            self._part, self._paragraph = OpenPart(kind, (self._id, self._index, len(parts)), out), paragraph
        return self._part

    def _close_part(self, out: EventList) -> tuple[list[ReasoningText], list[SummaryText]]:
        """Return the content and the summary with the open part, which stays open."""
        closed = [] if self._part is None else [self._part.close(out)]
        is_content = self._paragraph is None
        return self._content + (closed if is_content else []), self._summary + ([] if is_content else closed)


class OpenCall:
    """A call of a client's function or custom tool."""

    def __init__(self, item_id: str, call_id: str, index: int, started: CallStarted) -> None:
        self._id = item_id
        self._call_id = call_id
        self._index = index
        self._started = started
        self._is_function = started.kind == "function"
        self._delta = ev.FunctionCallArgumentsDelta if self._is_function else ev.CustomToolCallInputDelta
        self._pieces: list[str] = []

    def open(self, out: EventList) -> None:
        out.append(ev.OutputItemAdded(output_index=self._index, item=self._item("", "in_progress")))

    def take(self, text: str, out: EventList) -> None:
        self._pieces.append(text)
        out.append(self._delta(item_id=self._id, output_index=self._index, delta=text))

    def close(self, status: Status, out: EventList) -> None:
        text = "".join(self._pieces)
        position: dict[str, Any] = {"item_id": self._id, "output_index": self._index}
        out += (
            ev.FunctionCallArgumentsDone(**position, arguments=text, name=self._started.name)
            if self._is_function
            else ev.CustomToolCallInputDone(**position, input=text),
            ev.OutputItemDone(output_index=self._index, item=self._item(text, status)),
        )

    def _item(
        self, text: str, status: Literal["in_progress", "completed", "incomplete"]
    ) -> FunctionCall | CustomToolCall:
        started = self._started
        fields: dict[str, Any] = {
            "id": self._id,
            "call_id": self._call_id,
            "name": started.name,
            "status": status,
            "namespace": started.namespace or UNSET,
        }
        return FunctionCall(**fields, arguments=text) if self._is_function else CustomToolCall(**fields, input=text)
