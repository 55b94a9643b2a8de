"""Past calls and outputs of any kind, rendered as a function name with JSON arguments and an output.

Models know functions, so a past shell command or search is shown to them as a function call.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, assert_never

import msgspec
from msgspec import UNSET, Struct

from antiphon.core.history.history import ToolCallItem, ToolOutputItem
from antiphon.protocol.types.items import (
    ApplyPatchCall,
    ApplyPatchCallOutput,
    CodeInterpreterCall,
    CodeLogs,
    ComputerCall,
    ComputerCallOutput,
    CustomToolCall,
    CustomToolCallOutput,
    ExitOutcome,
    FileSearchCall,
    FileSearchResult,
    FindAction,
    FunctionCall,
    FunctionCallOutput,
    ImageGenerationCall,
    LocalShellCall,
    LocalShellCallOutput,
    McpCall,
    OpenPageAction,
    Program,
    ProgramOutput,
    SearchAction,
    ShellCall,
    ShellCallOutput,
    ShellOutput,
    ToolSearchCall,
    ToolSearchOutput,
    WebSearchCall,
)
from antiphon.protocol.types.parts import MessagePart
from antiphon.protocol.types.tools import CustomTool, FunctionTool, McpTool, NamespaceTool
from antiphon.render.tools.client_calls import client_call_arguments
from antiphon.render.tools.offered_tools import OfferedTools

ServerCall = FileSearchCall | WebSearchCall | CodeInterpreterCall | ImageGenerationCall | McpCall
OutputContent = str | Sequence[MessagePart]

TOOLS_FOUND: Final = "These tools can be called now:"
NO_TOOLS_FOUND: Final = "No tools were found."


class RenderedCall(Struct, frozen=True):
    """A past call in the form of a chat tool call."""

    id: str
    name: str
    arguments: str


def render_client_call(item: ToolCallItem, offered: OfferedTools, call_id: str) -> RenderedCall:
    """Render a call that a client answered; `call_id` is used for calls without an id."""
    match item:
        case FunctionCall():
            return RenderedCall(item.call_id, offered.find_name(item.name, item.namespace or None), item.arguments)
        case CustomToolCall():
            name = offered.find_name(item.name, item.namespace or None)
            return RenderedCall(item.call_id, name, _to_json({"input": item.input}))
        case ShellCall() | LocalShellCall() | ApplyPatchCall() | ToolSearchCall():
            kind = str(item.__struct_config__.tag).removesuffix("_call")
            return RenderedCall(
                item.call_id or call_id, offered.find_client_tool_name(kind), _to_json(client_call_arguments(item))
            )
        case ComputerCall():
            actions = item.action if item.actions is UNSET else {"actions": item.actions}
            return RenderedCall(item.call_id, "computer", _to_json({} if actions is UNSET else actions))
        case Program():
            return RenderedCall(item.call_id, "program", _to_json({"code": item.code}))
        case _:
            assert_never(item)


def render_call_output(item: ToolOutputItem, offered: OfferedTools) -> OutputContent:
    """Render the output that a client sent for a call."""
    match item:
        case FunctionCallOutput() | CustomToolCallOutput():
            return item.output
        case ShellCallOutput():
            return "\n".join([_render_shell_output(output) for output in item.output])
        case LocalShellCallOutput():
            return item.output
        case ApplyPatchCallOutput():
            return item.status if item.output is UNSET else f"{item.status}\n{item.output}"
        case ComputerCallOutput():
            return [item.output]
        case ToolSearchOutput():
            return "\n".join([TOOLS_FOUND, *_found_tool_names(item, offered)]) if item.tools else NO_TOOLS_FOUND
        case ProgramOutput():
            return item.result
        case _:
            assert_never(item)


def render_server_call(item: ServerCall, offered: OfferedTools, call_id: str) -> tuple[RenderedCall, str]:
    """Render a call that a server ran: one item holds the call and its output."""
    match item:
        case McpCall():
            outcome = item.output if item.error is None else _to_json(item.error)
            return RenderedCall(call_id, offered.find_name(item.name, item.server_label), item.arguments), outcome or ""
        case WebSearchCall():
            sources = item.action.sources if isinstance(item.action, SearchAction) else UNSET
            urls = [] if sources is UNSET else [source.url for source in sources]
            name, arguments = _web_search_call(item)
            return RenderedCall(call_id, name, _to_json(arguments)), "\n".join([item.status, *urls])
        case FileSearchCall():
            results = [_render_search_result(result) for result in item.results or ()]
            return RenderedCall(call_id, "file_search", _to_json({"queries": item.queries})), "\n\n".join(
                [item.status, *results]
            )
        case CodeInterpreterCall():
            outputs = [out.logs if isinstance(out, CodeLogs) else f"[image {out.url}]" for out in item.outputs or ()]
            return RenderedCall(call_id, "code_interpreter", _to_json({"code": item.code or ""})), "\n".join(outputs)
        case ImageGenerationCall():
            prompt = "" if item.revised_prompt is UNSET else item.revised_prompt
            text = "An image was made." if item.result else "No image was made."
            return RenderedCall(call_id, "image_generation", _to_json({"prompt": prompt})), text
        case _:
            assert_never(item)


def _web_search_call(item: WebSearchCall) -> tuple[str, dict[str, str]]:
    """Return the name and arguments of the web search function that corresponds to the action."""
    match item.action:
        case OpenPageAction(url=url):
            return "web_open", {} if url is UNSET else {"id": url}
        case FindAction(pattern=pattern):
            return "web_find", {"pattern": pattern}
        case SearchAction(query=query, queries=queries):
            text = query if query is not UNSET else "; ".join(queries or ())
            return "web_search", {"query": text}
        case _:
            return "web_search", {}


def _found_tool_names(item: ToolSearchOutput, offered: OfferedTools) -> Iterator[str]:
    """Yield the offered names of the tools that a search found; for an MCP server its label."""
    for tool in item.tools:
        if isinstance(tool, NamespaceTool):
            yield from [offered.find_name(inner.name, tool.name) for inner in tool.tools]
        elif isinstance(tool, McpTool):
            yield tool.server_label
        elif isinstance(tool, FunctionTool | CustomTool):
            yield offered.find_name(tool.name, None)
        else:
            yield offered.find_client_tool_name(str(tool.__struct_config__.tag))


def _render_shell_output(output: ShellOutput) -> str:
    outcome = f"exit code {output.outcome.exit_code}" if isinstance(output.outcome, ExitOutcome) else "timed out"
    return "\n".join([text for text in (output.stdout, output.stderr, f"[{outcome}]") if text])


def _render_search_result(result: FileSearchResult) -> str:
    name = "" if result.filename is UNSET else result.filename
    return f"[{name}]\n{'' if result.text is UNSET else result.text}"


def _to_json(value: Any) -> str:
    """Encode as models write JSON: with spaces and without needless escapes."""
    return json.dumps(msgspec.to_builtins(value), ensure_ascii=False)
