"""What all families share that write calls as literals: bounds."""

from collections.abc import Mapping

from antiphon.core.prompt import Json
from antiphon.parsers.calls.marked import MarkedCalls
from antiphon.parsers.calls.schemas import Offered
from antiphon.parsers.calls.script import Budget


class LiteralCalls(MarkedCalls):
    def __init__(self, tools: Mapping[str, Json], fresh: bool = False) -> None:
        super().__init__(tools, fresh)
        self._budget = Budget()
        self._offered = Offered(tools)

    def _is_spent(self) -> bool:
        return self._budget.spent
