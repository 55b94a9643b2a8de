"""Items of tools: how they look when added or cut short, the events they emit, and those that are in progress.

A server item stays open while the model continues, until the server operation is done or cut short. The kinds of server
items are in server_item_kinds.py. Calls of tools that the client runs and that models do not know natively are emitted
when complete, because only then is it known that the call is of this kind and valid:

    shell_call                                            added → [command added → delta → done]* → done
    local_shell_call, apply_patch_call, tool_search_call  added → done
    computer_call                                         added → done
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.core.deltas import AddedItem, CallStarted, ClientItem, ImagePreview, ServerItem
from antiphon.core.emitter.parts_in_progress import EventList, ItemPosition
from antiphon.core.emitter.response_views import required_input
from antiphon.core.emitter.server_item_kinds import SERVER_ITEM_KINDS, make_call_item
from antiphon.errors import EngineFailed
from antiphon.protocol.types import events as ev
from antiphon.protocol.types import items as it
from antiphon.protocol.types import tool_events as tool_ev

_ToolOutput = it.FunctionCallOutput | it.CustomToolCallOutput
_ServerItemT = TypeVar("_ServerItemT", bound=ServerItem)

_SERVER_OUTPUT_TYPES = frozenset({*SERVER_ITEM_KINDS, it.FunctionCallOutput, it.CustomToolCallOutput}) - {it.Compaction}


def to_added_item(item: _ServerItemT, item_id: str) -> _ServerItemT:
    """Return the item as it looks when added."""
    return replace(item, id=item_id, **{**SERVER_ITEM_KINDS[type(item)].initial, **_initial_fields(item)})


def initial_view(item: ServerItem) -> ServerItem:
    """Return all of an item that is emitted when it starts. Items with equal views start with the same events."""
    streamed = SERVER_ITEM_KINDS[type(item)].streamed
    return (
        to_added_item(item, "")
        if streamed is None
        else replace(to_added_item(item, ""), **{streamed.field: getattr(item, streamed.field)})
    )


def added_events(item: ServerItem, position: ItemPosition) -> list[ev.Event]:
    item_id, index = position
    added, started = to_added_item(item, item_id), SERVER_ITEM_KINDS[type(item)].started
    steps = [] if started is None else [started(item_id=item_id, output_index=index)]
    return [ev.OutputItemAdded(output_index=index, item=added), *steps]


def start_events(item: ServerItem, position: ItemPosition) -> list[ev.Event]:
    """Return the events that start an item, including those of its streamed field."""
    item_id, index = position
    events, streamed = added_events(item, position), SERVER_ITEM_KINDS[type(item)].streamed
    if streamed is None or (text := getattr(item, streamed.field)) is None:
        return events
    if text:
        events.append(streamed.delta(item_id=item_id, output_index=index, delta=text))
    return [*events, streamed.done(item_id=item_id, output_index=index, **{streamed.field: text})]


def end_events(item: _ServerItemT, position: ItemPosition) -> list[ev.Event]:
    """Return the events that end an item, which is complete except for its id. A missing status is set."""
    item_id, index = position
    kind, succeeded = SERVER_ITEM_KINDS[type(item)], has_succeeded(item)
    if getattr(item, "status", None) is UNSET:
        item = replace(item, status="completed" if succeeded else "failed")
    events: list[ev.Event] = [ev.OutputItemDone(output_index=index, item=replace(item, id=item_id))]
    if (event_type := kind.completed if succeeded else kind.failed) is not None:
        events.insert(0, event_type(item_id=item_id, output_index=index))
    return events


def _command_events(output: it.ShellOutput, number: int, position: ItemPosition) -> Iterator[ev.Event]:
    """Yield what a command has printed, and how it has ended."""
    item_id, index = position
    fields: dict[str, Any] = {"item_id": item_id, "output_index": index, "command_index": number}
    for name in ("stdout", "stderr"):
        if text := getattr(output, name):
            delta = tool_ev.ShellOutputDelta(**{name: text})
            yield tool_ev.ShellCallOutputContentDelta(**fields | {"delta": delta})
    yield tool_ev.ShellCallOutputContentDone(**fields | {"output": [output]})


def truncate_item(item: ServerItem) -> ServerItem:
    """Return the item as it ends if the response ends first. Idempotent."""
    return replace(initial_view(item), **SERVER_ITEM_KINDS[type(item)].truncated)


def has_succeeded(item: ServerItem) -> bool:
    """Check that the item has no error and is completed."""
    return getattr(item, "error", None) in (None, UNSET) and getattr(item, "status", UNSET) in ("completed", UNSET)


def has_no_answer(output: Sequence[it.OutputItem]) -> bool:
    """Check whether the model owes an answer: the output is empty, or it ends with server output and no call is
    pending.

    A compaction does not count as server output here: it may be all that was requested.
    """
    return not output or (type(output[-1]) in _SERVER_OUTPUT_TYPES and not required_input(output))


def complete_item_events(item: AddedItem, position: ItemPosition) -> list[ev.Event]:
    """Return the events of an item that is added and done at once."""
    item_id, index = position
    complete = replace(item, id=item_id)
    if isinstance(complete, _ToolOutput) and complete.status is UNSET:
        complete.status = "completed"
    return [ev.OutputItemAdded(output_index=index, item=complete), ev.OutputItemDone(output_index=index, item=complete)]


def _initial_fields(item: ServerItem) -> dict[str, Any]:
    """Search sources are not known when the search starts; outputs of code are an empty list if they are included."""
    if isinstance(item, it.WebSearchCall) and isinstance(item.action, it.SearchAction):
        return {"action": replace(item.action, sources=UNSET)}
    if isinstance(item, it.CodeInterpreterCall) and item.outputs is not None:
        return {"outputs": []}
    return {}


CALL_NOT_OPEN = "The engine sent arguments for a tool call that is not open."


class OpenServerItem:
    """A server item whose arguments are known when it starts."""

    def __init__(self, item_id: str, index: int, item: ServerItem) -> None:
        self.id = item_id
        self._position = item_id, index
        self._item = item

    def open(self, out: EventList) -> None:
        out += start_events(self._item, self._position)

    def take(self, text: str, out: EventList) -> None:
        raise EngineFailed(CALL_NOT_OPEN)

    def complete_arguments(self, out: EventList) -> None:
        """Emit the complete arguments if they were streamed."""

    def take_output(self, output: it.ShellOutput, out: EventList) -> None:
        raise EngineFailed("A server item that is no shell call received the output of a command.")

    def show_preview(self, preview: ImagePreview, out: EventList) -> None:
        item_id, index = self._position
        event = tool_ev.ImageGenerationCallPartialImage(
            item_id=item_id,
            output_index=index,
            partial_image_index=preview.index,
            partial_image_b64=preview.data,
            size=preview.size,
            quality=preview.quality,
            background=preview.background,
            output_format=preview.output_format,
        )
        out.append(event)

    def advance(self, stage: str, out: EventList) -> None:
        """Emit the event of a stage. Stages without an event for this kind of item are ignored."""
        if (step := SERVER_ITEM_KINDS[type(self._item)].stages.get(stage)) is not None:
            item_id, index = self._position
            out.append(step(item_id=item_id, output_index=index))

    def close(self, item: ServerItem, out: EventList) -> None:
        if type(item) is not type(self._item):
            raise EngineFailed(f"A server item started as {_type_name(self._item)} but ended as {_type_name(item)}.")
        out += end_events(item, self._position)

    def cut(self, out: EventList) -> None:
        """Close the item because the response ends first."""
        out += end_events(truncate_item(self._item), self._position)


class OpenShellOutput(OpenServerItem):
    """The output of a shell call, which is emitted before it."""

    def __init__(self, item_id: str, index: int, call: it.ShellCall, call_id: str) -> None:
        limit = call.action.max_output_length
        self._output = it.ShellCallOutput(call_id=call_id, output=[], max_output_length=limit)
        super().__init__(item_id, index, self._output)

    def take_output(self, output: it.ShellOutput, out: EventList) -> None:
        out += _command_events(output, len(self._output.output), self._position)
        self._output.output.append(output)

    def close(self, item: ServerItem, out: EventList) -> None:
        if isinstance(item, it.ShellCallOutput):  # the output of a call that failed is what was sent
            for output in item.output[len(self._output.output) :]:
                self.take_output(output, out)
            item = replace(self._output, status=item.status)
        super().close(item, out)

    def cut(self, out: EventList) -> None:
        self.close(replace(self._output, status="incomplete"), out)


class OpenStreamedCall(OpenServerItem):
    """A call whose arguments or code are streamed. Fields that were already sent are not changed by its result."""

    def __init__(self, item_id: str, index: int, started: CallStarted) -> None:
        item = make_call_item(started)
        super().__init__(item_id, index, item)
        kind = SERVER_ITEM_KINDS[type(item)]
        assert kind.streamed is not None
        self._streamed = kind.streamed
        sent = [name for name in item.__struct_fields__ if name != "id" and name not in kind.initial]
        self._started_fields = {name: getattr(item, name) for name in sent}
        self._pieces: list[str] = []
        self._is_complete = False

    def open(self, out: EventList) -> None:
        out += added_events(self._item, self._position)

    def take(self, text: str, out: EventList) -> None:
        if self._is_complete:
            super().take(text, out)
        self._pieces.append(text)
        item_id, index = self._position
        out.append(self._streamed.delta(item_id=item_id, output_index=index, delta=text))

    def complete_arguments(self, out: EventList) -> None:
        self._emit_arguments(out)
        self._is_complete = True

    def close(self, item: ServerItem, out: EventList) -> None:
        if type(item) is type(self._item):
            item = replace(item, **self._started_fields, **self._emit_arguments(out))
        super().close(item, out)

    def cut(self, out: EventList) -> None:
        out += end_events(truncate_item(replace(self._item, **self._emit_arguments(out))), self._position)

    def _emit_arguments(self, out: EventList) -> dict[str, str]:
        """Emit the complete arguments, once, and return them as a field of the item."""
        arguments = {self._streamed.field: "".join(self._pieces)}
        if not self._is_complete:
            item_id, index = self._position
            out.append(self._streamed.done(item_id=item_id, output_index=index, **arguments))
        return arguments


def _type_name(item: ServerItem) -> str:
    return str(item.__struct_config__.tag)


def client_call_events(item: ClientItem, position: ItemPosition, call_id: str) -> list[ev.Event]:
    """Return the events of a complete client call."""
    item_id, index = position
    complete = replace(item, id=item_id, call_id=call_id)
    started = replace(complete, status="in_progress")
    steps: list[ev.Event] = []
    if isinstance(started, it.ShellCall):
        for number, text in enumerate(started.action.commands):
            steps += (
                tool_ev.ShellCallCommandAdded(output_index=index, command_index=number, command=""),
                tool_ev.ShellCallCommandDelta(output_index=index, command_index=number, delta=text),
                tool_ev.ShellCallCommandDone(output_index=index, command_index=number, command=text),
            )
        started.action = replace(started.action, commands=[])
    done = ev.OutputItemDone(output_index=index, item=complete)
    return [ev.OutputItemAdded(output_index=index, item=started), *steps, done]
