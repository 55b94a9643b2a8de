"""How a client steers which tool is called: a word, or one of these."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType


class Choice(Struct, kw_only=True, tag_field="type"):
    """One tool, or some tools, to be called."""


class FunctionChoice(Choice, tag="function", kw_only=True):
    name: str


class CustomChoice(Choice, tag="custom", kw_only=True):
    name: str


class McpChoice(Choice, tag="mcp", kw_only=True):
    server_label: str
    name: str | UnsetType = UNSET


class AllowedTools(Choice, tag="allowed_tools", kw_only=True):
    mode: Literal["auto", "required"] = "auto"
    tools: list[dict[str, Any]]


class HostedChoice(Choice, kw_only=True):
    """A built-in tool, named by its type alone."""


class FileSearchChoice(HostedChoice, tag="file_search", kw_only=True):
    pass


class WebSearchChoice(HostedChoice, tag="web_search", kw_only=True):
    pass


class WebSearchChoice20250826(HostedChoice, tag="web_search_2025_08_26", kw_only=True):
    pass


class WebSearchPreviewChoice(HostedChoice, tag="web_search_preview", kw_only=True):
    pass


class WebSearchPreviewChoice20250311(HostedChoice, tag="web_search_preview_2025_03_11", kw_only=True):
    pass


class ComputerChoice(HostedChoice, tag="computer", kw_only=True):
    pass


class ComputerUseChoice(HostedChoice, tag="computer_use", kw_only=True):
    pass


class ComputerUsePreviewChoice(HostedChoice, tag="computer_use_preview", kw_only=True):
    pass


class ImageGenerationChoice(HostedChoice, tag="image_generation", kw_only=True):
    pass


class CodeInterpreterChoice(HostedChoice, tag="code_interpreter", kw_only=True):
    pass


class ShellChoice(HostedChoice, tag="shell", kw_only=True):
    pass


class ApplyPatchChoice(HostedChoice, tag="apply_patch", kw_only=True):
    pass


class ProgrammaticChoice(HostedChoice, tag="programmatic_tool_calling", kw_only=True):
    pass


ToolChoiceWord = Literal["none", "auto", "required"]
ToolChoice = (
    ToolChoiceWord
    | FunctionChoice
    | CustomChoice
    | McpChoice
    | AllowedTools
    | FileSearchChoice
    | WebSearchChoice
    | WebSearchChoice20250826
    | WebSearchPreviewChoice
    | WebSearchPreviewChoice20250311
    | ComputerChoice
    | ComputerUseChoice
    | ComputerUsePreviewChoice
    | ImageGenerationChoice
    | CodeInterpreterChoice
    | ShellChoice
    | ApplyPatchChoice
    | ProgrammaticChoice
)
