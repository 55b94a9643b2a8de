"""Prepares items for the store: each gets an id of this server and the status that readers expect.

Ids of a client are replaced, and references to them by other items are updated. An MCP approval request keeps its id if
this server may have issued it: the approval refers to that id.
"""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.ids import Prefix, parse_response_id
from antiphon.protocol.types import items as it
from antiphon.protocol.types.items import InputItem, Message

PREFIXES: dict[type, Prefix] = {
    Message: "msg",
    it.Reasoning: "rs",
    it.FunctionCall: "fc",
    it.CustomToolCall: "ctc",
    it.WebSearchCall: "ws",
    it.FileSearchCall: "fs",
    it.CodeInterpreterCall: "ci",
    it.ImageGenerationCall: "ig",
    it.McpCall: "mcp",
    it.McpListTools: "mcpl",
    it.McpApprovalRequest: "mcpr",
    it.Compaction: "cmp",
    it.ShellCall: "sh",
    it.ShellCallOutput: "sho",
    it.LocalShellCall: "lsh",
    it.ApplyPatchCall: "apc",
    it.ToolSearchCall: "tsc",
    it.ComputerCall: "cu",
}  # all others: "item"


def is_reference(item: InputItem) -> bool:
    """Return whether an item stands for a stored one. Clients name an image by its type and id alone, too."""
    if type(item) is it.ImageGenerationCall:
        return item.id is not UNSET and item.status is UNSET and not item.result
    return type(item) is it.ItemReference


def assign_ids(items: Iterable[InputItem], new_id: Callable[[Prefix], str]) -> list[InputItem]:
    """Return copies of the items, each with a new id."""
    new_ids: dict[str, str] = {}  # id sent by the client → new id
    stored: list[InputItem] = []
    for item in items:
        if type(item) is Message:  # the most frequent type; no other item refers to a message
            status = "completed" if item.status is UNSET else item.status
            stored.append(replace(item, id=new_id("msg"), status=status))
        else:
            stored.append(
                _to_stored(item, _retained_id(item, new_ids) or new_id(PREFIXES.get(type(item), "item")), new_ids)
            )
    return stored


def _retained_id(item: InputItem, new_ids: dict[str, str]) -> str | None:
    """Return the id that an item retains, if any. Within a list an id is retained only once."""
    if type(item) is not it.McpApprovalRequest or not isinstance(item.id, str) or item.id in new_ids:
        return None
    return item.id if item.id.startswith("mcpr_") and parse_response_id(item.id) is not None else None


def _to_stored(item: InputItem, item_id: str, new_ids: dict[str, str]) -> InputItem:
    changes: dict[str, Any] = {"id": item_id}
    if getattr(item, "status", None) is UNSET:
        changes["status"] = "completed"
    match item:
        case it.LocalShellCallOutput(id=str(client_id)) if item.call_id is UNSET:  # its id is the id of the call
            changes["call_id"] = new_ids.get(client_id, client_id)
        case (
            it.McpApprovalResponse(approval_request_id=str(client_id)) | it.McpCall(approval_request_id=str(client_id))
        ):
            changes["approval_request_id"] = new_ids.get(client_id, client_id)
    if isinstance(item.id, str):
        new_ids[item.id] = item.call_id if isinstance(item, it.LocalShellCall) else item_id
    return replace(item, **changes)
