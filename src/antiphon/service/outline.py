"""What is settled about a request whatever its input says, and so holds for every request of its kind (kinds.py)."""

from msgspec import Struct

from antiphon.core.emitter.fold import opening
from antiphon.engines.base import Capabilities
from antiphon.protocol.decoding.codec import Decoded
from antiphon.protocol.types.response import Response
from antiphon.service.aim import Aim
from antiphon.service.honesty import ignored
from antiphon.service.tiers import rank
from antiphon.service.warming import warms


class Outline(Struct, frozen=True):
    found: Capabilities  # what the engine said of itself; as long as that is all, the outline holds
    aim: Aim
    opening: Response  # to copy: its id, time and past are not those of any
    ignored: list[str]  # names of fields that change nothing
    rank: int  # in the queue of its model
    warms: bool  # nothing is to be said
    once: bool  # it takes one answer in one turn and nothing else, unless its items ask for more
    needs_store: bool  # for what it asks for
    obfuscates: bool  # what is told is to be padded


def outlined(decoded: Decoded, aim: Aim, found: Capabilities, *, stores: bool, runs: bool) -> Outline:
    """`stores`: the response is kept. `runs`: there is something to run or to wait for between its turns."""
    begins = opening(decoded.request, decoded.sent, "", aim.served.name, 0, store=stores)
    request, options = decoded.request, decoded.request.stream_options
    return Outline(
        found=found,
        aim=aim,
        opening=begins,
        ignored=ignored(request, decoded.sent),
        rank=rank(begins),
        warms=warms(request),
        once=not (runs or request.context_management or warms(request) or (request.n or 1) > 1),
        needs_store=bool(request.background or request.wait_for_tool_outputs),
        obfuscates=options is not None and options.include_obfuscation,
    )
