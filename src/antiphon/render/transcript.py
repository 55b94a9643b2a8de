"""Past calls and outputs of any kind as functions, and chat messages with a valid structure.

Models know functions, so a past shell command or search is shown to them as a function call: a name with JSON arguments
and an output. The calls of a turn and the text before them form one assistant message, directly followed by one output
for each call. For a model without tools, calls and outputs are rendered as text.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, assert_never

import msgspec
from msgspec import UNSET, Struct

from antiphon.core.history.history import ToolCallItem, ToolOutputItem
from antiphon.core.image_generation import describe_image
from antiphon.core.prompt import Json
from antiphon.core.shell_output import render_shell_output
from antiphon.protocol.types import items as it
from antiphon.protocol.types.parts import MessagePart
from antiphon.protocol.types.tools import CustomTool, FunctionTool, McpTool, NamespaceTool
from antiphon.render.template.tool_prompt import join_text, text_part
from antiphon.render.tools.client_calls import client_call_arguments
from antiphon.render.tools.offered_tools import OfferedTools

ServerCall = it.FileSearchCall | it.WebSearchCall | it.CodeInterpreterCall | it.ImageGenerationCall | it.McpCall
OutputContent = str | Sequence[MessagePart]

TOOLS_FOUND: Final = "These tools can be called now:"
CODE_OUTPUT_GONE: Final = "[The output of this code is not shown again.]"
FIGURE_SHOWN: Final = "[A figure was shown to the user.]"
NO_TOOLS_FOUND: Final = "No tools were found."


class RenderedCall(Struct, frozen=True):
    """A past call in the form of a chat tool call."""

    id: str
    name: str
    arguments: str


def render_client_call(item: ToolCallItem, offered: OfferedTools, call_id: str) -> RenderedCall:
    """Render a call that a client answered; `call_id` is used for calls without an id."""
    match item:
        case it.FunctionCall():
            return RenderedCall(item.call_id, offered.find_name(item.name, item.namespace or None), item.arguments)
        case it.CustomToolCall():
            name = offered.find_name(item.name, item.namespace or None)
            return RenderedCall(item.call_id, name, _to_json({"input": item.input}))
        case it.ShellCall() | it.LocalShellCall() | it.ApplyPatchCall() | it.ToolSearchCall() | it.ComputerCall():
            kind = str(item.__struct_config__.tag).removesuffix("_call")
            return RenderedCall(
                item.call_id or call_id, offered.find_client_tool_name(kind), _to_json(client_call_arguments(item))
            )
        case it.Program():
            return RenderedCall(item.call_id, "program", _to_json({"code": item.code}))
        case _:
            assert_never(item)


def render_call_output(item: ToolOutputItem, offered: OfferedTools) -> OutputContent:
    """Render the output that a client sent for a call."""
    match item:
        case it.FunctionCallOutput() | it.CustomToolCallOutput():
            return item.output
        case it.ShellCallOutput():
            return "\n".join(map(render_shell_output, item.output)) or item.status or ""
        case it.LocalShellCallOutput():
            return item.output
        case it.ApplyPatchCallOutput():
            return item.status if item.output is UNSET else f"{item.status}\n{item.output}"
        case it.ComputerCallOutput():
            return [item.output]
        case it.ToolSearchOutput():
            return "\n".join([TOOLS_FOUND, *_found_tool_names(item, offered)]) if item.tools else NO_TOOLS_FOUND
        case it.ProgramOutput():
            return item.result
        case _:
            assert_never(item)


def render_server_call(item: ServerCall, offered: OfferedTools, call_id: str) -> tuple[RenderedCall, str]:
    """Render a call that a server ran: one item holds the call and its output."""
    match item:
        case it.McpCall():
            outcome = item.output if item.error is None else _to_json(item.error)
            return RenderedCall(call_id, offered.find_name(item.name, item.server_label), item.arguments), outcome or ""
        case it.WebSearchCall():
            sources = item.action.sources if isinstance(item.action, it.SearchAction) else UNSET
            urls = [] if sources is UNSET else [source.url for source in sources]
            name, arguments = _web_search_call(item)
            return RenderedCall(call_id, name, _to_json(arguments)), "\n".join([item.status, *urls])
        case it.FileSearchCall():
            results = [_render_search_result(result) for result in item.results or ()]
            return RenderedCall(call_id, "file_search", _to_json({"queries": item.queries})), "\n\n".join(
                [item.status, *results]
            )
        case it.CodeInterpreterCall():
            outputs = [*map(_render_code_output, item.outputs or ())]
            call = RenderedCall(call_id, "code_interpreter", _to_json({"code": item.code or ""}))
            return call, CODE_OUTPUT_GONE if item.outputs is None else "\n".join(outputs) or item.status or ""
        case it.ImageGenerationCall():
            prompt = "" if item.revised_prompt is UNSET else item.revised_prompt
            return RenderedCall(call_id, "image_generation", _to_json({"prompt": prompt})), describe_image(item)
        case _:
            assert_never(item)


def _render_code_output(output: it.CodeLogs | it.CodeImage) -> str:
    if isinstance(output, it.CodeLogs):
        return output.logs
    return FIGURE_SHOWN if output.url.startswith("data:") else f"[image {output.url}]"


def _web_search_call(item: it.WebSearchCall) -> tuple[str, dict[str, str]]:
    """Return the name and arguments of the web search function that corresponds to the action."""
    match item.action:
        case it.OpenPageAction(url=url):
            return "web_open", {} if url is UNSET else {"id": url}
        case it.FindAction(pattern=pattern):
            return "web_find", {"pattern": pattern}
        case it.SearchAction(query=query, queries=queries):
            text = query if query is not UNSET else "; ".join(queries or ())
            return "web_search", {"query": text}
        case _:
            return "web_search", {}


def _found_tool_names(item: it.ToolSearchOutput, offered: OfferedTools) -> Iterator[str]:
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


def _render_search_result(result: it.FileSearchResult) -> str:
    name = "" if result.filename is UNSET else result.filename
    return f"[{name}]\n{'' if result.text is UNSET else result.text}"


def _to_json(value: Any) -> str:
    """Encode as models write JSON: with spaces and without needless escapes."""
    return json.dumps(msgspec.to_builtins(value), ensure_ascii=False)


Content = str | list[Json]


class Transcript:
    """Chat messages under construction."""

    def __init__(self, supports_tools: bool) -> None:
        self._supports_tools = supports_tools
        self._messages: list[Json] = []
        self._turn: _AssistantTurn | None = None

    def add_message(self, role: str, content: Content) -> None:
        self._end_turn()
        self._messages.append({"role": role, "content": content})

    def add_assistant(self, content: Content, reasoning: str, phase: str = "") -> None:
        """Open an assistant message; calls may follow."""
        self._end_turn()
        self._turn = _AssistantTurn(content, reasoning, phase)

    def add_call(self, call: RenderedCall, output: Content, reasoning: str) -> None:
        if self._turn is None or reasoning:
            self._end_turn()
            self._turn = _AssistantTurn(None, reasoning, "")
        self._turn.calls.append((call, output))

    def end_calls(self) -> None:
        """Close the calls of the current turn because outputs follow: a later call belongs to another turn."""
        if self._turn is not None and self._turn.calls:
            self._end_turn()

    def finish(self) -> list[Json]:
        self._end_turn()
        return self._messages

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._messages += self._turn.to_chat() if self._supports_tools else self._turn.to_text()
            self._turn = None


class _AssistantTurn(Struct):
    content: Content | None
    reasoning: str
    phase: str  # of the content, for models that support phases
    calls: list[tuple[RenderedCall, Content]] = []

    def to_chat(self) -> list[Json]:
        message = self._build_message(self.content)
        if not self.calls:
            return [message]
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call, _ in self.calls
        ]
        outputs: list[Json] = [
            {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": output}
            for call, output in self.calls
        ]
        return [message, *outputs]

    def to_text(self) -> list[Json]:
        if not self.calls:
            return [self._build_message(self.content)]
        lines = [f"[called {call.name} with {call.arguments}]" for call, _ in self.calls]
        parts: list[Json] = []
        for call, output in self.calls:
            parts += [text_part(f"[{call.name} returned]"), *_to_parts(output)]
        return [
            self._build_message(join_text([*_to_parts(self.content), *map(text_part, lines)], "\n")),
            {"role": "user", "content": join_text(parts, "\n")},
        ]

    def _build_message(self, content: Content | None) -> Json:
        message: Json = {"role": "assistant", "content": content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.phase:
            message["phase"] = self.phase
        return message


def _to_parts(content: Content | None) -> list[Json]:
    return [text_part(content)] if isinstance(content, str) else content or []
