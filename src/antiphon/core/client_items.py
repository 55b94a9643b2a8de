"""Calls of tools that the client runs and that models do not know, as items: which events tell of each.

    shell_call                                            added → [command added → delta → done]* → done
    local_shell_call, apply_patch_call, tool_search_call  added → done

They are told whole: a call is known to be of its kind, and right, only when all of it was said.
"""

from typing import TypeGuard

from msgspec.structs import replace

from antiphon.core.deltas import ClientItem
from antiphon.core.server_items import Place
from antiphon.protocol import events as ev
from antiphon.protocol.items import ApplyPatchCall, LocalShellCall, OutputItem, ShellCall, ToolSearchCall

_KINDS = frozenset({ShellCall, LocalShellCall, ApplyPatchCall, ToolSearchCall})


def is_clients(item: OutputItem) -> TypeGuard[ClientItem]:
    return type(item) in _KINDS


def unnamed(item: ClientItem) -> ClientItem:
    """As it is before the emitter has named it."""
    return replace(item, call_id="")


def called(item: ClientItem, place: Place, call_id: str) -> list[ev.Event]:
    item_id, index = place
    whole = replace(item, id=item_id, call_id=call_id)
    begun = replace(whole, status="in_progress")
    steps: list[ev.Event] = []
    if isinstance(begun, ShellCall):
        steps = [step for number, text in enumerate(begun.action.commands) for step in _command(index, number, text)]
        begun.action = replace(begun.action, commands=[])
    done = ev.OutputItemDone(output_index=index, item=whole)
    return [ev.OutputItemAdded(output_index=index, item=begun), *steps, done]


def _command(index: int, number: int, text: str) -> list[ev.Event]:
    added = ev.ShellCallCommandAdded(output_index=index, command_index=number, command="")
    delta = ev.ShellCallCommandDelta(output_index=index, command_index=number, delta=text)
    return [added, delta, ev.ShellCallCommandDone(output_index=index, command_index=number, command=text)]
