"""Items that are still being said: each knows which events open it, carry a piece of it and close it.

    message      added → [part added → text|refusal delta* → (annotation)* → text|refusal done → part done]* → done
    reasoning    added → [part added → reasoning_text delta* → done → part done]? → done
    … summary    added → [summary part added → summary delta* → done → summary part done]* → done
    call         added → arguments|input delta* → done → done

Events leave here without a number; the emitter alone numbers them. Closing an item changes nothing in it: an end that
could not be kept is told again, in other words.

Items of what the server does, from their beginning until they ran or were cut short.

They stay open while the model goes on speaking. An end changes nothing in them: one that could not be kept is told
again, in other words.
"""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from antiphon.core.deltas import CallStarted, Citation, Refusal, Sealed, ServerItem, Summary, Thought
from antiphon.core.emitter.parts_in_progress import OpenRefusal, OpenSummary, OpenText, OpenThought, Out, part_added
from antiphon.core.emitter.tool_items import KINDS, begun, cut_short, ended, item_added
from antiphon.errors import EngineFailed
from antiphon.protocol.types import events as ev
from antiphon.protocol.types.items import (
    CustomToolCall,
    FunctionCall,
    McpCall,
    Message,
    MessagePart,
    OutputText,
    Phase,
    Reasoning,
    ReasoningText,
    RefusalPart,
    SummaryText,
)

Status = Literal["completed", "incomplete"]


class OpenMessage(Struct, eq=False):
    """Text and refusal parts, one open at a time."""

    _id: str
    _index: int
    _phase: Phase | UnsetType
    _content: list[OutputText | RefusalPart] = []
    _part: OpenText | OpenRefusal | None = None

    @property
    def text(self) -> OpenText | None:
        return self._part if isinstance(self._part, OpenText) else None

    def take(self, delta: Refusal | Citation, out: Out) -> None:
        if isinstance(delta, Citation):
            self.open_text(out).cite(delta, out)
        else:
            self._refusal(out).take(delta.text, out)

    def open_text(self, out: Out, hushed: bool = False) -> OpenText:
        """The part that text belongs to."""
        if not isinstance(self._part, OpenText):
            if self._part is not None:
                self._close_part(out)
            place = self._id, self._index, len(self._content)
            self._part = OpenText(place, hushed)
            if not hushed:
                out.append(part_added(place, OutputText(text="")))
        return self._part

    def close(self, status: Status, out: Out) -> None:
        content: list[MessagePart] = [*self._content]
        if self._part is not None:
            content.append(self._part.close(out))
        item = Message(id=self._id, role="assistant", status=status, content=content, phase=self._phase)
        out.append(ev.OutputItemDone(output_index=self._index, item=item))

    def _refusal(self, out: Out) -> OpenRefusal:
        if not isinstance(self._part, OpenRefusal):
            self._close_part(out)
            self._part = OpenRefusal((self._id, self._index, len(self._content)), out)
        return self._part

    def _close_part(self, out: Out) -> None:
        if self._part is not None:
            self._content.append(self._part.close(out))
            self._part = None


def begin_message(item_id: str, index: int, phase: Phase | None, out: Out) -> OpenMessage:
    said = phase or UNSET
    item = Message(id=item_id, role="assistant", status="in_progress", content=[], phase=said)
    out.append(ev.OutputItemAdded(output_index=index, item=item))
    return OpenMessage(item_id, index, said)


class OpenReasoning:
    """One raw thought, or a summary in numbered paragraphs, or both; and what a client can bring back of it."""

    def __init__(self, item_id: str, index: int, out: Out) -> None:
        self._id = item_id
        self._index = index
        self._thought: OpenThought | None = None
        self._content: list[ReasoningText] = []
        self._summary: list[SummaryText] = []
        self._paragraph: tuple[int, OpenSummary] | None = None
        self._sealed: str | UnsetType = UNSET
        out.append(ev.OutputItemAdded(output_index=index, item=Reasoning(id=item_id, summary=[])))

    def take(self, delta: Thought | Summary | Sealed, out: Out) -> None:
        match delta:
            case Thought(text=text):
                self._raw(out).take(text, out)
            case Summary(text=text, part=number):
                self._numbered(number, out).take(text, out)
            case Sealed(text=text):
                self._sealed = text

    def close(self, status: Status, out: Out) -> None:
        # At most one of the two is open.
        content = self._content + ([] if self._thought is None else [self._thought.close(out)])
        summary = self._summary + ([] if self._paragraph is None else [self._paragraph[1].close(out)])
        item = Reasoning(
            id=self._id, summary=summary, content=content or UNSET, encrypted_content=self._sealed, status=status
        )
        out.append(ev.OutputItemDone(output_index=self._index, item=item))

    def _raw(self, out: Out) -> OpenThought:
        if self._thought is None:
            self._close_paragraph(out)
            self._thought = OpenThought((self._id, self._index, len(self._content)), out)
        return self._thought

    def _numbered(self, number: int, out: Out) -> OpenSummary:
        if self._paragraph is None or self._paragraph[0] != number:
            self._close_thought(out)
            self._close_paragraph(out)
            self._paragraph = number, OpenSummary((self._id, self._index, len(self._summary)), out)
        return self._paragraph[1]

    def _close_thought(self, out: Out) -> None:
        if self._thought is not None:
            self._content.append(self._thought.close(out))
            self._thought = None

    def _close_paragraph(self, out: Out) -> None:
        if self._paragraph is not None:
            self._summary.append(self._paragraph[1].close(out))
            self._paragraph = None


class OpenCall:
    """A call of a client's function or custom tool."""

    def __init__(self, item_id: str, call_id: str, index: int, started: CallStarted) -> None:
        self._id = item_id
        self._call_id = call_id
        self._index = index
        self._started = started
        self._pieces: list[str] = []

    def open(self, out: Out) -> None:
        out.append(ev.OutputItemAdded(output_index=self._index, item=self._item("", "in_progress")))

    def take(self, text: str, out: Out) -> None:
        self._pieces.append(text)
        delta = ev.FunctionCallArgumentsDelta if self._is_function else ev.CustomToolCallInputDelta
        out.append(delta(item_id=self._id, output_index=self._index, delta=text))

    def close(self, status: Status, out: Out) -> None:
        whole = "".join(self._pieces)
        out += (self._whole(whole), ev.OutputItemDone(output_index=self._index, item=self._item(whole, status)))

    @property
    def _is_function(self) -> bool:
        return self._started.kind == "function"

    def _whole(self, text: str) -> ev.FunctionCallArgumentsDone | ev.CustomToolCallInputDone:
        if self._is_function:
            return ev.FunctionCallArgumentsDone(
                item_id=self._id, output_index=self._index, arguments=text, name=self._started.name
            )
        return ev.CustomToolCallInputDone(item_id=self._id, output_index=self._index, input=text)

    def _item(
        self, text: str, status: Literal["in_progress", "completed", "incomplete"]
    ) -> FunctionCall | CustomToolCall:
        namespace = self._started.namespace or UNSET
        name = self._started.name
        if self._is_function:
            return FunctionCall(
                id=self._id, call_id=self._call_id, name=name, arguments=text, status=status, namespace=namespace
            )
        return CustomToolCall(
            id=self._id, call_id=self._call_id, name=name, input=text, status=status, namespace=namespace
        )


GONE_ON = "The engine went on with a tool call after it had said something else."


class OpenServerItem:
    """All that is known of it before it ran is known at once."""

    def __init__(self, item_id: str, index: int, item: ServerItem) -> None:
        self.id = item_id
        self._place = item_id, index
        self._item = item

    def open(self, out: Out) -> None:
        out += begun(self._item, self._place)

    def take(self, text: str, out: Out) -> None:
        raise EngineFailed(GONE_ON)

    def settle(self, out: Out) -> None:
        """Its arguments are whole, if they were not."""

    def stage(self, word: str, out: Out) -> None:
        """A word that this kind of item has no event for says nothing."""
        step = KINDS[type(self._item)].stages.get(word)
        if step is not None:
            item_id, index = self._place
            out.append(step(item_id=item_id, output_index=index))

    def close(self, item: ServerItem, out: Out) -> None:
        if type(item) is not type(self._item):
            raise EngineFailed(f"What began as {_name(self._item)} ended as {_name(item)}.")
        out += ended(item, self._place)

    def cut(self, out: Out) -> None:
        """The response ends before it does."""
        out += ended(cut_short(self._item), self._place)


class OpenMcpCall(OpenServerItem):
    """Its arguments are told piece by piece. What was told of it is not changed by what comes of it."""

    def __init__(self, item_id: str, index: int, started: CallStarted) -> None:
        label, name = started.namespace or "", started.name
        call = McpCall(server_label=label, name=name, arguments="", approval_request_id=started.approval)
        super().__init__(item_id, index, call)
        self._told = {"server_label": label, "name": name, "approval_request_id": started.approval}
        self._pieces: list[str] = []
        self._whole = False

    def open(self, out: Out) -> None:
        out += item_added(self._item, self._place)

    def take(self, text: str, out: Out) -> None:
        if self._whole:
            super().take(text, out)
        self._pieces.append(text)
        item_id, index = self._place
        out.append(ev.McpCallArgumentsDelta(item_id=item_id, output_index=index, delta=text))

    def settle(self, out: Out) -> None:
        self._tell_whole(out)
        self._whole = True

    def close(self, item: ServerItem, out: Out) -> None:
        if isinstance(item, McpCall):
            item = replace(item, **self._told, arguments=self._tell_whole(out))
        super().close(item, out)

    def cut(self, out: Out) -> None:
        out += ended(cut_short(replace(self._item, arguments=self._tell_whole(out))), self._place)

    def _tell_whole(self, out: Out) -> str:
        arguments = "".join(self._pieces)
        if not self._whole:
            item_id, index = self._place
            out.append(ev.McpCallArgumentsDone(item_id=item_id, output_index=index, arguments=arguments))
        return arguments


def _name(item: ServerItem) -> str:
    return str(item.__struct_config__.tag)
