"""Example tool items: final forms of each kind of server item, items that are added complete, and client tool calls."""

from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.core.deltas import AddedItem, ClientItem, ServerItem, StartedItem
from antiphon.protocol.types.items import (
    ApplyPatchCall,
    CodeInterpreterCall,
    CodeLogs,
    Compaction,
    ComputerCall,
    CustomToolCallOutput,
    DeleteFile,
    ExitOutcome,
    FileSearchCall,
    FileSearchResult,
    FindAction,
    FunctionCallOutput,
    ImageGenerationCall,
    LocalShellAction,
    LocalShellCall,
    McpApprovalRequest,
    McpCall,
    McpListedTool,
    McpListTools,
    McpProtocolError,
    McpToolError,
    OpenPageAction,
    SearchAction,
    ShellAction,
    ShellCall,
    ShellCallOutput,
    ShellOutput,
    Source,
    TimeoutOutcome,
    ToolSearchCall,
    UpdateFile,
    WebSearchCall,
)
from antiphon.protocol.types.parts import ClickAction, DragAction, InputImage, InputText, ScreenPoint, WaitAction
from antiphon.protocol.types.tools import ContainerReference, LocalEnvironment

_TOOL = McpListedTool(name="t", input_schema={"type": "object"}, annotations={"readOnlyHint": True})
_SEARCH_ACTION = SearchAction(query="q", queries=["q"], sources=[Source(url="https://a.example/")])
_TOOL_ERROR = McpToolError(content=[{"type": "text", "text": "no"}])
_PROTOCOL_ERROR = McpProtocolError(code=-32602, message="bad")

# An item may start as any of these and end as any other of its kind: its initial data may turn out to be wrong.
COMMAND_OUTPUTS = (
    ShellOutput(stdout="a.py\n", stderr="Hm.\n", outcome=ExitOutcome(exit_code=1)),
    ShellOutput(stdout="", stderr="", outcome=TimeoutOutcome()),
)
SERVER_ITEMS: dict[type, tuple[ServerItem, ...]] = {
    McpCall: (
        McpCall(server_label="s", name="t", arguments='{"a":1}', status="completed", output="done"),
        McpCall(
            server_label="s", name="t", arguments="", status="failed", error=_TOOL_ERROR, approval_request_id="mcpr_1"
        ),
        McpCall(server_label="other", name="u", arguments="{}", status="failed", error=_PROTOCOL_ERROR),
    ),
    McpListTools: (
        McpListTools(server_label="s", tools=[_TOOL]),
        McpListTools(server_label="s", tools=[]),
        McpListTools(server_label="s", tools=[], error="It does not answer."),
    ),
    WebSearchCall: (
        WebSearchCall(status="completed", action=_SEARCH_ACTION),
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
    ShellCallOutput: (
        ShellCallOutput(
            call_id="",
            status="completed",
            output=[*COMMAND_OUTPUTS],
        ),
        ShellCallOutput(call_id="", status="incomplete", output=[]),
    ),
    Compaction: (Compaction(encrypted_content="sealed"), Compaction(encrypted_content="")),
}
HOSTED_SHELL_CALL = ShellCall(
    call_id="",
    status="completed",
    action=ShellAction(commands=["ls", "sleep 9"], timeout_ms=1000, max_output_length=50),
    environment=ContainerReference(container_id="cntr_1"),
)


def get_start(item: ServerItem) -> StartedItem:
    """Return what an item starts with: the output of a shell starts with its call."""
    return HOSTED_SHELL_CALL if isinstance(item, ShellCallOutput) else item


ADDED_ITEMS: tuple[AddedItem, ...] = (
    McpApprovalRequest(server_label="s", name="t", arguments="{}"),
    FunctionCallOutput(call_id="call_1", output="42", status="completed"),
    FunctionCallOutput(
        call_id="call_2",
        output=[InputText(text="see"), InputImage(image_url="data:image/png;base64,aGk=")],
        status="completed",
    ),
    CustomToolCallOutput(call_id="call_3", output="ls", status="completed"),
)
CLIENT_ITEMS: tuple[ClientItem, ...] = (
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
    ComputerCall(
        call_id="", status="completed", actions=[ClickAction(button="left", x=1, y=2, keys=["CTRL"]), WaitAction()]
    ),
    ComputerCall(
        call_id="", status="completed", action=DragAction(path=[ScreenPoint(x=1, y=2), ScreenPoint(x=3, y=4)])
    ),
    ComputerCall(call_id="", status="incomplete"),
)


def make_mcp_call(item: ServerItem, label: str, name: str, arguments: str) -> McpCall:
    """Return the result with the server, name and arguments of the model's call."""
    assert isinstance(item, McpCall)
    return replace(item, server_label=label, name=name, arguments=arguments)


def drop_id(item: Any) -> Any:
    return replace(item, id=UNSET)
