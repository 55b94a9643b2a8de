"""Approvals of code. The API has approval items for calls of MCP tools only, so those of code have the same form:

    mcp_approval_request   server_label and name: code_interpreter   arguments: {"code": "…"}
                           server_label and name: shell              arguments: {"commands": ["…"], …}

The labels are reserved: where code needs an approval, no MCP server can have them.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from antiphon.core.truncated_json import parse_object
from antiphon.protocol.types.items import (
    CodeInterpreterCall,
    InputItem,
    McpApprovalRequest,
    McpApprovalResponse,
    ShellCall,
)

_CODE: Final = "code_interpreter"
CODE_LABELS: Final = {_CODE: _CODE, "hosted_shell": "shell"}  # by the kind of the tool
CODE_KINDS: Final = {label: kind for kind, label in CODE_LABELS.items()}


def is_code_request(request: McpApprovalRequest) -> bool:
    return request.server_label == request.name and request.name in CODE_KINDS


def to_request_arguments(kind: str, arguments: str) -> str:
    """Return the arguments of a call as JSON; those of code are its text."""
    if kind != _CODE:
        return arguments
    return msgspec.json.encode({"code": arguments.encode("utf-8", "replace").decode()}).decode()


def to_call_arguments(kind: str, arguments: str) -> str:
    """Return the arguments of a request as the tool takes them."""
    return str((parse_object(arguments) or {}).get("code", "")) if kind == _CODE else arguments


def list_run_requests(items: Iterable[InputItem]) -> set[str]:
    """Return the ids of approved requests whose code a later call has run. Items of such calls do not name them."""
    requested: dict[str, tuple[str, Any]] = {}
    approved: list[str] = []
    executed: set[str] = set()
    for item in items:
        code = _find_code(item)
        if isinstance(item, McpApprovalResponse):
            approved += [item.approval_request_id] if item.approve else []
        elif isinstance(item, McpApprovalRequest):
            requested |= {} if code is None else {str(item.id): code}
        elif code is not None and (same := [each for each in approved if requested.get(each) == code]):
            approved.remove(same[-1])
            executed.add(same[-1])
    return executed


def _find_code(item: InputItem) -> tuple[str, Any] | None:
    """Return what a call runs, or what a request asks for; None for other items."""
    match item:
        case CodeInterpreterCall(code=code):
            return _CODE, code
        case ShellCall(action=action):
            return "shell", action.commands
        case McpApprovalRequest() if is_code_request(item):
            arguments = parse_object(item.arguments) or {}
            return item.name, arguments.get("code" if item.name == _CODE else "commands")
        case _:
            return None
