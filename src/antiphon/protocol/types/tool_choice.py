"""Values of `tool_choice`: a mode, or an object that names the tools."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType


class ToolChoiceBase(Struct, kw_only=True, tag_field="type"):
    """Selects one or more tools to call."""


class FunctionChoice(ToolChoiceBase, tag="function", kw_only=True):
    name: str


class CustomChoice(ToolChoiceBase, tag="custom", kw_only=True):
    name: str


class McpChoice(ToolChoiceBase, tag="mcp", kw_only=True):
    server_label: str
    name: str | UnsetType = UNSET


class AllowedTools(ToolChoiceBase, tag="allowed_tools", kw_only=True):
    mode: Literal["auto", "required"] = "auto"
    tools: list[dict[str, Any]]


class HostedChoice(ToolChoiceBase, kw_only=True):
    """Selects a built-in tool by its type alone."""


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


ToolChoiceMode = Literal["none", "auto", "required"]
ToolChoice = (
    ToolChoiceMode
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
