"""Content parts in progress: text, refusal, raw reasoning and reasoning summary.

Each emits its opening event when created (for text, the message does that), a delta for each piece, and closing events
with the complete content. Pieces are collected in lists and joined at the end: appending to a growing string costs more
with every delta.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct

from antiphon.core.deltas import Citation, Text
from antiphon.protocol.types import events as ev
from antiphon.protocol.types import parts as pt

EventList = list[ev.Event]
_TextDelta = ev.OutputTextDelta  # module-level alias: looked up for every token
ItemPosition = tuple[str, int]  # position of an item: its id and its output index
PartPosition = tuple[str, int, int]  # position of a part: item id, output index, content or summary index


class OpenText(Struct, eq=False):
    _position: PartPosition
    _suppress_events: bool = False  # pieces produce no events
    _pieces: list[str] = []
    _logprobs: list[pt.Logprob] = []
    _annotations: list[pt.Annotation] = []

    def added(self) -> ev.Event:
        return ev.ContentPartAdded(**self._get_fields(), part=pt.OutputText(text=""))

    def take(self, deltas: Sequence[Text], number: int) -> EventList:
        """Append text deltas. This is the token path: the events are numbered here, starting at `number`."""
        item_id, output_index, part = self._position
        pieces = self._pieces
        out: EventList = []
        for delta in deltas:
            text = delta.text
            pieces.append(text)
            event = _TextDelta(
                sequence_number=number, item_id=item_id, output_index=output_index, content_index=part, delta=text
            )
            if delta.logprobs:
                self._logprobs.extend(delta.logprobs)
                event.logprobs = _without_bytes(delta.logprobs)
            out.append(event)
            number += 1
        return out

    def append_silently(self, deltas: Sequence[Text]) -> None:
        """Append text deltas without creating events."""
        for delta in deltas:
            self._pieces.append(delta.text)
            if delta.logprobs:
                self._logprobs.extend(delta.logprobs)

    def fold_pieces(self, count: int) -> None:
        """Join the last pieces: many small strings take ten times the memory of their text."""
        self._pieces[-count:] = ["".join(self._pieces[-count:])]

    def cite(self, delta: Citation, out: EventList) -> None:
        fields, index = self._get_fields(), len(self._annotations)
        self._annotations.append(delta.annotation)
        out.append(ev.OutputTextAnnotationAdded(**fields, annotation_index=index, annotation=delta.annotation))

    def close(self, out: EventList) -> pt.OutputText:
        text = "".join(self._pieces)
        content = pt.OutputText(text=text, annotations=self._annotations, logprobs=self._logprobs)
        if self._suppress_events:
            return content
        fields = self._get_fields()
        done = ev.OutputTextDone(**fields, text=text)
        if self._logprobs:
            done.logprobs = _without_bytes(self._logprobs)
        out += (done, ev.ContentPartDone(**fields, part=content))
        return content

    def _get_fields(self) -> dict[str, Any]:
        return dict(zip(("item_id", "output_index", "content_index"), self._position, strict=True))


class PartKind(Struct, frozen=True):
    """Content type and events of a part other than text. `field` holds the text in the content and in `done`."""

    content: Callable[..., pt.RefusalPart | pt.ReasoningText | pt.SummaryText]
    field: str
    delta: Callable[..., Any]
    done: Callable[..., ev.Event]
    index: str = "content_index"
    added: Callable[..., ev.Event] = ev.ContentPartAdded
    part_done: Callable[..., ev.Event] = ev.ContentPartDone


REFUSAL: Final = PartKind(pt.RefusalPart, "refusal", ev.RefusalDelta, ev.RefusalDone)
REASONING: Final = PartKind(pt.ReasoningText, "text", ev.ReasoningTextDelta, ev.ReasoningTextDone)
SUMMARY: Final = PartKind(
    pt.SummaryText,
    "text",
    ev.ReasoningSummaryTextDelta,
    ev.ReasoningSummaryTextDone,
    "summary_index",
    ev.ReasoningSummaryPartAdded,
    ev.ReasoningSummaryPartDone,
)


class OpenPart:
    """A refusal, raw reasoning or a paragraph of a reasoning summary."""

    def __init__(self, kind: PartKind, position: PartPosition, out: EventList) -> None:
        self._kind = kind
        self._fields: dict[str, Any] = dict(zip(("item_id", "output_index", kind.index), position, strict=True))
        self._empty_delta = kind.delta(**self._fields, delta="")
        self._pieces: list[str] = []
        out.append(kind.added(**self._fields, part=kind.content(**{kind.field: ""})))

    def take(self, text: str, out: EventList) -> None:
        self._pieces.append(text)
        event = self._empty_delta.__copy__()  # takes half the time of a call that unpacks the fields
        event.delta = text
        out.append(event)

    def close(self, out: EventList) -> Any:
        """Emit the closing events and return the content."""
        kind, text = self._kind, {self._kind.field: "".join(self._pieces)}
        content = kind.content(**text)
        out += (kind.done(**self._fields, **text), kind.part_done(**self._fields, part=content))
        return content


def _without_bytes(logprobs: Sequence[pt.Logprob]) -> list[pt.LogprobDelta]:
    """Convert log probabilities for delta events, which have fewer fields than the part."""
    return [
        pt.LogprobDelta(
            token=one.token,
            logprob=one.logprob,
            top_logprobs=[pt.TopLogprobDelta(token=top.token, logprob=top.logprob) for top in one.top_logprobs],
        )
        for one in logprobs
    ]
