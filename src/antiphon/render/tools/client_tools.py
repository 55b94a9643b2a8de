"""Tools that the client runs and that models do not know: each is offered as a function, and its calls are mapped back.

    declared                                      offered        item of the call (render/tools/client_calls.py)
    shell, unless in a container                  shell          shell_call
    local_shell                                   local_shell    local_shell_call
    apply_patch                                   apply_patch    apply_patch_call
    tool_search with execution "client"           tool_search    tool_search_call
    computer, computer_use_preview                computer       computer_call (render/tools/computer.py)

A call is validated against `accepted_schema`: the offered schema plus common deviations of models. Every valid call can
be converted to an item.
"""

from collections.abc import Iterable
from typing import Any, Final

from msgspec import UNSET

from antiphon.core.prompt import Json
from antiphon.core.skills import OfferedSkill, describe_skills
from antiphon.protocol.types import tools as wire
from antiphon.render.tools.computer import COMPUTER_KINDS, accepted_computer_schema

SHELL, LOCAL_SHELL, APPLY_PATCH, TOOL_SEARCH = "shell", "local_shell", "apply_patch", "tool_search"
CLIENT_KINDS: Final = frozenset({SHELL, LOCAL_SHELL, APPLY_PATCH, TOOL_SEARCH}) | COMPUTER_KINDS
HOSTED_SHELL: Final = "hosted_shell"  # the kind of a shell in a container, which the server runs
CONTAINER_EXEC: Final = "container.exec"  # name of the shell in gpt-oss

ClientTool = wire.ShellTool | wire.LocalShellTool | wire.ApplyPatchTool | wire.ToolSearchTool

_MAX_DESCRIPTION_LENGTH: Final = 200  # characters of a searchable tool's or skill's description
_MAX_COMMANDS: Final = 16  # bounds the output of a model that is constrained to the schema
_MAX_COUNT: Final = 2**53  # milliseconds or characters

_SHELL_DESCRIPTION: Final = (
    "Runs commands in a shell on the user's machine, and gives back what each of them wrote and its exit code. "
    "Commands of one call may run at the same time: join those that need each other with &&."
)
_LOCAL_SHELL_DESCRIPTION: Final = (
    "Runs one command on the user's machine, and gives back what it wrote. The command is a list: a program and its "
    'arguments, such as ["ls", "-l"]. For pipes and other shell syntax call a shell: ["bash", "-lc", "ls | wc -l"].'
)
_APPLY_PATCH_DESCRIPTION: Final = (
    "Creates, changes or deletes one file on the user's machine. Call it once for each file."
)
_DIFF_DESCRIPTION: Final = (
    "create_file: all lines of the new file, each with + before it. "
    "update_file: one or more hunks, without line numbers. A hunk begins with a line @@, or @@ and a line of the file "
    "above the change, such as @@ def main():. Then come about three lines before the change, the change, and about "
    "three lines after it: a space before each line that stays, - before each one that goes, + before each new one. "
    'delete_file: "".'
)
_TOOL_SEARCH_DESCRIPTION: Final = "Finds more tools by what they do. Those that are found can be called afterwards."
_SEARCHABLE_HEADING: Final = "What can be found:"

_TEXT_LIST: Final[Json] = {"type": "array", "items": {"type": "string"}, "minItems": 1}


def _object_schema(required: list[str], **properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _text(description: str, **keywords: Any) -> Json:
    return {"type": "string", **keywords, "description": description}


def _count(description: str) -> Json:
    return {"type": "integer", "minimum": 0, "description": description}


_OFFERED_SCHEMAS: Final[dict[str, Json]] = {
    SHELL: _object_schema(
        ["commands"],
        commands={
            **_TEXT_LIST,
            "maxItems": _MAX_COMMANDS,
            "description": "The commands, each as it is written in a shell.",
        },
        timeout_ms=_count("Milliseconds that the commands may take."),
        max_output_length=_count("Characters of each command's output that are wanted."),
    ),
    LOCAL_SHELL: _object_schema(
        ["command"],
        command={**_TEXT_LIST, "description": "The command."},
        working_directory=_text("The folder to run it in."),
        env={
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "Environment variables for it.",
        },
        timeout_ms=_count("Milliseconds that it may take."),
        user=_text("The user to run it as."),
    ),
    APPLY_PATCH: _object_schema(
        ["type", "path", "diff"],
        type=_text("What is to be done with the file.", enum=["create_file", "update_file", "delete_file"]),
        path=_text("The path of the file.", minLength=1),
        diff=_text(_DIFF_DESCRIPTION),
    ),
    TOOL_SEARCH: _object_schema(["query"], query=_text("What the tools are wanted for, in a few words.")),
}

_NON_EMPTY_TEXT: Final[Json] = {"type": "string", "minLength": 1}
_COMMAND_VALUE: Final[Json] = {"anyOf": [_TEXT_LIST, _NON_EMPTY_TEXT]}
_NULLABLE_COUNT: Final[Json] = {"type": ["integer", "null"], "minimum": 0, "maximum": _MAX_COUNT}
_NULLABLE_TEXT: Final[Json] = {"type": ["string", "null"]}
_COMMAND_FIELDS: Final[Json] = {
    **dict.fromkeys(("commands", "command", "cmd"), _COMMAND_VALUE),
    **dict.fromkeys(("workdir", "working_directory"), _NULLABLE_TEXT),
    "timeout_ms": _NULLABLE_COUNT,
}
_OPERATION_SCHEMA: Final[Json] = {
    "type": "object",
    "properties": {**_OFFERED_SCHEMAS[APPLY_PATCH]["properties"], "diff": _NULLABLE_TEXT},
    "required": ["type", "path"],
    "if": {"properties": {"type": {"const": "update_file"}}},
    "then": {"required": ["diff"], "properties": {"diff": _NON_EMPTY_TEXT}},
}


def _command_schema(first: str, second: str, required: str, properties: Json) -> Json:
    """Require one of the fields only if the others are absent, so that a validation error names one problem."""
    inner = {"if": {"required": [second]}, "else": {"required": [required]}}
    return {
        "type": "object",
        "properties": {**_COMMAND_FIELDS, **properties},
        "if": {"required": [first]},
        "else": inner,
    }


_ACCEPTED_SCHEMAS: Final[dict[str, Json]] = {
    SHELL: _command_schema("command", "cmd", "commands", {"max_output_length": _NULLABLE_COUNT}),
    LOCAL_SHELL: _command_schema(
        "cmd",
        "commands",
        "command",
        {"env": {"type": ["object", "null"], "additionalProperties": {"type": "string"}}, "user": _NULLABLE_TEXT},
    ),
    APPLY_PATCH: {
        "if": {"type": "object", "required": ["operation"]},
        "then": {"properties": {"operation": _OPERATION_SCHEMA}},
        "else": _OPERATION_SCHEMA,
    },
}


def to_function_tool(tool: ClientTool) -> wire.FunctionTool | None:
    """Return the function for a client tool; None if the client does not run it or only programs may call it."""
    match tool:
        case wire.ShellTool(environment=environment):
            description = _SHELL_DESCRIPTION + _render_skills(environment)
            return _client_function(SHELL, description) if wire.may_models_call(tool) else None
        case wire.LocalShellTool():
            return _client_function(LOCAL_SHELL, _LOCAL_SHELL_DESCRIPTION)
        case wire.ApplyPatchTool() if wire.may_models_call(tool):
            return _client_function(APPLY_PATCH, _APPLY_PATCH_DESCRIPTION)
        case wire.ToolSearchTool(execution="client"):
            return _search_function(tool)
        case _:
            return None


def accepted_schema(kind: str, parameters: Json) -> Json | None:
    """Return the schema that a call of this kind must match; None if the kind is not a client tool."""
    if kind not in CLIENT_KINDS:
        return None
    if kind in COMPUTER_KINDS:
        return accepted_computer_schema(kind, parameters)
    return _ACCEPTED_SCHEMAS.get(kind, parameters)


def render_searchable(entries: Iterable[tuple[str, str]]) -> str:
    """List the searchable tools for the model: names and the first line of each description."""
    lines = [f"- {name}: {_first_line(description)}" if description else f"- {name}" for name, description in entries]
    return "\n".join(["", "", _SEARCHABLE_HEADING, *lines]) if lines else ""


def _client_function(name: str, description: str) -> wire.FunctionTool:
    return wire.FunctionTool(name=name, description=description, parameters=_OFFERED_SCHEMAS[name])


def _search_function(tool: wire.ToolSearchTool) -> wire.FunctionTool:
    """Build the search function, with the client's description and parameters if there are any."""
    parameters = {"type": "object", **tool.parameters} if tool.parameters else _OFFERED_SCHEMAS[TOOL_SEARCH]
    return wire.FunctionTool(
        name=TOOL_SEARCH, description=tool.description or _TOOL_SEARCH_DESCRIPTION, parameters=parameters
    )


def _render_skills(environment: object) -> str:
    skills = environment.skills if isinstance(environment, wire.LocalEnvironment) else UNSET
    if skills is UNSET or not skills:
        return ""
    fields = OfferedSkill.__struct_fields__
    entries = [[_first_line(str(skill.get(field, ""))) for field in fields] for skill in skills]
    return "\n\n" + describe_skills(OfferedSkill(*entry) for entry in entries)


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= _MAX_DESCRIPTION_LENGTH else f"{line[:_MAX_DESCRIPTION_LENGTH]}…"
