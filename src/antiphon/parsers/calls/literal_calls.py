"""What all families share that write calls as literals: bounds, and the quick way through long strings."""

from collections.abc import Mapping, Sequence

from antiphon.core.deltas import CallDelta
from antiphon.core.prompt import Json
from antiphon.parsers.calls.base import Piece
from antiphon.parsers.calls.literal_call import LiteralCall
from antiphon.parsers.calls.marked import MarkedCalls
from antiphon.parsers.calls.schemas import Offered
from antiphon.parsers.calls.script import Budget


class LiteralCalls(MarkedCalls):
    def __init__(self, tools: Mapping[str, Json]) -> None:
        super().__init__(tools)
        self._budget = Budget()
        self._offered = Offered(tools)

    def feed(self, text: str) -> Sequence[Piece]:
        call = self._call
        if isinstance(call, LiteralCall) and not self._held and (said := call.flow(text)):
            self._fed += len(text)
            return (CallDelta(call.number, said),)
        return super().feed(text)

    def _is_spent(self) -> bool:
        return self._budget.spent
