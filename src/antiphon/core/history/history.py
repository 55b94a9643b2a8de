"""Earlier items and the input as one immutable list of items, which branches share.

A call and its output belong together: an output without its call is rejected, and a history that is too long loses
complete units, oldest first.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TypeGuard, get_args

from msgspec import UNSET, Struct, UnsetType

from antiphon.core.deltas import ClientItem, ToolOutputContent
from antiphon.core.history.compaction import is_directive, restore_compaction
from antiphon.errors import InvalidValue, MissingParameter
from antiphon.ids import quote_id
from antiphon.protocol.types import items as it
from antiphon.protocol.types.items import InputItem, ItemReference, Message

ToolCallItem = it.FunctionCall | it.CustomToolCall | it.Program | ClientItem
_ShellOutput = it.LocalShellCallOutput | it.ShellCallOutput | it.ApplyPatchCallOutput | it.ComputerCallOutput
ToolOutputItem = it.FunctionCallOutput | it.CustomToolCallOutput | it.ToolSearchOutput | it.ProgramOutput | _ShellOutput

# Membership of the type is ten times as fast as isinstance with the union.
_CALLS = frozenset(get_args(ToolCallItem))
_OUTPUTS = frozenset(get_args(ToolOutputItem))
_MESSAGES = frozenset({Message})


def is_call(item: InputItem | None) -> TypeGuard[ToolCallItem]:
    return type(item) in _CALLS


def is_output(item: InputItem) -> TypeGuard[ToolOutputItem]:
    return type(item) in _OUTPUTS


NO_TOOL_OUTPUTS: Mapping[str, ToolOutputContent] = {}


class History(Struct, frozen=True):
    """The items of a prompt, and where each came from."""

    items: tuple[InputItem, ...] = ()
    positions: Sequence[int] = ()  # index of each item in the request's input; negative for earlier items
    earlier_param: str = "previous_response_id"  # request field that refers to the earlier items
    tool_outputs: Mapping[str, ToolOutputContent] = (
        NO_TOOL_OUTPUTS  # tool output for the model that the items do not contain, by item id
    )
    messages_only: bool = False  # known to contain only messages

    def param(self, index: int, field: str = "") -> str:
        """Return the parameter name of an item for errors, such as `input[3].content[0]`."""
        position = self.positions[index]
        return f"input[{position}]{field}" if position >= 0 else self.earlier_param


def make_history(
    earlier: Sequence[InputItem],
    new_items: Sequence[InputItem],
    earlier_param: str = "previous_response_id",
    tool_outputs: Mapping[str, ToolOutputContent] = NO_TOOL_OUTPUTS,
) -> History:
    """Build the history from earlier items (previous responses or a conversation) and the request's input."""
    items, positions = (*earlier, *new_items), range(-len(earlier), len(new_items))
    if _MESSAGES.issuperset(map(type, items)):  # nothing to restore or to pair
        return History(items, positions, earlier_param, tool_outputs, True)
    history = History(*restore_compaction(items, positions), earlier_param, tool_outputs)
    _check_pairs(history)
    return history


def answered_call_id(item: InputItem) -> str | None:
    """Return the id of the call that this output answers."""
    if not is_output(item):
        return None
    call_id = item.call_id
    if call_id is UNSET and isinstance(item, it.LocalShellCallOutput):
        call_id = item.id  # the id of this item type is the call's id
    return None if isinstance(call_id, UnsetType) else call_id


def count_droppable(history: History) -> int:
    """Return the number of units that `drop_oldest` can drop."""
    return len(_droppable_units(history))


def drop_oldest(history: History, drop: int) -> History:
    """Drop the oldest units. Instructions, the last user message and the last unit are never dropped."""
    dropped = set(chain.from_iterable(_droppable_units(history)[:drop]))
    retained = [index for index in range(len(history.items)) if index not in dropped]
    items = tuple([history.items[index] for index in retained])
    positions = tuple([history.positions[index] for index in retained])
    return History(items, positions, history.earlier_param, history.tool_outputs)


def group_units(history: History) -> list[list[int]]:
    """Group item indexes into units that can only be dropped together.

    A unit is the calls of one turn with all their outputs, reasoning with the item that follows it, or an approval
    request with its response and the approved call.
    """
    found: list[list[int]] = []
    unit_by_id: dict[str, list[int]] = {}  # unit of each call or approval request
    previous: InputItem | None = None
    for index, item in enumerate(history.items):
        unit = unit_by_id.get(referenced_id(item) or "")
        if unit is None and found and (isinstance(previous, it.Reasoning) or (is_call(previous) and is_call(item))):
            unit = found[-1]
        if unit is None:
            unit = []
            found.append(unit)
        unit.append(index)
        for item_id in reference_ids(item):
            unit_by_id[item_id] = unit
        previous = item
    return found


def reference_ids(item: InputItem) -> tuple[str, ...]:
    """Return the ids by which other items may refer to this item."""
    if isinstance(item, it.McpApprovalRequest):
        return () if item.id is UNSET else (item.id,)
    if not is_call(item) or item.call_id is None:
        return ()
    if isinstance(item, it.LocalShellCall) and item.id is not UNSET:
        return item.call_id, item.id
    return (item.call_id,)


def referenced_id(item: InputItem) -> str | None:
    if isinstance(item, (it.McpApprovalResponse, it.McpCall)):
        return item.approval_request_id
    return answered_call_id(item)


def _droppable_units(history: History) -> list[list[int]]:
    """Return the units that may be dropped, oldest first. A unit is as new as its last item."""
    items = history.items
    last_user = max((index for index, item in enumerate(items) if is_user_message(item)), default=-1)
    protected = {last_user, len(items) - 1}
    return [
        unit
        for unit in group_units(history)
        if protected.isdisjoint(unit) and not any(_is_protected(items[i]) for i in unit)
    ]


def is_user_message(item: InputItem) -> bool:
    return isinstance(item, Message) and item.role == "user"


def _is_protected(item: InputItem) -> bool:
    """Check whether the item is a directive or stands for earlier items."""
    return is_directive(item) or isinstance(item, it.Compaction)


def _check_pairs(history: History) -> None:
    """Check that ids are unique, every output has its call, and safety checks of a computer are acknowledged.

    After an item reference, missing calls are not an error: the check runs again when references are resolved.
    """
    calls: set[str] = set()
    answered: set[str] = set()
    requests: set[str] = set()  # approval requests; outputs do not answer them
    resolved = True
    pending: dict[str, set[str]] = {}  # safety checks by the ids of their calls
    for index, item in enumerate(history.items):
        if type(item) is Message:
            continue
        resolved = resolved and type(item) is not ItemReference
        if ids := reference_ids(item):
            seen, field = (calls, "call_id") if is_call(item) else (requests, "id")
            if ids[0] in seen:
                raise InvalidValue(f"The {field} {ids[0]!r} is used twice.", param=history.param(index, f".{field}"))
            seen.update(ids)
            if type(item) is it.ComputerCall:
                pending[item.call_id] = {check.id for check in item.pending_safety_checks}
        elif is_output(item):
            answered.add(_check_output(history, index, calls if resolved else None, answered))
            if type(item) is it.ComputerCallOutput and item.call_id in pending:
                _check_acknowledged(item, pending[item.call_id], history.param(index, ".acknowledged_safety_checks"))


def _check_acknowledged(item: it.ComputerCallOutput, pending: set[str], param: str) -> None:
    """Require that the client acknowledges exactly the safety checks of its call."""
    acknowledged = {check.id for check in item.acknowledged_safety_checks or ()}
    if missing := sorted(pending - acknowledged):
        raise MissingParameter(f"The safety check {quote_id(missing[0])} must be acknowledged.", param=param)
    if unknown := sorted(acknowledged - pending):
        raise InvalidValue(f"The call has no safety check {quote_id(unknown[0])}.", param=param)


def _check_output(history: History, index: int, calls: set[str] | None, answered: set[str]) -> str:
    item, param = history.items[index], history.param(index, ".call_id")
    if (call_id := answered_call_id(item)) is None:
        if isinstance(item, it.ToolSearchOutput):
            return ""  # a search that the server ran needs no id
        raise MissingParameter("An output needs the call_id of its call.", param=param)
    if call_id in answered:
        raise InvalidValue(f"The call {call_id!r} has an output already.", param=param)
    if calls is not None and call_id not in calls:
        raise InvalidValue(f"There is no call {call_id!r} before this output.", param=param)
    return call_id
