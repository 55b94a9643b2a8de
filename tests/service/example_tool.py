"""A built-in tool of the tests' own: it finds the same in every file."""

import asyncio
from collections.abc import Mapping

from antiphon.core.deltas import Said, ServerItem
from antiphon.protocol.types.builtin_items import FileSearchCall
from antiphon.protocol.types.tools import FileSearchTool, FunctionTool
from antiphon.protocol.types.tools import Tool as Declaration
from antiphon.tools.base import Rewriter, Tell, Tool, Use, Used

FILES = {"type": "file_search", "vector_store_ids": ["vs_1"]}


class Shelf:
    """`may_end` is cleared by a test that wants its calls to last; `began` says that one has begun."""

    kind = "file_search"
    types: tuple[type, ...] = (FileSearchTool,)
    harmony = ""
    recipients: Mapping[str, str] = {}

    def __init__(self, missing: str = "") -> None:
        self.missing = missing
        self.says = "It is on page 7."
        self.uses: list[Use] = []
        self.began = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_end.set()

    def functions(self, declared: Declaration) -> tuple[FunctionTool, ...]:
        schema = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
        return (FunctionTool(name="find_in_files", parameters=schema),)

    def begin(self, declared: Declaration, tenant: str, include: frozenset[str]) -> Tool:
        return Reader(self)

    async def close(self) -> None: ...


class Reader:
    longest = 5.0

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def recall(self, said: Said) -> None: ...

    def opened(self, use: Use) -> ServerItem:
        return FileSearchCall(status="in_progress", queries=[use.arguments])

    async def run(self, use: Use, tell: Tell) -> Used:
        self._shelf.uses.append(use)
        self._shelf.began.set()
        await self._shelf.may_end.wait()
        return Used(item=FileSearchCall(status="completed", queries=[use.arguments]), said=self._shelf.says)

    def unrun(self, use: Use, why: str) -> Used:
        return Used(item=FileSearchCall(status="failed", queries=[use.arguments]), said=why)

    def rewriter(self) -> Rewriter | None:
        return None

    async def close(self) -> None: ...
