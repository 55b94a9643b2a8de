"""Values of `tool_choice`: a mode, or an object that names the tools."""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Literal

from msgspec import UNSET, UnsetType, defstruct

from antiphon.protocol.types.parts import Tagged


class FunctionChoice(Tagged, tag="function", kw_only=True):
    name: str


class CustomChoice(Tagged, tag="custom", kw_only=True):
    name: str


class McpChoice(Tagged, tag="mcp", kw_only=True):
    server_label: str
    name: str | UnsetType = UNSET


class HostedChoice(Tagged, kw_only=True):
    """Selects a built-in tool by its type alone."""


# These may be allowed, but not required.
class NamespaceChoice(Tagged, tag="namespace", kw_only=True):
    """All tools of a namespace."""

    name: str


class LocalShellChoice(HostedChoice, tag="local_shell", kw_only=True): ...


class ToolSearchChoice(HostedChoice, tag="tool_search", kw_only=True): ...


# Class names by tag; schemas of /openapi.json are named after the classes.
_HOSTED_CHOICES = {
    "file_search": "FileSearchChoice",
    "web_search": "WebSearchChoice",
    "web_search_2025_08_26": "WebSearchChoice20250826",
    "web_search_preview": "WebSearchPreviewChoice",
    "web_search_preview_2025_03_11": "WebSearchPreviewChoice20250311",
    "computer": "ComputerChoice",
    "computer_use": "ComputerUseChoice",
    "computer_use_preview": "ComputerUsePreviewChoice",
    "image_generation": "ImageGenerationChoice",
    "code_interpreter": "CodeInterpreterChoice",
    "shell": "ShellChoice",
    "apply_patch": "ApplyPatchChoice",
    "programmatic_tool_calling": "ProgrammaticChoice",
}

ToolChoiceMode = Literal["none", "auto", "required"]
_OneTool = FunctionChoice | CustomChoice | McpChoice | HostedChoice
if not TYPE_CHECKING:  # msgspec needs a class for each tag
    _OneTool = reduce(
        or_,
        [
            defstruct(name, [], bases=(HostedChoice,), tag=tag, kw_only=True, module=__name__)
            for tag, name in _HOSTED_CHOICES.items()
        ],
        FunctionChoice | CustomChoice | McpChoice,
    )
AllowedTool = _OneTool | NamespaceChoice | LocalShellChoice | ToolSearchChoice


class AllowedTools(Tagged, tag="allowed_tools", kw_only=True):
    mode: Literal["auto", "required"] = "auto"
    tools: list[AllowedTool]


ToolChoice = ToolChoiceMode | _OneTool | AllowedTools
