"""Tool declarations: how many, how they are named, and whether their schemas are fit."""

import re

from msgspec import UNSET

from antiphon.errors import InvalidValue
from antiphon.limits import Limits
from antiphon.protocol.schemas import Vetting
from antiphon.protocol.tools import CustomTool, FunctionTool, GrammarInput, Json, NamespaceTool, Tool, ToolSearchTool

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")


class ToolChecks:
    """The tools of one list, those inside of namespaces included."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._schemas = Vetting(limits)
        self._count = 0

    def check(self, tools: list[Tool], param: str) -> None:
        self._add(len(tools), param)
        for index, tool in enumerate(tools):
            self._check(tool, f"{param}[{index}]")

    def _add(self, count: int, param: str) -> None:
        self._count += count
        if self._count > self._limits.tools:
            raise InvalidValue(
                f"'{param}' declares more than {self._limits.tools} tools, counting those in namespaces.", param=param
            )

    def _check(self, tool: Tool, param: str) -> None:
        if isinstance(tool, FunctionTool):
            _check_name(tool.name, param)
            if tool.parameters is not None:
                self._schemas.vet(tool.parameters, f"{param}.parameters")
        elif isinstance(tool, CustomTool):
            _check_name(tool.name, param)
            if isinstance(tool.format, GrammarInput):
                self._check_grammar(tool.format, f"{param}.format.definition")
        elif isinstance(tool, ToolSearchTool) and tool.parameters is not UNSET:
            self._schemas.vet(tool.parameters, f"{param}.parameters")
            _check_object(tool.parameters, f"{param}.parameters")
        elif isinstance(tool, NamespaceTool):
            _check_name(tool.name, param)
            self._add(len(tool.tools), f"{param}.tools")
            for index, held in enumerate(tool.tools):
                self._check(held, f"{param}.tools[{index}]")

    def _check_grammar(self, grammar: GrammarInput, param: str) -> None:
        if grammar.syntax == "regex":
            self._schemas.vet_pattern(grammar.definition, param)
        elif len(grammar.definition) > self._limits.schema_bytes:
            raise InvalidValue(f"'{param}' has more than {self._limits.schema_bytes} characters.", param=param)


def _check_object(schema: Json, param: str) -> None:
    """A search is called with an object, and the client gets that."""
    if schema.get("type", "object") != "object":
        raise InvalidValue(f"'{param}' must be the schema of an object.", param=param)


def _check_name(name: str, param: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidValue(
            f"Invalid value for '{param}.name': {name[:64]!r}. A name has 1 to 128 letters, digits, '_' and '-'.",
            param=f"{param}.name",
        )
