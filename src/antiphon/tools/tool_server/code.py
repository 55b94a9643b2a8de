"""The code_interpreter tool on a tool server, which has gpt-oss's function `python(code)`.

Its text is the output of the code, and its PNG images are figures. There are no files.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from antiphon.core.data_urls import UnreadableMedia, read_base64
from antiphon.core.deltas import Progress
from antiphon.core.images import read_image_info
from antiphon.protocol.types.items import CodeInterpreterCall, InputItem
from antiphon.protocol.types.tools import CodeInterpreterTool, FunctionTool
from antiphon.protocol.types.tools import Tool as Declaration
from antiphon.sandbox.base import CodeResult, Figure, PrintedText
from antiphon.tools.base import DeltaSink, ModelToolCall, Rewriter, ToolResult
from antiphon.tools.code_interpreter.citations import ContainerFileRewriter, WrittenFiles
from antiphon.tools.code_interpreter.response_code import CodeItems, parse_code
from antiphon.tools.code_interpreter.run_output import RunOutput
from antiphon.tools.code_interpreter.tool import CodeInterpreter
from antiphon.tools.tool_server.server import Json, ServedTool, ServerSession, ServerTool

_DESCRIPTION: Final = "Runs Python code and returns what it prints."


class ServedCodeInterpreter(ServedTool, CodeInterpreter):
    """The code_interpreter tool; see `BuiltInTool`."""

    server_name = "python"
    labels = frozenset({"python", "code_interpreter"})

    def list_functions(self, declared: Declaration) -> tuple[FunctionTool, ...]:
        return self.describe(super().list_functions(declared), _DESCRIPTION)

    def begin(  # type: ignore[override]  # both are tools of the protocol
        self, declared: Declaration, tenant: str, include: frozenset[str]
    ) -> "ServerCode":
        assert isinstance(declared, CodeInterpreterTool)
        return ServerCode(ServerSession(self, tenant), declared, include)


class ServerCode(ServerTool):
    """The code_interpreter tool within one response."""

    def __init__(self, session: ServerSession, declared: CodeInterpreterTool, include: frozenset[str]) -> None:
        self.session = session
        self._wanted = declared.container
        self._items = CodeItems(include)

    async def prepare(self, param: str, history: Sequence[InputItem]) -> None:
        self.session.refuse_container(self._wanted, f"{param}.container")
        self.session.use_latest(self.list_sessions(history))

    def list_sessions(self, items: Iterable[InputItem]) -> list[str]:
        return [item.container_id for item in items if isinstance(item, CodeInterpreterCall)]

    async def run(self, call: ModelToolCall, emit: DeltaSink) -> ToolResult:
        code = parse_code(call)
        async with self.session.in_order:
            await emit(Progress(call.key, "interpreting"))
            output = self._read_output(await self.session.call("python", {"code": code}))
        item = self._items.make(self.session.id, code, "completed", output.to_outputs())
        return ToolResult(item=item, model_output=output.to_model_output())

    def make_failed_result(self, call: ModelToolCall, reason: str) -> ToolResult:
        return self._items.make_failed(self.session.id, call, reason)

    def make_rewriter(self, is_last: bool) -> Rewriter | None:
        if not self.session.id:
            return None
        return ContainerFileRewriter(WrittenFiles(), self.session.id, self._items.lists_outputs)

    def _read_output(self, result: Json) -> RunOutput:
        limits, blocks = self.session.server.settings.limits, result.get("content") or []
        figures = [_read_png(block, limits.image_bytes) for block in blocks]
        others = [block for block, png in zip(blocks, figures, strict=True) if not png]
        output = RunOutput(limits)
        output.add(PrintedText("stdout", self.session.render({**result, "content": others})))
        for png in filter(None, figures):
            output.add(Figure(png))
        output.add(CodeResult(outcome="raised" if result.get("isError") else "completed"))
        return output


def _read_png(block: Json, max_bytes: int) -> bytes:
    """Return the data of a PNG image; empty for other blocks."""
    if block.get("type") != "image" or not isinstance(data := block.get("data"), str):
        return b""
    try:
        body = read_base64(data, max_bytes).body
        return body if read_image_info(body).media_type == "image/png" else b""
    except UnreadableMedia:
        return b""
