"""What came before, and the input, as one list of items that nobody changes and branches share.

A call and its output belong together: an output without its call is refused, and a history that is
too long loses whole units, oldest first, never half of one.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TypeGuard, get_args

from msgspec import UNSET, Struct, UnsetType

from antiphon.core.deltas import Said
from antiphon.core.history.compaction import restored
from antiphon.errors import InvalidValue, MissingParameter
from antiphon.protocol.types.items import (
    AdditionalTools,
    ApplyPatchCall,
    ApplyPatchCallOutput,
    Compaction,
    ComputerCall,
    ComputerCallOutput,
    ConfigurationUpdate,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputItem,
    ItemReference,
    LocalShellCall,
    LocalShellCallOutput,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpListTools,
    Message,
    Program,
    ProgramOutput,
    Reasoning,
    ShellCall,
    ShellCallOutput,
    ToolSearchCall,
    ToolSearchOutput,
)

Call = (
    FunctionCall
    | CustomToolCall
    | ComputerCall
    | LocalShellCall
    | ShellCall
    | ApplyPatchCall
    | ToolSearchCall
    | Program
)
Output = (
    FunctionCallOutput
    | CustomToolCallOutput
    | ComputerCallOutput
    | LocalShellCallOutput
    | ShellCallOutput
    | ApplyPatchCallOutput
    | ToolSearchOutput
    | ProgramOutput
)

# To ask whether a type is among these is ten times as fast as isinstance with the union.
_CALLS = frozenset(get_args(Call))
_OUTPUTS = frozenset(get_args(Output))
_MESSAGES = frozenset({Message})


def is_call(item: InputItem | None) -> TypeGuard[Call]:
    return type(item) in _CALLS


def is_output(item: InputItem) -> TypeGuard[Output]:
    return type(item) in _OUTPUTS


UNSAID: Mapping[str, Said] = {}


class History(Struct, frozen=True):
    items: tuple[InputItem, ...] = ()
    places: Sequence[int] = ()  # of each item in the request's input; below 0 it was there before
    before: str = "previous_response_id"  # the field of the request that earlier items came by
    said: Mapping[str, Said] = UNSAID  # what tools told a model that their items do not say, by the items' ids
    plain: bool = False  # it is known to be of messages alone

    def param(self, index: int, field: str = "") -> str:
        """How a client finds the item: `input[3].content[0]`."""
        place = self.places[index]
        return f"input[{place}]{field}" if place >= 0 else self.before


def make_history(
    earlier: Sequence[InputItem],
    given: Sequence[InputItem],
    before: str = "previous_response_id",
    said: Mapping[str, Said] = UNSAID,
) -> History:
    """The items of previous responses or of a conversation, then the request's input."""
    items, places = (*earlier, *given), range(-len(earlier), len(given))
    if _MESSAGES.issuperset(map(type, items)):  # there is nothing to restore or to pair
        return History(items, places, before, said, True)
    history = History(*restored(items, places), before, said)
    _check_pairs(history)
    return history


def answers(item: InputItem) -> str | None:
    """The id of the call whose output this is."""
    if not is_output(item):
        return None
    call_id = item.call_id
    if call_id is UNSET and isinstance(item, LocalShellCallOutput):
        call_id = item.id  # this one's id is the call's
    return None if isinstance(call_id, UnsetType) else call_id


def droppable(history: History) -> int:
    """How many units `shorter` can do without."""
    return len(_spare(history))


def shorter(history: History, drop: int) -> History:
    """Without its `drop` oldest units. Instructions, the last user's message and the last unit always stay."""
    gone = set(chain.from_iterable(_spare(history)[:drop]))
    kept = [index for index in range(len(history.items)) if index not in gone]
    items = tuple([history.items[index] for index in kept])
    return History(items, tuple([history.places[index] for index in kept]), history.before, history.said)


def units(history: History) -> list[list[int]]:
    """The items by index, grouped into what can only stay or go together.

    That is the calls of one turn with all their outputs, reasoning with the item that it led to, and a request for
    approval with its answer and the call that was allowed.
    """
    found: list[list[int]] = []
    homes: dict[str, list[int]] = {}  # the unit that a call is in
    previous: InputItem | None = None
    for index, item in enumerate(history.items):
        unit = homes.get(_refers_to(item) or "")
        if unit is None and found and _continues(previous, item):
            unit = found[-1]
        if unit is None:
            unit = []
            found.append(unit)
        unit.append(index)
        for name in _names(item):
            homes[name] = unit
        previous = item
    return found


def _continues(previous: InputItem | None, item: InputItem) -> bool:
    return isinstance(previous, Reasoning) or (is_call(previous) and is_call(item))


def _names(item: InputItem) -> tuple[str, ...]:
    """What outputs may call this item by."""
    if isinstance(item, McpApprovalRequest):
        return () if item.id is UNSET else (item.id,)
    if not is_call(item) or item.call_id is None:
        return ()
    if isinstance(item, LocalShellCall) and item.id is not UNSET:
        return item.call_id, item.id
    return (item.call_id,)


def _refers_to(item: InputItem) -> str | None:
    if isinstance(item, (McpApprovalResponse, McpCall)):
        return item.approval_request_id
    return answers(item)


def _spare(history: History) -> list[list[int]]:
    """Units that may go, oldest first. A unit is as new as its last item."""
    items = history.items
    said = max((index for index, item in enumerate(items) if _is_user(item)), default=-1)
    kept = {said, len(items) - 1}
    return [unit for unit in units(history) if kept.isdisjoint(unit) and not any(_governs(items[i]) for i in unit)]


def _is_user(item: InputItem) -> bool:
    return isinstance(item, Message) and item.role == "user"


def _governs(item: InputItem) -> bool:
    """It says how to go on, or stands for all that came before."""
    if isinstance(item, Message):
        return item.role in ("system", "developer")
    return isinstance(item, (AdditionalTools, McpListTools, Compaction, ConfigurationUpdate))


def _check_pairs(history: History) -> None:
    """A reference may stand for a call that is not known here; who resolves it looks again."""
    calls: set[str] = set()
    answered: set[str] = set()
    requests: set[str] = set()  # for approval; no output answers them
    whole = True
    for index, item in enumerate(history.items):
        if type(item) is Message:
            continue
        whole = whole and type(item) is not ItemReference
        if names := _names(item):
            known, field = (calls, "call_id") if is_call(item) else (requests, "id")
            if names[0] in known:
                raise InvalidValue(f"The {field} {names[0]!r} is used twice.", param=history.param(index, f".{field}"))
            known.update(names)
        elif is_output(item):
            answered.add(_check_output(history, index, calls if whole else None, answered))


def _check_output(history: History, index: int, calls: set[str] | None, answered: set[str]) -> str:
    item, param = history.items[index], history.param(index, ".call_id")
    call_id = answers(item)
    if call_id is None:
        if isinstance(item, ToolSearchOutput):
            return ""  # a search that the server ran needs no id
        raise MissingParameter("An output needs the call_id of its call.", param=param)
    if call_id in answered:
        raise InvalidValue(f"The call {call_id!r} has an output already.", param=param)
    if calls is not None and call_id not in calls:
        raise InvalidValue(f"There is no call {call_id!r} before this output.", param=param)
    return call_id
