"""Tools that the client runs and that models do not know: each is offered as a function, and its call mapped back.

    declared                                      offered        the call becomes (render/tools/client_calls.py)
    shell, without an environment or local        shell          shell_call
    local_shell                                   local_shell    local_shell_call
    apply_patch                                   apply_patch    apply_patch_call
    tool_search with execution "client"           tool_search    tool_search_call

A call is held to `accepted`: what was offered, and what models are known to say instead. All that fits makes an item.
"""

from collections.abc import Iterable
from typing import Final

from msgspec import UNSET

from antiphon.core.prompt import Json
from antiphon.protocol.types.tools import (
    ApplyPatchTool,
    FunctionTool,
    LocalEnvironment,
    LocalShellTool,
    ShellTool,
    ToolSearchTool,
)

SHELL, LOCAL_SHELL, APPLY_PATCH, TOOL_SEARCH = "shell", "local_shell", "apply_patch", "tool_search"
CLIENT_KINDS: Final = frozenset({SHELL, LOCAL_SHELL, APPLY_PATCH, TOOL_SEARCH})
CONTAINER: Final = "container.exec"  # how gpt-oss calls a shell

ClientTool = ShellTool | LocalShellTool | ApplyPatchTool | ToolSearchTool

_LONGEST_ABOUT: Final = 200  # characters that a model is told of something it may search for
_MOST_COMMANDS: Final = 16  # a model that is held to the schema has to come to an end
_MOST: Final = 2**53  # milliseconds or characters

_SHELL: Final = (
    "Runs commands in a shell on the user's machine, and gives back what each of them wrote and its exit code. "
    "Commands of one call may run at the same time: join those that need each other with &&."
)
_LOCAL_SHELL: Final = (
    "Runs one command on the user's machine, and gives back what it wrote. The command is a list: a program and its "
    'arguments, such as ["ls", "-l"]. For pipes and other shell syntax call a shell: ["bash", "-lc", "ls | wc -l"].'
)
_APPLY_PATCH: Final = "Creates, changes or deletes one file on the user's machine. Call it once for each file."
_TYPE: Final = "What is to be done with the file."
_DIFF: Final = (
    "create_file: all lines of the new file, each with + before it. "
    "update_file: one or more hunks, without line numbers. A hunk begins with a line @@, or @@ and a line of the file "
    "above the change, such as @@ def main():. Then come about three lines before the change, the change, and about "
    "three lines after it: a space before each line that stays, - before each one that goes, + before each new one. "
    'delete_file: "".'
)
_TOOL_SEARCH: Final = "Finds more tools by what they do. Those that are found can be called afterwards."
_SEARCHED: Final = "What can be found:"
_SKILLS: Final = "Read the file SKILL.md in a skill's folder before you do what the skill is for. Skills:"

_BOUND: Final[Json] = {"type": "integer", "minimum": 0}
_OFFERED: Final[dict[str, Json]] = {
    SHELL: {
        "type": "object",
        "properties": {
            "commands": {
                "type": "array",
                "items": {"type": "string"},
                "minItems": 1,
                "maxItems": _MOST_COMMANDS,
                "description": "The commands, each as it is written in a shell.",
            },
            "timeout_ms": {**_BOUND, "description": "Milliseconds that the commands may take."},
            "max_output_length": {**_BOUND, "description": "Characters of each command's output that are wanted."},
        },
        "required": ["commands"],
        "additionalProperties": False,
    },
    LOCAL_SHELL: {
        "type": "object",
        "properties": {
            "command": {"type": "array", "items": {"type": "string"}, "minItems": 1, "description": "The command."},
            "working_directory": {"type": "string", "description": "The folder to run it in."},
            "env": {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "description": "Environment variables for it.",
            },
            "timeout_ms": {**_BOUND, "description": "Milliseconds that it may take."},
            "user": {"type": "string", "description": "The user to run it as."},
        },
        "required": ["command"],
        "additionalProperties": False,
    },
    APPLY_PATCH: {
        "type": "object",
        "properties": {
            "type": {
                "type": "string",
                "enum": ["create_file", "update_file", "delete_file"],
                "description": _TYPE,
            },
            "path": {"type": "string", "minLength": 1, "description": "The path of the file."},
            "diff": {"type": "string", "description": _DIFF},
        },
        "required": ["type", "path", "diff"],
        "additionalProperties": False,
    },
    TOOL_SEARCH: {
        "type": "object",
        "properties": {"query": {"type": "string", "description": "What the tools are wanted for, in a few words."}},
        "required": ["query"],
        "additionalProperties": False,
    },
}


def _either(field: str, other: Json) -> Json:
    """What must be said, if not under this name: so a complaint is about one thing."""
    return {"if": {"required": [field]}, "else": other}


_TEXT: Final[Json] = {"type": "string", "minLength": 1}
_SAID: Final[Json] = {"anyOf": [{"type": "array", "items": {"type": "string"}, "minItems": 1}, _TEXT]}
_COUNT: Final[Json] = {"type": ["integer", "null"], "minimum": 0, "maximum": _MOST}
_NAME: Final[Json] = {"type": ["string", "null"]}
_COMMANDS: Final[Json] = {"commands": _SAID, "command": _SAID, "cmd": _SAID}
_WHERE: Final[Json] = {"workdir": _NAME, "working_directory": _NAME}
_OPERATION: Final[Json] = {
    "type": "object",
    "properties": {**_OFFERED[APPLY_PATCH]["properties"], "diff": _NAME},
    "required": ["type", "path"],
    "if": {"properties": {"type": {"const": "update_file"}}},
    "then": {"required": ["diff"], "properties": {"diff": _TEXT}},
}
_ACCEPTED: Final[dict[str, Json]] = {
    SHELL: {
        "type": "object",
        "properties": {**_COMMANDS, **_WHERE, "timeout_ms": _COUNT, "max_output_length": _COUNT},
        **_either("command", _either("cmd", {"required": ["commands"]})),
    },
    LOCAL_SHELL: {
        "type": "object",
        "properties": {
            **_COMMANDS,
            **_WHERE,
            "env": {"type": ["object", "null"], "additionalProperties": {"type": "string"}},
            "timeout_ms": _COUNT,
            "user": _NAME,
        },
        **_either("cmd", _either("commands", {"required": ["command"]})),
    },
    APPLY_PATCH: {
        "if": {"type": "object", "required": ["operation"]},
        "then": {"properties": {"operation": _OPERATION}},
        "else": _OPERATION,
    },
}


def offered_function(tool: ClientTool) -> FunctionTool | None:
    """None if it is not for the client to run, or only for programs."""
    match tool:
        case ShellTool(environment=where, allowed_callers=callers):
            local = where is UNSET or isinstance(where, LocalEnvironment)
            return _function(SHELL, _SHELL + _skills(where)) if local and _direct(callers) else None
        case LocalShellTool():
            return _function(LOCAL_SHELL, _LOCAL_SHELL)
        case ApplyPatchTool(allowed_callers=callers):
            return _function(APPLY_PATCH, _APPLY_PATCH) if _direct(callers) else None
        case ToolSearchTool(execution="client"):
            return _search(tool)
        case _:
            return None


def accepted(kind: str, parameters: Json) -> Json | None:
    """The schema that a call of this kind must fit; None if it is no tool of the client's."""
    if kind not in CLIENT_KINDS:
        return None
    return _ACCEPTED.get(kind, parameters)


def searched(found: Iterable[tuple[str, str]]) -> str:
    """What a model is told that it may search for: names, and what each is about."""
    lines = [f"- {name}: {_first(about)}" if about else f"- {name}" for name, about in found]
    return "\n".join(["", "", _SEARCHED, *lines]) if lines else ""


def _function(name: str, about: str) -> FunctionTool:
    return FunctionTool(name=name, description=about, parameters=_OFFERED[name])


def _search(tool: ToolSearchTool) -> FunctionTool:
    """As the client describes it, if it does."""
    parameters = {"type": "object", **tool.parameters} if tool.parameters else _OFFERED[TOOL_SEARCH]
    return FunctionTool(name=TOOL_SEARCH, description=tool.description or _TOOL_SEARCH, parameters=parameters)


def _direct(callers: object) -> bool:
    return callers is UNSET or (isinstance(callers, list) and "direct" in callers)


def _skills(where: object) -> str:
    skills = where.skills if isinstance(where, LocalEnvironment) else UNSET
    if skills is UNSET or not skills:
        return ""
    told = [[_first(str(skill.get(field, ""))) for field in ("name", "path", "description")] for skill in skills]
    return "\n".join(["", "", _SKILLS, *[f"- {name} ({path}): {about}" for name, path, about in told]])


def _first(about: str) -> str:
    line = about.strip().partition("\n")[0]
    return line if len(line) <= _LONGEST_ABOUT else f"{line[:_LONGEST_ABOUT]}…"
