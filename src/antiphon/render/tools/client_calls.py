"""Calls of client tools: model arguments → the item that the client expects, and back for the history.

The arguments match `accepted_schema` (render/tools/client_tools.py). Where that schema is wider than the offered one,
the input has one interpretation only: one text is one command, a list that invokes a shell is that shell's command, and
lines of a new file without their "+" markers get them.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, assert_never

import msgspec
from msgspec import UNSET

from antiphon.core.deltas import ClientItem
from antiphon.core.prompt import Json
from antiphon.core.truncated_json import parse_object, parse_truncated_object
from antiphon.errors import InvalidCall
from antiphon.protocol.schemas.schema_check import find_violation
from antiphon.protocol.types import items as it
from antiphon.protocol.types.tools import LocalEnvironment
from antiphon.render.tools.client_tools import APPLY_PATCH, LOCAL_SHELL, SHELL, TOOL_SEARCH, accepted_schema
from antiphon.render.tools.computer import COMPUTER_KINDS, build_computer_call, computer_call_arguments

_SHELLS: Final = frozenset({"bash", "sh", "zsh", "/bin/bash", "/bin/sh", "/bin/zsh", "/usr/bin/bash"})
_SHELL_FLAGS: Final = frozenset({"-c", "-lc"})
_EMPTY_ARGUMENTS: Final[Mapping[str, Json]] = {SHELL: {"commands": []}, LOCAL_SHELL: {"command": []}}


def build_client_item(kind: str, arguments: str, parameters: Json | None = None) -> ClientItem:
    """Build the item of a valid call. Its ids are set later. `parameters`: the schema that the model was offered."""
    decoded = parse_object(arguments)
    if decoded is None or find_violation(accepted_schema(kind, parameters or {}) or {}, decoded):
        raise InvalidCall(f"The model called {kind} with invalid arguments.")  # the arguments were not checked before
    return _BUILDERS[kind](decoded, "completed")


def build_truncated_item(kind: str, arguments: str) -> ClientItem | None:
    """Build the item of a truncated call from the complete part of its arguments.

    Returns None for apply_patch, which has no status for an incomplete call.
    """
    if kind == APPLY_PATCH:
        return None
    decoded = parse_truncated_object(arguments) or {}
    schema = accepted_schema(kind, {}) or {}
    return _BUILDERS[kind](_EMPTY_ARGUMENTS.get(kind, {}) if find_violation(schema, decoded) else decoded, "incomplete")


def normalise_shell_arguments(arguments: str) -> str:
    """Return the arguments of a shell call in the form offered to the model; invalid ones are not changed."""
    try:
        return msgspec.json.encode(client_call_arguments(build_client_item(SHELL, arguments))).decode()
    except (InvalidCall, UnicodeEncodeError):
        return arguments


def client_call_arguments(item: ClientItem) -> Json:
    """Return the arguments of a call in the form offered to the model."""
    match item:
        case it.ShellCall(action=action):
            limits = {"timeout_ms": action.timeout_ms, "max_output_length": action.max_output_length}
            return {"commands": action.commands, **_drop_absent(limits)}
        case it.LocalShellCall(action=action):
            options = {name: getattr(action, name) for name in ("working_directory", "timeout_ms", "user")}
            return {"command": action.command, **_drop_absent({"env": action.env or None, **options})}
        case it.ApplyPatchCall(operation=operation):
            diff = "" if isinstance(operation, it.DeleteFile) else operation.diff
            return {"type": operation.__struct_config__.tag, "path": operation.path, "diff": diff}
        case it.ToolSearchCall(arguments=arguments):
            return arguments if isinstance(arguments, dict) else {"query": arguments}
        case it.ComputerCall():
            return computer_call_arguments(item)
        case _:
            assert_never(item)


def _build_shell_call(arguments: Json, status: it.Status) -> it.ShellCall:
    action = it.ShellAction(
        commands=_read_commands(arguments),
        timeout_ms=_to_int(arguments.get("timeout_ms")),
        max_output_length=_to_int(arguments.get("max_output_length")),
    )
    return it.ShellCall(call_id="", status=status, action=action, environment=LocalEnvironment())


def _build_local_shell_call(arguments: Json, status: it.Status) -> it.LocalShellCall:
    command = arguments.get("command") or arguments.get("cmd") or arguments.get("commands") or []
    action = it.LocalShellAction(
        command=["bash", "-lc", command] if isinstance(command, str) else command,
        env=arguments.get("env") or {},
        timeout_ms=UNSET if (timeout := _to_int(arguments.get("timeout_ms"))) is None else timeout,
        user=arguments.get("user") or UNSET,
        working_directory=_read_directory(arguments) or UNSET,
    )
    return it.LocalShellCall(call_id="", status=status, action=action)


def _build_apply_patch_call(arguments: Json, status: it.Status) -> it.ApplyPatchCall:
    fields: Json = arguments.get("operation", arguments)
    path, diff = fields["path"], fields.get("diff") or ""
    operation: it.CreateFile | it.UpdateFile | it.DeleteFile
    match fields["type"]:
        case "create_file":
            operation = it.CreateFile(path=path, diff=_mark_added_lines(diff))
        case "update_file":
            operation = it.UpdateFile(path=path, diff=diff)
        case _:
            operation = it.DeleteFile(path=path)
    return it.ApplyPatchCall(call_id="", status="completed", operation=operation)


def _build_tool_search_call(arguments: Json, status: it.Status) -> it.ToolSearchCall:
    return it.ToolSearchCall(call_id="", status=status, execution="client", arguments=arguments)


_BUILDERS: Final[Mapping[str, Callable[[Json, it.Status], ClientItem]]] = {
    SHELL: _build_shell_call,
    LOCAL_SHELL: _build_local_shell_call,
    APPLY_PATCH: _build_apply_patch_call,
    TOOL_SEARCH: _build_tool_search_call,
    **{kind: partial(build_computer_call, kind) for kind in COMPUTER_KINDS},
}


def _read_commands(arguments: Json) -> list[str]:
    """Return the command lines; `command` in any form is a single one, and so is a list that invokes a shell."""
    if (value := arguments.get("commands")) is None:
        commands = [_to_command_line(arguments.get("command") or arguments.get("cmd") or "")]
    else:
        commands = [_to_command_line(value)] if isinstance(value, str) or _is_shell_invocation(value) else value
    directory = _read_directory(arguments)
    return [f"cd {shlex.quote(directory)} && {command}" for command in commands] if directory else commands


def _to_command_line(command: str | Sequence[str]) -> str:
    if isinstance(command, str):
        return command
    return command[2] if _is_shell_invocation(command) else shlex.join(command)


def _is_shell_invocation(command: Sequence[str]) -> bool:
    return len(command) == 3 and command[0] in _SHELLS and command[1] in _SHELL_FLAGS


def _read_directory(arguments: Json) -> str:
    return arguments.get("working_directory") or arguments.get("workdir") or ""


def _mark_added_lines(text: str) -> str:
    """Prefix each line of a new file with "+", unless every line already has it."""
    lines = text.removesuffix("\n").split("\n")
    return (
        text if not text or all(line.startswith("+") for line in lines) else "\n".join([f"+{line}" for line in lines])
    )


def _to_int(number: float | None) -> int | None:
    return None if number is None else int(number)


def _drop_absent(fields: Mapping[str, Any]) -> Json:
    return {name: value for name, value in fields.items() if value is not None and value is not UNSET}
