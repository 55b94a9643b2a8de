"""Calls and outputs of the past, of whatever kind, as a name with JSON arguments and what came back.

Models know functions; a shell command or a search that somebody ran is told to them as one.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, assert_never

import msgspec
from msgspec import UNSET, Struct

from antiphon.core.history.history import Call, Output
from antiphon.protocol.types.builtin_items import (
    CodeLogs,
    ExitOutcome,
    FileSearchResult,
    FindAction,
    OpenPageAction,
    SearchAction,
    ShellOutput,
)
from antiphon.protocol.types.items import (
    ApplyPatchCall,
    ApplyPatchCallOutput,
    CodeInterpreterCall,
    ComputerCall,
    ComputerCallOutput,
    CustomToolCall,
    CustomToolCallOutput,
    FileSearchCall,
    FunctionCall,
    FunctionCallOutput,
    ImageGenerationCall,
    LocalShellCall,
    LocalShellCallOutput,
    McpCall,
    MessagePart,
    Program,
    ProgramOutput,
    ShellCall,
    ShellCallOutput,
    ToolSearchCall,
    ToolSearchOutput,
    WebSearchCall,
)
from antiphon.protocol.types.tools import CustomTool, FunctionTool, McpTool, NamespaceTool
from antiphon.render.tools.client_calls import said
from antiphon.render.tools.declarations import Offered

ServerCall = FileSearchCall | WebSearchCall | CodeInterpreterCall | ImageGenerationCall | McpCall
Returned = str | Sequence[MessagePart]

FOUND: Final = "These tools can be called now:"
NOTHING_FOUND: Final = "No tools were found."


class Called(Struct, frozen=True):
    id: str
    name: str
    arguments: str


def called(item: Call, offered: Offered, call_id: str) -> Called:
    """A call that a client answered; `call_id` is for one that has no id of its own."""
    match item:
        case FunctionCall():
            return Called(item.call_id, offered.name_of(item.name, item.namespace or None), item.arguments)
        case CustomToolCall():
            name = offered.name_of(item.name, item.namespace or None)
            return Called(item.call_id, name, _json({"input": item.input}))
        case ShellCall() | LocalShellCall() | ApplyPatchCall() | ToolSearchCall():
            kind = str(item.__struct_config__.tag).removesuffix("_call")
            return Called(item.call_id or call_id, offered.own_name(kind), _json(said(item)))
        case ComputerCall():
            actions = item.action if item.actions is UNSET else {"actions": item.actions}
            return Called(item.call_id, "computer", _json({} if actions is UNSET else actions))
        case Program():
            return Called(item.call_id, "program", _json({"code": item.code}))
        case _:
            assert_never(item)


def returned(item: Output, offered: Offered) -> Returned:
    match item:
        case FunctionCallOutput() | CustomToolCallOutput():
            return item.output
        case ShellCallOutput():
            return "\n".join([_shell(output) for output in item.output])
        case LocalShellCallOutput():
            return item.output
        case ApplyPatchCallOutput():
            return item.status if item.output is UNSET else f"{item.status}\n{item.output}"
        case ComputerCallOutput():
            return [item.output]
        case ToolSearchOutput():
            return "\n".join([FOUND, *_names(item, offered)]) if item.tools else NOTHING_FOUND
        case ProgramOutput():
            return item.result
        case _:
            assert_never(item)


def ran(item: ServerCall, offered: Offered, call_id: str) -> tuple[Called, str]:
    """A call that a server ran: one item holds it and what came of it."""
    match item:
        case McpCall():
            outcome = item.output if item.error is None else _json(item.error)
            return Called(call_id, offered.name_of(item.name, item.server_label), item.arguments), outcome or ""
        case WebSearchCall():
            sources = item.action.sources if isinstance(item.action, SearchAction) else UNSET
            found = [] if sources is UNSET else [source.url for source in sources]
            name, arguments = _searched(item)
            return Called(call_id, name, _json(arguments)), "\n".join([item.status, *found])
        case FileSearchCall():
            results = [_found(result) for result in item.results or ()]
            return Called(call_id, "file_search", _json({"queries": item.queries})), "\n\n".join(
                [item.status, *results]
            )
        case CodeInterpreterCall():
            outputs = [out.logs if isinstance(out, CodeLogs) else f"[image {out.url}]" for out in item.outputs or ()]
            return Called(call_id, "code_interpreter", _json({"code": item.code or ""})), "\n".join(outputs)
        case ImageGenerationCall():
            prompt = "" if item.revised_prompt is UNSET else item.revised_prompt
            made = "An image was made." if item.result else "No image was made."
            return Called(call_id, "image_generation", _json({"prompt": prompt})), made
        case _:
            assert_never(item)


def _searched(item: WebSearchCall) -> tuple[str, dict[str, str]]:
    """As our own functions for it are called."""
    match item.action:
        case OpenPageAction(url=url):
            return "web_open", {} if url is UNSET else {"id": url}
        case FindAction(pattern=pattern):
            return "web_find", {"pattern": pattern}
        case SearchAction(query=query, queries=queries):
            asked = query if query is not UNSET else "; ".join(queries or ())
            return "web_search", {"query": asked}
        case _:
            return "web_search", {}


def _names(item: ToolSearchOutput, offered: Offered) -> Iterator[str]:
    """What was found, as the model may call it."""
    for tool in item.tools:
        if isinstance(tool, NamespaceTool):
            yield from [offered.name_of(inner.name, tool.name) for inner in tool.tools]
        elif isinstance(tool, McpTool):
            yield tool.server_label
        elif isinstance(tool, FunctionTool | CustomTool):
            yield offered.name_of(tool.name, None)
        else:
            yield offered.own_name(str(tool.__struct_config__.tag))


def _shell(output: ShellOutput) -> str:
    ended = f"exit code {output.outcome.exit_code}" if isinstance(output.outcome, ExitOutcome) else "timed out"
    return "\n".join([text for text in (output.stdout, output.stderr, f"[{ended}]") if text])


def _found(result: FileSearchResult) -> str:
    name = "" if result.filename is UNSET else result.filename
    return f"[{name}]\n{'' if result.text is UNSET else result.text}"


def _json(value: Any) -> str:
    """As models write it: with spaces, and without escapes that nobody needs."""
    return json.dumps(msgspec.to_builtins(value), ensure_ascii=False)
