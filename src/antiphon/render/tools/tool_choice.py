"""Applies tool_choice: which of the offered tools a model may or must call, in the form of chat completions."""

from collections.abc import Iterator
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
            offered_name = next(_match_name(offered, kind, name), None)
            if offered_name is None:
                raise _unknown_tool_error(offered, kind, name)
            return _require_matching(offered, [offered_name])
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
    if matches := _match_mcp(offered, label, None if name is UNSET else name):
        return _require_matching(offered, matches)
    if label in offered.failed:
        raise McpFailed(offered.failed[label])
    target = f"the MCP server {label!r}" if name is UNSET else f"the tool {name!r} of the MCP server {label!r}"
    raise InvalidValue(f"tool_choice names {target}, which offers no tool.", param="tool_choice")


def _choose_hosted(tag: str, offered: OfferedTools) -> ChosenTools:
    """Require a built-in tool, which may consist of several functions and be declared under a dated name."""
    if matches := _match_kind(offered, tag):
        return _require_matching(offered, matches)
    hint = next(
        (text for declared, text in offered.setup_hints.items() if _tool_family(declared) == _tool_family(tag)), ""
    )
    raise UnsupportedParameter(
        f"tool_choice names a {tag} tool, which this server does not run. {hint}".rstrip(), param="tool_choice"
    )


def _unknown_tool_error(offered: OfferedTools, kind: str, name: str) -> InvalidValue:
    deferred = any(_is_named(offered_name, offer, kind, name) for offered_name, offer in offered.deferred.items())
    reason = "is deferred and not in a tool_search_output yet" if deferred else f"is not a declared {kind} tool"
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
        kind, name = str(entry.get("type", "function")), entry.get("name")
        if _is_deferred(offered, kind, name):
            continue
        if kind == "namespace":
            found = [offered_name for offered_name, offer in offered.offers.items() if offer.namespace == name]
        elif kind in ("function", "custom"):
            found = list(_match_name(offered, kind, name))
        elif kind == "mcp":
            found = _match_mcp(offered, entry.get("server_label"), name)
            if not found and entry.get("server_label") in (*offered.unlisted, *offered.failed):
                continue
        else:
            yield from _match_kind(offered, kind)
            continue  # a hosted tool that is not offered is not an error of tool_choice
        if not found:
            target = name or entry.get("server_label")
            raise InvalidValue(f"{target!r} is not a declared {kind} tool.", param=f"tool_choice.tools[{index}]")
        yield from found


def _match_mcp(offered: OfferedTools, label: object, name: object) -> list[str]:
    return [
        offered_name
        for offered_name, offer in offered.offers.items()
        if offer.kind == "mcp" and offer.namespace == label and name in (None, offer.name)
    ]


def _match_kind(offered: OfferedTools, tag: str) -> list[str]:
    return [offered_name for offered_name, offer in offered.offers.items() if offer.kind == _tool_family(tag)]


def _tool_family(tag: str) -> str:
    """Map dated and preview names of one tool to one kind."""
    return "web_search" if tag.startswith("web_search") else tag


def _match_name(offered: OfferedTools, kind: str, name: object) -> Iterator[str]:
    """Yield tools with this name, in any namespace, or with this offered name."""
    for offered_name, offer in offered.offers.items():
        if _is_named(offered_name, offer, kind, name):
            yield offered_name


def _is_named(offered_name: str, offer: OfferedTool, kind: str, name: object) -> bool:
    return offer.kind == kind and name in (offer.name, offered_name)


def _is_deferred(offered: OfferedTools, kind: str, name: object) -> bool:
    """Return whether the tool or all tools of the namespace can be called only once a search has found them."""
    is_namespace = kind == "namespace"
    if is_namespace and any(offer.namespace == name for offer in offered.offers.values()):
        return False
    deferred = offered.deferred.items()
    return any(
        offer.namespace == name if is_namespace else _is_named(offered_name, offer, kind, name)
        for offered_name, offer in deferred
    )
