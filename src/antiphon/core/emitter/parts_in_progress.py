"""Content parts that are still being said: text, refusal, raw reasoning and reasoning summary.

Each emits its opening event when made (a text leaves that to its message), a delta for each piece, and its closing
events with the whole.
Text is gathered in lists and joined at the close: adding to a growing string costs more with every delta.
"""

from collections.abc import Sequence

from msgspec import Struct

from antiphon.core.deltas import Citation, Text
from antiphon.protocol.types import events as ev
from antiphon.protocol.types.items import Annotation, OutputText, ReasoningText, RefusalPart, SummaryText
from antiphon.protocol.types.response import Logprob, LogprobDelta, TopLogprobDelta

Out = list[ev.Event]
_TextDelta = ev.OutputTextDelta  # looked up for every token
Place = tuple[str, int, int]  # where a part stands: its item's id, its output index, its content or summary index


def part_added(place: Place, part: OutputText | RefusalPart | ReasoningText) -> ev.ContentPartAdded:
    item_id, output_index, index = place
    return ev.ContentPartAdded(item_id=item_id, output_index=output_index, content_index=index, part=part)


class OpenText(Struct, eq=False):
    _place: Place
    _hushed: bool = False  # nobody hears of its pieces, so that no events are made of them
    _pieces: list[str] = []
    _logprobs: list[Logprob] = []
    _annotations: list[Annotation] = []

    def take(self, deltas: Sequence[Text], number: int) -> Out:
        """The token path: these events alone are numbered as they are made, from `number` on."""
        item_id, output_index, part = self._place
        pieces = self._pieces
        out: Out = []
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

    def keep(self, deltas: Sequence[Text]) -> None:
        """Pieces of one that is hushed."""
        for delta in deltas:
            self._pieces.append(delta.text)
            if delta.logprobs:
                self._logprobs.extend(delta.logprobs)

    def fold(self, count: int) -> None:
        """Make one of the last pieces: so many small ones take ten times the room of what they say."""
        self._pieces[-count:] = ["".join(self._pieces[-count:])]

    def cite(self, delta: Citation, out: Out) -> None:
        item_id, output_index, part = self._place
        event = ev.OutputTextAnnotationAdded(
            item_id=item_id,
            output_index=output_index,
            content_index=part,
            annotation_index=len(self._annotations),
            annotation=delta.annotation,
        )
        self._annotations.append(delta.annotation)
        out.append(event)

    def close(self, out: Out) -> OutputText:
        text = "".join(self._pieces)
        whole = OutputText(text=text, annotations=self._annotations, logprobs=self._logprobs)
        if self._hushed:
            return whole
        item_id, output_index, part = self._place
        done = ev.OutputTextDone(item_id=item_id, output_index=output_index, content_index=part, text=text)
        if self._logprobs:
            done.logprobs = _without_bytes(self._logprobs)
        out += (done, _done(self._place, whole))
        return whole


class OpenRefusal:
    def __init__(self, place: Place, out: Out) -> None:
        self._place = place
        self._pieces: list[str] = []
        out.append(part_added(place, RefusalPart(refusal="")))

    def take(self, text: str, out: Out) -> None:
        self._pieces.append(text)
        item_id, output_index, part = self._place
        out.append(ev.RefusalDelta(item_id=item_id, output_index=output_index, content_index=part, delta=text))

    def close(self, out: Out) -> RefusalPart:
        item_id, output_index, part = self._place
        whole = RefusalPart(refusal="".join(self._pieces))
        done = ev.RefusalDone(item_id=item_id, output_index=output_index, content_index=part, refusal=whole.refusal)
        out += (done, _done(self._place, whole))
        return whole


class OpenThought:
    def __init__(self, place: Place, out: Out) -> None:
        self._place = place
        self._pieces: list[str] = []
        out.append(part_added(place, ReasoningText(text="")))

    def take(self, text: str, out: Out) -> None:
        self._pieces.append(text)
        item_id, output_index, part = self._place
        out.append(ev.ReasoningTextDelta(item_id=item_id, output_index=output_index, content_index=part, delta=text))

    def close(self, out: Out) -> ReasoningText:
        item_id, output_index, part = self._place
        whole = ReasoningText(text="".join(self._pieces))
        done = ev.ReasoningTextDone(item_id=item_id, output_index=output_index, content_index=part, text=whole.text)
        out += (done, _done(self._place, whole))
        return whole


class OpenSummary:
    def __init__(self, place: Place, out: Out) -> None:
        self._place = place
        self._pieces: list[str] = []
        item_id, output_index, part = place
        out.append(
            ev.ReasoningSummaryPartAdded(
                item_id=item_id, output_index=output_index, summary_index=part, part=SummaryText(text="")
            )
        )

    def take(self, text: str, out: Out) -> None:
        self._pieces.append(text)
        item_id, output_index, part = self._place
        out.append(
            ev.ReasoningSummaryTextDelta(item_id=item_id, output_index=output_index, summary_index=part, delta=text)
        )

    def close(self, out: Out) -> SummaryText:
        item_id, output_index, part = self._place
        whole = SummaryText(text="".join(self._pieces))
        done = ev.ReasoningSummaryTextDone(
            item_id=item_id, output_index=output_index, summary_index=part, text=whole.text
        )
        part_done = ev.ReasoningSummaryPartDone(
            item_id=item_id, output_index=output_index, summary_index=part, part=whole
        )
        out += (done, part_done)
        return whole


def _done(place: Place, part: OutputText | RefusalPart | ReasoningText) -> ev.ContentPartDone:
    item_id, output_index, index = place
    return ev.ContentPartDone(item_id=item_id, output_index=output_index, content_index=index, part=part)


def _without_bytes(logprobs: Sequence[Logprob]) -> list[LogprobDelta]:
    """Deltas say less of a log probability than the part does."""
    return [
        LogprobDelta(
            token=one.token,
            logprob=one.logprob,
            top_logprobs=[TopLogprobDelta(token=top.token, logprob=top.logprob) for top in one.top_logprobs],
        )
        for one in logprobs
    ]
