"""Applies tool_choice: which of the offered tools a model may or must call, in the form of chat completions."""

from collections.abc import Iterator, Mapping
from typing import assert_never

from msgspec import UNSET, Struct

from antiphon.core.prompt import Json
from antiphon.errors import AntiphonError, InvalidValue, McpFailed, UnsupportedParameter
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.tool_choice import AllowedTools, CustomChoice, FunctionChoice, HostedChoice, McpChoice
from antiphon.render.tools.offered_tools import OfferedTool, OfferedTools


class ChosenTools(Struct, frozen=True):
    """Tools after tool_choice was applied, and the choice as the engine receives it."""

    offered: OfferedTools
    choice: str | Json = "auto"


def apply_tool_choice(request: CreateResponse, offered: OfferedTools) -> ChosenTools:
    """Apply the request's tool_choice. With "none" no tool is offered, so the model cannot call any."""
    choice = request.tool_choice
    match choice:
        case "none":
            return ChosenTools(offered.restrict_to(()), "none")
        case "auto":
            return ChosenTools(offered)
        case "required":
            return _require_any(offered)
        case FunctionChoice(name=name) | CustomChoice(name=name):
            kind = "function" if isinstance(choice, FunctionChoice) else "custom"
            if found := _find_tools(offered.offers, kind, name):
                return _require_matching(offered, found[:1])
            raise _unknown_tool_error(offered, kind, name)
        case AllowedTools():
            narrowed = offered.restrict_to(_select_allowed(choice, offered))
            return _require_any(narrowed) if choice.mode == "required" else ChosenTools(narrowed)
        case McpChoice():
            return _choose_mcp(choice, offered)
        case HostedChoice():
            return _choose_hosted(str(choice.__struct_config__.tag), offered)
        case _:
            assert_never(choice)


def _require_any(offered: OfferedTools) -> ChosenTools:
    if offered.offers:
        return ChosenTools(offered, "required")
    if offered.unlisted:
        return ChosenTools(offered)  # the MCP servers have not listed their tools yet
    raise _no_tool_error(offered)


def _choose_mcp(choice: McpChoice, offered: OfferedTools) -> ChosenTools:
    label, name = choice.server_label, choice.name
    if label in offered.unlisted:
        return ChosenTools(offered)
    if matches := _find_tools(offered.offers, "mcp", None if name is UNSET else name, label):
        return _require_matching(offered, matches)
    if label in offered.failed:
        raise McpFailed(offered.failed[label])
    target = f"the MCP server {label!r}" if name is UNSET else f"the tool {name!r} of the MCP server {label!r}"
    raise InvalidValue(f"tool_choice names {target}, which offers no tool.", param="tool_choice")


def _choose_hosted(tag: str, offered: OfferedTools) -> ChosenTools:
    """Require a built-in tool, which may consist of several functions and be declared under a dated name."""
    if matches := _find_tools(offered.offers, tag):
        return _require_matching(offered, matches)
    hint = next(
        (text for declared, text in offered.setup_hints.items() if _tool_family(declared) == _tool_family(tag)), ""
    )
    raise UnsupportedParameter(
        f"tool_choice names a {tag} tool, which this server does not run. {hint}".rstrip(), param="tool_choice"
    )


def _unknown_tool_error(offered: OfferedTools, kind: str, name: str) -> InvalidValue:
    is_deferred = _find_tools(offered.deferred, kind, name)
    reason = "is deferred and not in a tool_search_output yet" if is_deferred else f"is not a declared {kind} tool"
    return InvalidValue(f"'tool_choice' names {name!r}, which {reason}.", param="tool_choice")


def _require_matching(offered: OfferedTools, names: list[str]) -> ChosenTools:
    if len(names) > 1:
        return ChosenTools(offered.restrict_to(names), "required")
    return ChosenTools(offered, {"type": "function", "function": {"name": names[0]}})


def _no_tool_error(offered: OfferedTools) -> AntiphonError:
    if offered.failed:
        return McpFailed(f"tool_choice requires a call, but no tool is available: {' '.join(offered.failed.values())}")
    if offered.ignored:
        kinds = ", ".join(offered.ignored)
        return UnsupportedParameter(
            f"tool_choice requires a call, but this server does not run: {kinds}.", param="tool_choice"
        )
    return InvalidValue("tool_choice requires a call, but there is no tool to call.", param="tool_choice")


def _select_allowed(choice: AllowedTools, offered: OfferedTools) -> Iterator[str]:
    for index, entry in enumerate(choice.tools):
        kind = str(entry.__struct_config__.tag)
        name = getattr(entry, "name", UNSET) or None
        label = getattr(entry, "server_label", None)
        found = _find_tools(offered.offers, kind, name, label)
        is_named = kind in ("namespace", "function", "custom")
        if is_named and _find_tools(offered.deferred, kind, name) and not (found and kind == "namespace"):
            continue  # it can be called only once a search has found it
        is_hosted = not is_named and kind != "mcp"  # a hosted tool that is not offered is not an error of tool_choice
        is_unlisted = kind == "mcp" and label in (*offered.unlisted, *offered.failed)
        if not (found or is_hosted or is_unlisted):
            target = name or label
            raise InvalidValue(f"{target!r} is not a declared {kind} tool.", param=f"tool_choice.tools[{index}]")
        yield from found


def _find_tools(
    offers: Mapping[str, OfferedTool], kind: str, name: object = None, server_label: object = None
) -> list[str]:
    """Return the offered names of the tools that tool_choice names.

    These are the tools of a namespace, those with this name in any namespace or with this offered name, those of an MCP
    server, or the functions of a built-in tool.
    """
    return [
        offered_name
        for offered_name, offer in offers.items()
        if _is_match(offered_name, offer, kind, name, server_label)
    ]


def _is_match(offered_name: str, offer: OfferedTool, kind: str, name: object, server_label: object) -> bool:
    match kind:
        case "namespace":
            return offer.namespace == name
        case "function" | "custom":
            return offer.kind == kind and name in (offer.name, offered_name)
        case "mcp":
            return offer.kind == kind and offer.namespace == server_label and name in (None, offer.name)
        case _:
            return _tool_family(offer.kind) == _tool_family(kind)


def _tool_family(tag: str) -> str:
    """Map dated and preview names of one tool, and the kinds of shells, to one kind."""
    families = [family for family in ("web_search", "computer") if tag.startswith(family)]
    return families[0] if families else tag.removeprefix("hosted_")
