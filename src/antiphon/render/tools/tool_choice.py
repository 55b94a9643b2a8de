"""tool_choice → which of the offered tools a model may or must call, in the shape of chat completions."""

from collections.abc import Iterator
from typing import assert_never

from msgspec import UNSET, Struct

from antiphon.core.prompt import Json
from antiphon.errors import AntiphonError, InvalidValue, McpFailed, UnsupportedParameter
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.tool_choice import AllowedTools, CustomChoice, FunctionChoice, HostedChoice, McpChoice
from antiphon.render.tools.declarations import Offer, Offered


class Chosen(Struct, frozen=True):
    offered: Offered
    choice: str | Json = "auto"


def choose(request: CreateResponse, offered: Offered) -> Chosen:
    """With "none" nothing is offered: a model cannot call what it does not know."""
    wanted = request.tool_choice
    match wanted:
        case "none":
            return Chosen(offered.only(()), "none")
        case "auto":
            return Chosen(offered)
        case "required":
            return _required(offered)
        case FunctionChoice(name=name) | CustomChoice(name=name):
            kind = "function" if isinstance(wanted, FunctionChoice) else "custom"
            chosen = next(_named(offered, kind, name), None)
            if chosen is None:
                raise _unnamed(offered, kind, name)
            return _one(offered, chosen)
        case AllowedTools():
            narrowed = offered.only(_allowed(wanted, offered))
            return _required(narrowed) if wanted.mode == "required" else Chosen(narrowed)
        case McpChoice():
            return _of_server(wanted, offered)
        case HostedChoice():
            return _hosted(str(wanted.__struct_config__.tag), offered)
        case _:
            assert_never(wanted)


def _required(offered: Offered) -> Chosen:
    if offered.offers:
        return Chosen(offered, "required")
    if offered.unlisted:
        return Chosen(offered)  # until it is known what there is to call
    raise _nothing_to_call(offered)


def _of_server(wanted: McpChoice, offered: Offered) -> Chosen:
    label, name = wanted.server_label, wanted.name
    if label in offered.unlisted:
        return Chosen(offered)
    own = {plain: offer for plain, offer in offered.offers.items() if offer.kind == "mcp" and offer.namespace == label}
    if name is not UNSET:
        own = {plain: offer for plain, offer in own.items() if offer.name == name}
    if not own and label in offered.failed:
        raise McpFailed(offered.failed[label])
    if not own:
        what = f"the MCP server {label!r}" if name is UNSET else f"the tool {name!r} of the MCP server {label!r}"
        raise InvalidValue(f"tool_choice names {what}, which offers nothing here.", param="tool_choice")
    return Chosen(offered.only(own), "required") if len(own) > 1 else _one(offered, next(iter(own)))


def _hosted(tag: str, offered: Offered) -> Chosen:
    """A built-in tool may be several functions. Its declared name may be a dated one."""
    own = _of_kind(offered, tag)
    if own:
        return Chosen(offered.only(own), "required") if len(own) > 1 else _one(offered, own[0])
    how = next((text for declared, text in offered.missing.items() if _family(declared) == _family(tag)), "")
    raise UnsupportedParameter(
        f"This server runs no {tag} tool, so it cannot be chosen. {how}".rstrip(), param="tool_choice"
    )


def _unnamed(offered: Offered, kind: str, name: str) -> InvalidValue:
    deferred = any(_is_named(plain, offer, kind, name) for plain, offer in offered.deferred.items())
    why = "is deferred, and no tool_search_output has it yet" if deferred else f"is no declared {kind} tool"
    return InvalidValue(f"'tool_choice' names {name!r}, which {why}.", param="tool_choice")


def _one(offered: Offered, plain: str) -> Chosen:
    return Chosen(offered, {"type": "function", "function": {"name": plain}})


def _nothing_to_call(offered: Offered) -> AntiphonError:
    if offered.failed:
        return McpFailed(f"tool_choice requires a call, and there is none to make: {' '.join(offered.failed.values())}")
    if offered.ignored:
        kinds = ", ".join(offered.ignored)
        return UnsupportedParameter(
            f"tool_choice requires a call, and this server runs none of: {kinds}.", param="tool_choice"
        )
    return InvalidValue("tool_choice requires a call, and there is no tool to call.", param="tool_choice")


def _allowed(wanted: AllowedTools, offered: Offered) -> Iterator[str]:
    for index, entry in enumerate(wanted.tools):
        kind, name = str(entry.get("type", "function")), entry.get("name")
        if _waits(offered, kind, name):
            continue
        if kind == "namespace":
            found = [offered_name for offered_name, offer in offered.offers.items() if offer.namespace == name]
        elif kind in ("function", "custom"):
            found = list(_named(offered, kind, name))
        elif kind == "mcp":
            found = _of_label(offered, entry)
            if not found and entry.get("server_label") in (*offered.unlisted, *offered.failed):
                continue
        else:
            yield from _of_kind(offered, kind)
            continue  # if it is not offered anyway, that is no fault of the choice
        if not found:
            what = name or entry.get("server_label")
            raise InvalidValue(f"{what!r} is no declared {kind} tool.", param=f"tool_choice.tools[{index}]")
        yield from found


def _of_label(offered: Offered, entry: Json) -> list[str]:
    label, name = entry.get("server_label"), entry.get("name")
    return [
        plain
        for plain, offer in offered.offers.items()
        if offer.kind == "mcp" and offer.namespace == label and name in (None, offer.name)
    ]


def _of_kind(offered: Offered, tag: str) -> list[str]:
    return [plain for plain, offer in offered.offers.items() if offer.kind == _family(tag)]


def _family(tag: str) -> str:
    """Of a declared type: dated and preview names of one tool are one."""
    return "web_search" if tag.startswith("web_search") else tag


def _named(offered: Offered, kind: str, name: object) -> Iterator[str]:
    """By its own name, wherever it is declared, or by the name it is offered under."""
    for plain, offer in offered.offers.items():
        if _is_named(plain, offer, kind, name):
            yield plain


def _is_named(plain: str, offer: Offer, kind: str, name: object) -> bool:
    return offer.kind == kind and name in (offer.name, plain)


def _waits(offered: Offered, kind: str, name: object) -> bool:
    """Is it among what may be called once a search has found it, and nothing of it before?"""
    space = kind == "namespace"
    if space and any(offer.namespace == name for offer in offered.offers.values()):
        return False
    deferred = offered.deferred.items()
    return any(offer.namespace == name if space else _is_named(plain, offer, kind, name) for plain, offer in deferred)
