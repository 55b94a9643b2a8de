"""What the server can run for models, as long as it lives: its built-in tools, MCP servers, and what they need."""

from collections.abc import Sequence
from importlib import import_module
from itertools import chain
from typing import Any

from antiphon.config import Config
from antiphon.egress import Egress
from antiphon.errors import InvalidValue, UnsupportedParameter
from antiphon.protocol.types.items import AdditionalTools, InputItem, ToolSearchOutput
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.tools import McpTool
from antiphon.protocol.types.tools import Tool as Declaration
from antiphon.render.tools.declarations import Hosted
from antiphon.service.tool_loop.approvals import Approvals
from antiphon.service.tool_loop.tool_outputs import ToolOutputs
from antiphon.tools.base import BuiltIn
from antiphon.tools.mcp.client import Mcp
from antiphon.tools.registry import TOOLS

_DECLARING = (AdditionalTools, ToolSearchOutput)


class Toolkit:
    """Without anything it runs nothing, and says so."""

    def __init__(
        self,
        mcp: Mcp | None = None,
        built_in: Sequence[BuiltIn] = (),
        approvals: Approvals | None = None,
        outputs: ToolOutputs | None = None,
    ) -> None:
        self.mcp = mcp
        self.built_in = tuple(built_in)
        self.approvals = approvals
        self.outputs = outputs

    def hosting(self, declared: Declaration) -> Hosted | None:
        """Who of the built-in tools serves this declaration, and what a model is offered of it."""
        tool = self.serving(declared)
        if tool is None:
            return None
        if tool.missing:
            return Hosted(kind=tool.kind, missing=tool.missing)
        recipients = {name: recipient for recipient, name in tool.recipients.items()}
        return Hosted(kind=tool.kind, functions=tool.functions(declared), recipients=recipients)

    def serving(self, declared: Declaration) -> BuiltIn | None:
        return next((tool for tool in self.built_in if isinstance(declared, tool.types)), None)

    def settle(self, request: CreateResponse) -> None:
        """What is wrong with its MCP servers is refused here, without asking any of them. Says what is to be echoed."""
        labels: set[str] = set()
        for index, tool in enumerate(request.tools):
            if not isinstance(tool, McpTool):
                continue
            param = f"tools[{index}]"
            if self.mcp is None:
                raise UnsupportedParameter("This server calls no MCP servers.", param=param)
            if tool.server_label in labels:
                raise InvalidValue(
                    f"The MCP server {tool.server_label!r} is declared twice.", param=f"{param}.server_label"
                )
            labels.add(tool.server_label)
            self.mcp.check(tool, param)
            tool.require_approval = self.mcp.approval(tool)
            tool.server_description = self.mcp.description(tool)

    def runs(self, request: CreateResponse, earlier: Sequence[InputItem] = ()) -> bool:
        """Is anything of what it declares run here?"""
        return any(isinstance(tool, McpTool) for tool in request.tools) or bool(self.served(request, earlier))

    def served(self, request: CreateResponse, earlier: Sequence[InputItem]) -> dict[str, tuple[BuiltIn, Declaration]]:
        """The built-in tools that are declared and set up, by their kinds. Items of the history declare tools too."""
        if all(tool.missing for tool in self.built_in):
            return {}
        added = [item.tools for item in (*earlier, *request.input) if isinstance(item, _DECLARING)]
        found: dict[str, tuple[BuiltIn, Declaration]] = {}
        for declared in chain(request.tools, *added):
            serving = self.serving(declared)
            if serving is not None and not serving.missing:
                found.setdefault(serving.kind, (serving, declared))
        return found

    def awaits(self, request: CreateResponse, stored: bool) -> bool:
        """Is a response to this to wait for what its client's tools give?"""
        return self.outputs is not None and bool(request.tools) and self.outputs.awaits(request, stored)

    async def close(self) -> None:
        for tool in self.built_in:
            await tool.close()
        if self.mcp is not None:
            await self.mcp.close()


def built_in_tools(config: Config, egress: Egress) -> list[BuiltIn]:
    return [_load(path)(config, egress) for path in TOOLS.values()]


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
