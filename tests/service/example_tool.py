"""A built-in tool for tests: a file search that always finds the same text."""

import asyncio
from collections.abc import Mapping, Sequence

from antiphon.core.deltas import ServerItem, ToolOutputContent
from antiphon.errors import AntiphonError
from antiphon.protocol.types.items import FileSearchCall, InputItem, OutputItem
from antiphon.protocol.types.tools import FileSearchTool, FunctionTool
from antiphon.protocol.types.tools import Tool as Declaration
from antiphon.tools.base import DeltaSink, ModelToolCall, ResponseTool, Rewriter, ToolResult

FILES = {"type": "file_search", "vector_store_ids": ["vs_1"]}


class ExampleTool:
    """The kind of tool. Clear `may_finish` to keep its calls running; `started` is set when a call starts."""

    kind = "file_search"
    types: tuple[type, ...] = (FileSearchTool,)
    harmony = ""
    recipients: Mapping[str, str] = {}

    def __init__(self, missing: str = "") -> None:
        self.missing = missing
        self.output = "It is on page 7."
        self.calls: list[ModelToolCall] = []
        self.started = asyncio.Event()
        self.may_finish = asyncio.Event()
        self.may_finish.set()

    def list_functions(self, declared: Declaration) -> tuple[FunctionTool, ...]:
        schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
        return (FunctionTool(name="find_in_files", parameters=schema),)

    def list_ignored(self, declared: Declaration) -> list[str]:
        return []

    def begin(self, declared: Declaration, tenant: str, include: frozenset[str]) -> ResponseTool:
        return ExampleResponseTool(self)

    async def close(self) -> None: ...


class ExampleResponseTool:
    max_seconds = 5.0

    def __init__(self, tool: ExampleTool) -> None:
        self._tool = tool

    def restore_output(self, output: ToolOutputContent) -> None: ...

    def start_item(self, call: ModelToolCall) -> ServerItem:
        return FileSearchCall(status="in_progress", queries=[call.arguments])

    async def run(self, call: ModelToolCall, emit: DeltaSink) -> ToolResult:
        self._tool.calls.append(call)
        self._tool.started.set()
        await self._tool.may_finish.wait()
        return ToolResult(
            item=FileSearchCall(status="completed", queries=[call.arguments]), model_output=self._tool.output
        )

    def make_failed_result(self, call: ModelToolCall, failure: AntiphonError) -> ToolResult:
        return ToolResult(item=FileSearchCall(status="failed", queries=[call.arguments]), model_output=failure.message)

    async def prepare(self, param: str, history: Sequence[InputItem]) -> None: ...

    async def recover(self, output: Sequence[OutputItem]) -> str:
        return ""

    def make_rewriter(self, is_last: bool) -> Rewriter | None:
        return None

    async def close(self) -> None: ...
