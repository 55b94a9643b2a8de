"""The code_interpreter tool on a tool server, which has gpt-oss's function `python(code)`.

Its text is the output of the code, and its PNG images are figures. There are no files.
"""

from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Final

from antiphon.core.data_urls import UnreadableMedia, read_base64
from antiphon.core.images import read_image_info
from antiphon.protocol.types.items import CodeInterpreterCall, InputItem
from antiphon.protocol.types.tools import AutoContainer, FunctionTool
from antiphon.protocol.types.tools import Tool as Declaration
from antiphon.sandbox.base import CodeEvent, CodeResult, Figure, PrintedText
from antiphon.tools.code_interpreter.tool import CodeInterpreter
from antiphon.tools.tool_server.server import Json, ServedTool, ServerContainer

_DESCRIPTION: Final = "Runs Python code and returns what it prints."


class ServedCodeInterpreter(ServedTool, CodeInterpreter):
    """The code_interpreter tool; see `BuiltInTool`."""

    server_name = "python"
    labels = frozenset({"python", "code_interpreter"})

    def list_functions(self, declared: Declaration) -> tuple[FunctionTool, ...]:
        return self.describe(super().list_functions(declared), _DESCRIPTION)

    def open_container(self, tenant: str, wanted: str | AutoContainer) -> "CodeSession":
        return CodeSession(self, tenant, wanted)


class CodeSession(ServerContainer):
    """Code of one response."""

    def list_sessions(self, items: Iterable[InputItem]) -> list[str]:
        return [item.container_id for item in items if isinstance(item, CodeInterpreterCall)]

    async def run(self, code: str, seconds: float | None = None) -> AsyncGenerator[CodeEvent, None]:
        for event in self.read_events(await self.call("python", {"code": code})):
            yield event

    def read_events(self, result: Json) -> Iterator[CodeEvent]:
        blocks = result.get("content") or []
        figures = [_read_png(block, self.server.settings.limits.image_bytes) for block in blocks]
        others = [block for block, png in zip(blocks, figures, strict=True) if not png]
        yield PrintedText("stdout", self.render({**result, "content": others}))
        yield from map(Figure, filter(None, figures))
        yield CodeResult(outcome="raised" if result.get("isError") else "completed")


def _read_png(block: Json, max_bytes: int) -> bytes:
    """Return the data of a PNG image; empty for other blocks."""
    if block.get("type") != "image" or not isinstance(data := block.get("data"), str):
        return b""
    try:
        body = read_base64(data, max_bytes).body
        return body if read_image_info(body).media_type == "image/png" else b""
    except UnreadableMedia:
        return b""
