"""An item as it is kept: with an id of ours, and with the status that whoever gets it back expects.

A client's own ids are not kept. What refers to another item by such an id follows it to the new one. A request for an
approval that we could have made keeps its id when it is sent back: it is by this that the answer counts.
"""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.ids import Prefix, home
from antiphon.protocol.types.items import (
    ApplyPatchCall,
    CodeInterpreterCall,
    Compaction,
    CustomToolCall,
    FileSearchCall,
    FunctionCall,
    ImageGenerationCall,
    InputItem,
    LocalShellCall,
    LocalShellCallOutput,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpListTools,
    Message,
    Reasoning,
    ShellCall,
    ToolSearchCall,
    WebSearchCall,
)

PREFIXES: dict[type, Prefix] = {
    Message: "msg",
    Reasoning: "rs",
    FunctionCall: "fc",
    CustomToolCall: "ctc",
    WebSearchCall: "ws",
    FileSearchCall: "fs",
    CodeInterpreterCall: "ci",
    ImageGenerationCall: "ig",
    McpCall: "mcp",
    McpListTools: "mcpl",
    McpApprovalRequest: "mcpr",
    Compaction: "cmp",
    ShellCall: "sh",
    LocalShellCall: "lsh",
    ApplyPatchCall: "apc",
    ToolSearchCall: "tsc",
}  # all others: "item"


def keep(items: Iterable[InputItem], new_id: Callable[[Prefix], str]) -> list[InputItem]:
    """Copies of the items, each with a new id."""
    names: dict[str, str] = {}  # what the client called an item → what it is called now
    kept: list[InputItem] = []
    for item in items:
        if type(item) is Message:  # what most are; nothing refers to it
            status = "completed" if item.status is UNSET else item.status
            kept.append(replace(item, id=new_id("msg"), status=status))
        else:
            kept.append(_kept(item, _own(item, names) or new_id(PREFIXES.get(type(item), "item")), names))
    return kept


def _own(item: InputItem, names: dict[str, str]) -> str | None:
    """The id that an item keeps; an id stands for one item of a list."""
    if type(item) is not McpApprovalRequest or not isinstance(item.id, str) or item.id in names:
        return None
    return item.id if item.id.startswith("mcpr_") and home(item.id) is not None else None


def _kept(item: InputItem, item_id: str, names: dict[str, str]) -> InputItem:
    changes: dict[str, Any] = {"id": item_id}
    if getattr(item, "status", None) is UNSET:
        changes["status"] = "completed"
    match item:
        case LocalShellCallOutput(id=str(name)) if item.call_id is UNSET:  # its id is the call's
            changes["call_id"] = names.get(name, name)
        case McpApprovalResponse(approval_request_id=str(name)) | McpCall(approval_request_id=str(name)):
            changes["approval_request_id"] = names.get(name, name)
    if isinstance(item.id, str):
        names[item.id] = item.call_id if isinstance(item, LocalShellCall) else item_id
    return replace(item, **changes)
