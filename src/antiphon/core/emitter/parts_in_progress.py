"""Content parts in progress: text, refusal, raw reasoning and reasoning summary.

Each emits its opening event when created (for text, the message does that), a delta for each piece, and closing events
with the complete content. Pieces are collected in lists and joined at the end: appending to a growing string costs more
with every delta.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from antiphon.core.deltas import Citation, Text
from antiphon.protocol.types import events as ev
from antiphon.protocol.types.parts import (
    Annotation,
    Logprob,
    LogprobDelta,
    OutputText,
    ReasoningText,
    RefusalPart,
    SummaryText,
    TopLogprobDelta,
)

EventList = list[ev.Event]
_TextDelta = ev.OutputTextDelta  # module-level alias: looked up for every token
ItemPosition = tuple[str, int]  # position of an item: its id and its output index
PartPosition = tuple[str, int, int]  # position of a part: item id, output index, content or summary index


def part_added(position: PartPosition, part: OutputText | RefusalPart | ReasoningText) -> ev.ContentPartEvent:
    item_id, output_index, index = position
    return ev.ContentPartAdded(item_id=item_id, output_index=output_index, content_index=index, part=part)


class OpenText(Struct, eq=False):
    _position: PartPosition
    _suppress_events: bool = False  # pieces produce no events
    _pieces: list[str] = []
    _logprobs: list[Logprob] = []
    _annotations: list[Annotation] = []

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
        item_id, output_index, part = self._position
        event = ev.OutputTextAnnotationAdded(
            item_id=item_id,
            output_index=output_index,
            content_index=part,
            annotation_index=len(self._annotations),
            annotation=delta.annotation,
        )
        self._annotations.append(delta.annotation)
        out.append(event)

    def close(self, out: EventList) -> OutputText:
        text = "".join(self._pieces)
        content = OutputText(text=text, annotations=self._annotations, logprobs=self._logprobs)
        if self._suppress_events:
            return content
        item_id, output_index, part = self._position
        done = ev.OutputTextDone(item_id=item_id, output_index=output_index, content_index=part, text=text)
        if self._logprobs:
            done.logprobs = _without_bytes(self._logprobs)
        out += (done, _part_done(self._position, content))
        return content


class OpenRefusal:
    def __init__(self, position: PartPosition, out: EventList) -> None:
        self._position = position
        self._pieces: list[str] = []
        out.append(part_added(position, RefusalPart(refusal="")))

    def take(self, text: str, out: EventList) -> None:
        self._pieces.append(text)
        item_id, output_index, part = self._position
        out.append(ev.RefusalDelta(item_id=item_id, output_index=output_index, content_index=part, delta=text))

    def close(self, out: EventList) -> RefusalPart:
        item_id, output_index, part = self._position
        content = RefusalPart(refusal="".join(self._pieces))
        done = ev.RefusalDone(item_id=item_id, output_index=output_index, content_index=part, refusal=content.refusal)
        out += (done, _part_done(self._position, content))
        return content


class OpenReasoningText:
    def __init__(self, position: PartPosition, out: EventList) -> None:
        self._position = position
        self._pieces: list[str] = []
        out.append(part_added(position, ReasoningText(text="")))

    def take(self, text: str, out: EventList) -> None:
        self._pieces.append(text)
        item_id, output_index, part = self._position
        out.append(ev.ReasoningTextDelta(item_id=item_id, output_index=output_index, content_index=part, delta=text))

    def close(self, out: EventList) -> ReasoningText:
        item_id, output_index, part = self._position
        content = ReasoningText(text="".join(self._pieces))
        done = ev.ReasoningTextDone(item_id=item_id, output_index=output_index, content_index=part, text=content.text)
        out += (done, _part_done(self._position, content))
        return content


class OpenSummary:
    def __init__(self, position: PartPosition, out: EventList) -> None:
        self._fields: dict[str, Any] = dict(zip(("item_id", "output_index", "summary_index"), position, strict=True))
        self._position = position
        self._pieces: list[str] = []
        out.append(ev.ReasoningSummaryPartAdded(**self._fields, part=SummaryText(text="")))

    def take(self, text: str, out: EventList) -> None:
        self._pieces.append(text)
        item_id, output_index, part = self._position
        out.append(
            ev.ReasoningSummaryTextDelta(item_id=item_id, output_index=output_index, summary_index=part, delta=text)
        )

    def close(self, out: EventList) -> SummaryText:
        content = SummaryText(text="".join(self._pieces))
        done = ev.ReasoningSummaryTextDone(**self._fields, text=content.text)
        out += (done, ev.ReasoningSummaryPartDone(**self._fields, part=content))
        return content


def _part_done(position: PartPosition, part: OutputText | RefusalPart | ReasoningText) -> ev.ContentPartEvent:
    item_id, output_index, index = position
    return ev.ContentPartDone(item_id=item_id, output_index=output_index, content_index=index, part=part)


def _without_bytes(logprobs: Sequence[Logprob]) -> list[LogprobDelta]:
    """Convert log probabilities for delta events, which have fewer fields than the part."""
    return [
        LogprobDelta(
            token=one.token,
            logprob=one.logprob,
            top_logprobs=[TopLogprobDelta(token=top.token, logprob=top.logprob) for top in one.top_logprobs],
        )
        for one in logprobs
    ]
