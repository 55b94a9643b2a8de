"""Examples of what the server does for a model: ways in which each kind of item may end, and items that are put."""

from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.core.deltas import ClientItem, PutItem, ServerItem
from antiphon.protocol.types.builtin_items import (
    CodeLogs,
    DeleteFile,
    FileSearchResult,
    FindAction,
    LocalShellAction,
    McpListedTool,
    McpProtocolError,
    McpToolError,
    OpenPageAction,
    SearchAction,
    ShellAction,
    Source,
    UpdateFile,
)
from antiphon.protocol.types.items import (
    ApplyPatchCall,
    CodeInterpreterCall,
    Compaction,
    CustomToolCallOutput,
    FileSearchCall,
    FunctionCallOutput,
    ImageGenerationCall,
    InputImage,
    InputText,
    LocalShellCall,
    McpApprovalRequest,
    McpCall,
    McpListTools,
    ShellCall,
    ToolSearchCall,
    WebSearchCall,
)
from antiphon.protocol.types.tools import LocalEnvironment

_TOOL = McpListedTool(name="t", input_schema={"type": "object"}, annotations={"readOnlyHint": True})
_FOUND = SearchAction(query="q", queries=["q"], sources=[Source(url="https://a.example/")])
_NO = McpToolError(content=[{"type": "text", "text": "no"}])
_WRONG = McpProtocolError(code=-32602, message="bad")

# Any of them may be opened and end as any other of its kind: what a tool knows at first may turn out otherwise.
ENDS: dict[type, tuple[ServerItem, ...]] = {
    McpCall: (
        McpCall(server_label="s", name="t", arguments='{"a":1}', status="completed", output="done"),
        McpCall(server_label="s", name="t", arguments="", status="failed", error=_NO, approval_request_id="mcpr_1"),
        McpCall(server_label="other", name="u", arguments="{}", status="failed", error=_WRONG),
    ),
    McpListTools: (
        McpListTools(server_label="s", tools=[_TOOL]),
        McpListTools(server_label="s", tools=[]),
        McpListTools(server_label="s", tools=[], error="It does not answer."),
    ),
    WebSearchCall: (
        WebSearchCall(status="completed", action=_FOUND),
        WebSearchCall(status="failed", action=SearchAction(query="q", queries=["q"])),
        WebSearchCall(status="completed", action=OpenPageAction(url="https://a.example/")),
        WebSearchCall(status="completed", action=OpenPageAction()),
        WebSearchCall(status="completed", action=FindAction(url="https://a.example/", pattern="p")),
    ),
    FileSearchCall: (
        FileSearchCall(status="completed", queries=["q"], results=[FileSearchResult(file_id="file_1", score=0.5)]),
        FileSearchCall(status="failed", queries=["q", "r"]),
    ),
    CodeInterpreterCall: (
        CodeInterpreterCall(status="completed", container_id="c", code="1+1", outputs=[CodeLogs(logs="2")]),
        CodeInterpreterCall(status="failed", container_id="c", code="", outputs=[]),
        CodeInterpreterCall(status="completed", container_id="d"),
    ),
    ImageGenerationCall: (
        ImageGenerationCall(status="completed", result="aGk=", revised_prompt="a cat", size="1024x1024"),
        ImageGenerationCall(status="failed"),
    ),
    Compaction: (Compaction(encrypted_content="sealed"), Compaction(encrypted_content="")),
}
PUT: tuple[PutItem, ...] = (
    McpApprovalRequest(server_label="s", name="t", arguments="{}"),
    FunctionCallOutput(call_id="call_1", output="42", status="completed"),
    FunctionCallOutput(
        call_id="call_2",
        output=[InputText(text="see"), InputImage(image_url="data:image/png;base64,aGk=")],
        status="completed",
    ),
    CustomToolCallOutput(call_id="call_3", output="ls", status="completed"),
)
CLIENTS: tuple[ClientItem, ...] = (
    ShellCall(
        call_id="",
        status="completed",
        action=ShellAction(commands=["ls -l", "pwd"], timeout_ms=1000),
        environment=LocalEnvironment(),
    ),
    ShellCall(call_id="", status="incomplete", action=ShellAction(commands=[])),
    LocalShellCall(call_id="", status="completed", action=LocalShellAction(command=["ls"], env={"A": "b"})),
    ApplyPatchCall(call_id="", status="completed", operation=UpdateFile(path="a.py", diff="@@\n-a\n+b")),
    ApplyPatchCall(call_id="", status="completed", operation=DeleteFile(path="a.py")),
    ToolSearchCall(call_id="", status="completed", execution="client", arguments={"query": "maps"}),
)


def mcp_call(item: ServerItem, label: str, name: str, arguments: str) -> McpCall:
    """Of the call that the model made, whatever came of it."""
    assert isinstance(item, McpCall)
    return replace(item, server_label=label, name=name, arguments=arguments)


def without_id(item: Any) -> Any:
    return replace(item, id=UNSET)
