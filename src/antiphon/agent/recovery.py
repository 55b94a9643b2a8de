"""What a server that died left of a response, if it can be gone on with: it stopped between two turns of the model.

What a model had said in part was heard by somebody, perhaps, and cannot be said again: then there is nothing to go on
with. What tools had done is done; what they were doing is given up.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from antiphon.core.deltas import (
    CallDelta,
    CallDone,
    CallStarted,
    ClientItem,
    Opened,
    Put,
    Ran,
    Said,
    ServerItem,
    Stage,
    Turned,
)
from antiphon.core.emitter.event_log import Began, Entry
from antiphon.core.prompt import Counts
from antiphon.protocol.types.builtin_items import McpProtocolError
from antiphon.protocol.types.items import Compaction, McpApprovalRequest, McpCall, McpListTools
from antiphon.tools.base import Used

_GIVEN_UP = -32000  # JSON-RPC's code for what went wrong on a server


class Remains(Struct, frozen=True, kw_only=True):
    keys: int = 0
    calls: int = 0
    turns: tuple[Counts, ...] = ()
    said: Mapping[int, Said] = {}
    open: Mapping[int, ServerItem] = {}  # what was being done
    asked: bool = False  # a client was asked to allow something
    allowed: bool = False  # what a client had allowed was begun


def remains(entries: Iterable[Entry]) -> Remains | None:
    """None: it stopped in the middle of a turn, or something that cannot be given up was under way."""
    found = _Reading()
    for entry in entries:
        found.take(entry)
    if found.speaking or any(isinstance(item, Compaction) for item in found.open.values()):
        return None
    return Remains(
        keys=found.keys,
        calls=found.calls,
        turns=tuple(found.turns),
        said=found.said,
        open={key: found.whole(key, item) for key, item in found.open.items()},
        asked=found.asked,
        allowed=found.allowed,
    )


def given_up(item: ServerItem, why: str) -> Used:
    """How something looks of which nobody knows what came of it."""
    match item:
        case McpListTools():
            return Used(item=replace(item, tools=[], error=why))
        case McpCall():
            error = McpProtocolError(code=_GIVEN_UP, message=why)
            return Used(item=replace(item, status="failed", error=error), said=why)
        case Compaction():
            raise AssertionError("a summary that was not made cannot be done without")
        case _:
            return Used(item=replace(item, status="failed"), said=why)


class _Reading:
    def __init__(self) -> None:
        self.keys = self.calls = 0
        self.turns: list[Counts] = []
        self.said: dict[int, Said] = {}
        self.open: dict[int, ServerItem] = {}
        self.asked = self.allowed = False
        self.speaking = False  # the model, since the last turn ended
        self._arguments: dict[int, list[str]] = {}

    def take(self, entry: Entry) -> None:
        self.keys = max(self.keys, getattr(entry, "key", -1) + 1)
        match entry:
            case Began() | Stage() | CallDone():
                return
            case Turned(counts=counts):
                self._turned(counts)
            case Opened(key=key, item=item):
                self.open[key] = item
                self.calls += not isinstance(item, McpListTools | Compaction)
            case Ran(key=key, said=said):
                self._ran(key, said)
            case Put(item=item):
                self.asked = self.asked or isinstance(item, McpApprovalRequest)
                self.speaking = self.speaking or isinstance(item, ClientItem)
            case CallStarted(kind="mcp"):
                self._called(entry)
            case CallDelta(key=key, text=text) if key in self._arguments:
                self._arguments[key].append(text)
            case _:
                self.speaking = True

    def whole(self, key: int, item: ServerItem) -> ServerItem:
        return replace(item, arguments="".join(self._arguments[key])) if isinstance(item, McpCall) else item

    def _turned(self, counts: Counts | None) -> None:
        self.speaking, self.asked = False, False
        if counts is not None:
            self.turns.append(counts)

    def _called(self, call: CallStarted) -> None:
        """By the model, or by the server because a client has allowed it."""
        self.open[call.key] = McpCall(
            server_label=call.namespace or "", name=call.name, arguments="", approval_request_id=call.approval
        )
        self._arguments[call.key] = []
        self.calls += 1
        self.speaking = self.speaking or call.approval is None
        self.allowed = self.allowed or call.approval is not None

    def _ran(self, key: int, said: Said) -> None:
        self.open.pop(key, None)
        if said:
            self.said[key] = said
