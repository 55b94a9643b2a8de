"""A turn policy for tests: its tools run scripted handlers, and its model is the fake engine."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from antiphon.agent.engine_stream import ModelCall
from antiphon.agent.tool_loop import ClientCall, ClientOutput, PreludeStep, ToolLoop, TurnState
from antiphon.agent.tool_resolver import ToolCallResolver
from antiphon.core.deltas import ServerItem, ServerItemDone, ServerItemStarted, ToolOutputContent
from antiphon.engines.fake import FakeEngine
from antiphon.errors import AntiphonError
from antiphon.parsers.chat import ChatParser
from antiphon.protocol.types.items import (
    InputItem,
    McpCall,
    McpListTools,
    McpProtocolError,
    OutputItem,
    SearchAction,
    WebSearchCall,
)
from antiphon.render.tools.offered_tools import OfferedTool
from antiphon.tools.base import DeltaSink, ModelToolCall, Rewriter, ToolResult
from tests.agent.run_endings import GENERATION

OFFERS = {
    "srv__add": OfferedTool("mcp", "add", "srv"),
    "srv__drop": OfferedTool("mcp", "drop", "srv", approval=True),
    "look": OfferedTool("web_search", "look"),
    "mine": OfferedTool("function", "mine"),
}

ToolHandler = Callable[[ModelToolCall], Awaitable[ToolResult]]


async def run_add(call: ModelToolCall) -> ToolResult:
    return ToolResult(
        item=McpCall(server_label="srv", name=call.name, arguments=call.arguments, output="3", status="completed")
    )


class AddTool:
    """A tool of an MCP server; its arguments are emitted piece by piece."""

    max_seconds = 5.0

    def __init__(self, handler: ToolHandler = run_add) -> None:
        self.calls: list[ModelToolCall] = []
        self._handler = handler

    def start_item(self, call: ModelToolCall) -> ServerItem | None:
        return None

    def restore_output(self, output: ToolOutputContent) -> None:
        pass

    async def run(self, call: ModelToolCall, emit: DeltaSink) -> ToolResult:
        self.calls.append(call)
        return await self._handler(call)

    def make_failed_result(self, call: ModelToolCall, failure: AntiphonError) -> ToolResult:
        error = McpProtocolError(code=-32000, message=failure.message)
        item = McpCall(server_label="srv", name=call.name, arguments=call.arguments, status="failed", error=error)
        return ToolResult(item=item, model_output=failure.message)

    async def prepare(self, param: str, history: Sequence[InputItem]) -> None: ...

    async def recover(self, output: Sequence[OutputItem]) -> str:
        return ""

    def make_rewriter(self, is_last: bool) -> Rewriter | None:
        return None

    async def close(self) -> None: ...


class LookTool(AddTool):
    """A built-in tool whose arguments are not emitted piece by piece."""

    def start_item(self, call: ModelToolCall) -> ServerItem | None:
        return self._make_item("in_progress")

    async def run(self, call: ModelToolCall, emit: DeltaSink) -> ToolResult:
        self.calls.append(call)
        return ToolResult(item=self._make_item("completed"), model_output="the page")

    def make_failed_result(self, call: ModelToolCall, failure: AntiphonError) -> ToolResult:
        return ToolResult(item=self._make_item("failed"), model_output=failure.message)

    def _make_item(self, status: str) -> WebSearchCall:
        return WebSearchCall(status=status, action=SearchAction(query="q"))  # type: ignore[arg-type]  # a valid status


async def list_tools(context: ToolLoop) -> None:
    """A prelude step that emits an mcp_list_tools item."""
    key = context.new_key()
    await context.feed(ServerItemStarted(key, McpListTools(server_label="srv", tools=[])))
    await context.feed(ServerItemDone(key, McpListTools(server_label="srv", tools=[])))


class ScriptedTurnPolicy:
    """Records the calls of the run. `outputs`: results of the client's tools; None if the run does not wait for
    them.
    """

    def __init__(
        self, engine: FakeEngine, add_tool: AddTool | None = None, outputs: Sequence[ClientOutput] | None = None
    ) -> None:
        self._engine = engine
        self._outputs = outputs
        self.add_tool = add_tool or AddTool()
        self.look_tool = LookTool()
        self.fence = 0
        self.steps: list[PreludeStep] = []
        self.approved: list[ModelToolCall] = []
        self.approval_requests: list[ModelToolCall] = []
        self.consumed_approvals: list[ModelToolCall] = []
        self.restored_results: list[ToolOutputContent] = []
        self.states: list[TurnState] = []
        self.has_tokens = True
        self.closed = 0
        self.answered = False

    def make_first_call(self) -> ModelCall:
        return ModelCall(
            engine=self._engine,
            generation=GENERATION,
            parser=ChatParser(GENERATION.prompt),
            resolver=ToolCallResolver(OFFERS),
        )

    def get_tool(self, kind: str) -> AddTool:
        return {"mcp": self.add_tool, "web_search": self.look_tool}[kind]

    def recall(self, item: OutputItem, result: ToolOutputContent) -> None:
        self.restored_results.append(result)

    async def recover(self, output: Sequence[OutputItem]) -> dict[str, str]:
        return {"web_search": "Its window is still open."}

    def make_rewriters(self) -> tuple[Rewriter, ...]:
        return ()

    async def consume_approval(self, call: ModelToolCall) -> None:
        self.consumed_approvals.append(call)

    async def record_approval_request(self, call: ModelToolCall, output: Sequence[OutputItem]) -> None:
        self.approval_requests.append(call)

    async def wait_for_outputs(self, calls: Sequence[ClientCall]) -> Sequence[ClientOutput] | None:
        return self._outputs

    async def plan_turn(self, sofar: TurnState) -> ModelCall | None:
        self.states.append(sofar)
        if not self.has_tokens:
            return None
        offers = {} if sofar.is_last else OFFERS
        plan = self.make_first_call()
        return ModelCall(
            engine=plan.engine, generation=GENERATION, parser=plan.parser, resolver=ToolCallResolver(offers)
        )

    async def close(self) -> None:
        self.closed += 1


async def wait_forever(call: ModelToolCall) -> ToolResult:
    await asyncio.get_running_loop().create_future()
    raise AssertionError
