"""Calls of the client's own tools: what a model said → the item that the client expects, and back for the history.

What a model said fits the schema of `accepted` (render/tools/client_tools.py). Where that is wider than what was
offered, one
thing only can be meant: one text is one command, a list that calls a shell is that shell's command, the lines of a new
file that lack their marks get them.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, assert_never

from msgspec import UNSET

from antiphon.core.deltas import ClientItem
from antiphon.core.prompt import Json
from antiphon.core.truncated_json import cut_object, whole_object
from antiphon.errors import InvalidCall
from antiphon.protocol.schemas.schema_check import misfit
from antiphon.protocol.types.builtin_items import (
    CreateFile,
    DeleteFile,
    LocalShellAction,
    ShellAction,
    Status,
    UpdateFile,
)
from antiphon.protocol.types.items import ApplyPatchCall, LocalShellCall, ShellCall, ToolSearchCall
from antiphon.protocol.types.tools import LocalEnvironment
from antiphon.render.tools.client_tools import APPLY_PATCH, LOCAL_SHELL, SHELL, TOOL_SEARCH, accepted

_SHELLS: Final = frozenset({"bash", "sh", "zsh", "/bin/bash", "/bin/sh", "/bin/zsh", "/usr/bin/bash"})
_FLAGS: Final = frozenset({"-c", "-lc"})
_NOTHING: Final[Mapping[str, Json]] = {SHELL: {"commands": []}, LOCAL_SHELL: {"command": []}, TOOL_SEARCH: {}}


def made(kind: str, arguments: str) -> ClientItem:
    """The item of a call that fits. Its ids are not made yet."""
    said = whole_object(arguments)
    if said is None or misfit(accepted(kind, {}) or {}, said):
        raise InvalidCall(f"The model called {kind} wrongly.")  # nobody looked at it before
    return _MADE[kind](said, "completed")


def cut(kind: str, arguments: str) -> ClientItem | None:
    """The item of a call that broke off, with what of it is whole. A patch has no word for that: it is none."""
    if kind == APPLY_PATCH:
        return None
    said = cut_object(arguments) or {}
    schema = accepted(kind, {}) or {}
    return _MADE[kind](_NOTHING[kind] if misfit(schema, said) else said, "incomplete")


def said(item: ClientItem) -> Json:
    """The call, as the model was offered it."""
    match item:
        case ShellCall(action=action):
            bounds = {"timeout_ms": action.timeout_ms, "max_output_length": action.max_output_length}
            return {"commands": action.commands, **_given(bounds)}
        case LocalShellCall(action=action):
            rest = {name: getattr(action, name) for name in ("working_directory", "timeout_ms", "user")}
            return {"command": action.command, **_given({"env": action.env or None, **rest})}
        case ApplyPatchCall(operation=operation):
            diff = "" if isinstance(operation, DeleteFile) else operation.diff
            return {"type": operation.__struct_config__.tag, "path": operation.path, "diff": diff}
        case ToolSearchCall(arguments=arguments):
            return arguments if isinstance(arguments, dict) else {"query": arguments}
        case _:
            assert_never(item)


def _shell(said: Json, status: Status) -> ShellCall:
    action = ShellAction(
        commands=_commands(said),
        timeout_ms=_count(said.get("timeout_ms")),
        max_output_length=_count(said.get("max_output_length")),
    )
    return ShellCall(call_id="", status=status, action=action, environment=LocalEnvironment())


def _local_shell(said: Json, status: Status) -> LocalShellCall:
    command = said.get("command") or said.get("cmd") or said.get("commands") or []
    action = LocalShellAction(
        command=["bash", "-lc", command] if isinstance(command, str) else command,
        env=said.get("env") or {},
        timeout_ms=UNSET if (timeout := _count(said.get("timeout_ms"))) is None else timeout,
        user=said.get("user") or UNSET,
        working_directory=_where(said) or UNSET,
    )
    return LocalShellCall(call_id="", status=status, action=action)


def _apply_patch(said: Json, status: Status) -> ApplyPatchCall:
    told: Json = said.get("operation", said)
    path, diff = told["path"], told.get("diff") or ""
    operation: CreateFile | UpdateFile | DeleteFile
    match told["type"]:
        case "create_file":
            operation = CreateFile(path=path, diff=_marked(diff))
        case "update_file":
            operation = UpdateFile(path=path, diff=diff)
        case _:
            operation = DeleteFile(path=path)
    return ApplyPatchCall(call_id="", status="completed", operation=operation)


def _tool_search(said: Json, status: Status) -> ToolSearchCall:
    return ToolSearchCall(call_id="", status=status, execution="client", arguments=said)


_MADE: Final[Mapping[str, Callable[[Json, Status], ClientItem]]] = {
    SHELL: _shell,
    LOCAL_SHELL: _local_shell,
    APPLY_PATCH: _apply_patch,
    TOOL_SEARCH: _tool_search,
}


def _commands(said: Json) -> list[str]:
    """`command` is one, in whatever form; so is a list that calls a shell."""
    given = said.get("commands")
    if given is None:
        commands = [_one(said.get("command") or said.get("cmd") or "")]
    else:
        commands = [_one(given)] if isinstance(given, str) or _calls_shell(given) else given
    folder = _where(said)
    return [f"cd {shlex.quote(folder)} && {command}" for command in commands] if folder else commands


def _one(command: str | Sequence[str]) -> str:
    if isinstance(command, str):
        return command
    return command[2] if _calls_shell(command) else shlex.join(command)


def _calls_shell(command: Sequence[str]) -> bool:
    return len(command) == 3 and command[0] in _SHELLS and command[1] in _FLAGS


def _where(said: Json) -> str:
    return said.get("working_directory") or said.get("workdir") or ""


def _marked(text: str) -> str:
    """Each line of a new file begins with +; of a text of which one does not, none was meant to."""
    lines = text.removesuffix("\n").split("\n")
    return (
        text if not text or all(line.startswith("+") for line in lines) else "\n".join([f"+{line}" for line in lines])
    )


def _count(number: float | None) -> int | None:
    return None if number is None else int(number)


def _given(fields: Mapping[str, Any]) -> Json:
    return {name: value for name, value in fields.items() if value is not None and value is not UNSET}
