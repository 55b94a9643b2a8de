"""Calls of tools that the client runs and that models do not know natively: which events they emit.

    shell_call                                            added → [command added → delta → done]* → done
    local_shell_call, apply_patch_call, tool_search_call  added → done

These are emitted when complete: only then is it known that the call is of this kind and valid.
"""

from typing import TypeGuard

from msgspec.structs import replace

from antiphon.core.deltas import ClientItem
from antiphon.core.emitter.parts_in_progress import ItemPosition
from antiphon.protocol.types import events as ev
from antiphon.protocol.types import tool_events as tool_ev
from antiphon.protocol.types.items import ApplyPatchCall, LocalShellCall, OutputItem, ShellCall, ToolSearchCall

_CLIENT_ITEM_TYPES = frozenset({ShellCall, LocalShellCall, ApplyPatchCall, ToolSearchCall})


def is_client_item(item: OutputItem) -> TypeGuard[ClientItem]:
    return type(item) in _CLIENT_ITEM_TYPES


def client_call_events(item: ClientItem, position: ItemPosition, call_id: str) -> list[ev.Event]:
    """Return the events of a complete client call."""
    item_id, index = position
    complete = replace(item, id=item_id, call_id=call_id)
    started = replace(complete, status="in_progress")
    steps: list[ev.Event] = []
    if isinstance(started, ShellCall):
        steps = [
            step for number, text in enumerate(started.action.commands) for step in _command_events(index, number, text)
        ]
        started.action = replace(started.action, commands=[])
    done = ev.OutputItemDone(output_index=index, item=complete)
    return [ev.OutputItemAdded(output_index=index, item=started), *steps, done]


def _command_events(index: int, number: int, text: str) -> list[ev.Event]:
    added = tool_ev.ShellCallCommandAdded(output_index=index, command_index=number, command="")
    delta = tool_ev.ShellCallCommandDelta(output_index=index, command_index=number, delta=text)
    return [added, delta, tool_ev.ShellCallCommandDone(output_index=index, command_index=number, command=text)]
