"""tool_choice → which of the offered tools a model may or must call, in the shape of chat completions."""

from collections.abc import Iterator
from typing import assert_never

from msgspec import Struct

from antiphon.core.prompt import Json
from antiphon.errors import BadRequest, InvalidValue, UnsupportedParameter
from antiphon.protocol.request import CreateResponse
from antiphon.protocol.tool_choice import AllowedTools, CustomChoice, FunctionChoice, HostedChoice, McpChoice
from antiphon.render.tools import Offered


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
                raise InvalidValue(
                    f"tool_choice names {name!r}, which is no declared {kind} tool.", param="tool_choice"
                )
            return Chosen(offered, {"type": "function", "function": {"name": chosen}})
        case AllowedTools():
            narrowed = offered.only(_allowed(wanted, offered))
            return _required(narrowed) if wanted.mode == "required" else Chosen(narrowed)
        case McpChoice() | HostedChoice():
            kind = str(wanted.__struct_config__.tag)
            raise UnsupportedParameter(f"This server runs no {kind} tool, so it cannot be chosen.", param="tool_choice")
        case _:
            assert_never(wanted)


def _required(offered: Offered) -> Chosen:
    if offered.offers:
        return Chosen(offered, "required")
    raise _nothing_to_call(offered)


def _nothing_to_call(offered: Offered) -> BadRequest:
    if offered.ignored:
        kinds = ", ".join(offered.ignored)
        return UnsupportedParameter(
            f"tool_choice requires a call, and this server runs none of: {kinds}.", param="tool_choice"
        )
    return InvalidValue("tool_choice requires a call, and there is no tool to call.", param="tool_choice")


def _allowed(wanted: AllowedTools, offered: Offered) -> Iterator[str]:
    for index, entry in enumerate(wanted.tools):
        kind, name = entry.get("type", "function"), entry.get("name")
        if kind == "namespace":
            found = [offered_name for offered_name, offer in offered.offers.items() if offer.namespace == name]
        elif kind in ("function", "custom"):
            found = list(_named(offered, kind, name))
        else:
            continue  # a kind that is not offered anyway
        if not found:
            raise InvalidValue(f"{name!r} is no declared {kind} tool.", param=f"tool_choice.tools[{index}]")
        yield from found


def _named(offered: Offered, kind: str, name: object) -> Iterator[str]:
    """By its own name, wherever it is declared, or by the name it is offered under."""
    for plain, offer in offered.offers.items():
        if offer.kind == kind and name in (offer.name, plain):
            yield plain
