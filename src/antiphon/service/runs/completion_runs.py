"""All exchanges that run here: each has a place among what runs at once, and a place at the model for each choice.

For the services of other APIs: they settle a request (Planner.settle), make their dialect, and open an exchange.
Whoever gets it drives it or waits for its result, and leaves it in any case.
"""

from collections.abc import Sequence

from antiphon.agent.completion_run import Exchange, Reword
from antiphon.core.dialects.dialect import Dialect
from antiphon.errors import Busy, Unavailable
from antiphon.service.planning.planner import Planner, Settled
from antiphon.service.runs.accounting import Tally
from antiphon.service.runs.active_runs import Place
from antiphon.service.runs.detached_runs import Sessions


class Exchanges:
    def __init__(self, planner: Planner, sessions: Sessions, tally: Tally) -> None:
        self._planner = planner
        self._sessions = sessions
        self._tally = tally
        self._open: dict[Exchange, Place] = {}

    def open(self, calls: Sequence[Settled], dialect: Dialect, reword: Reword | None = None) -> Exchange:
        """A choice for each of the calls. Busy if there is no room for the first; the others wait for theirs."""
        place = self._sessions.enter(calls[0].tenant)
        try:
            first = self._planner.admitted(calls[0])
        except Busy:
            place.leave()
            raise
        others = [self._planner.admitted(call, patient=True) for call in calls[1:]]
        exchange = Exchange([first, *others], dialect, self._ended, reword)
        self._open[exchange] = place
        return exchange

    def interrupt(self) -> None:
        """The server's grace is over: whatever runs ends now, and its client is told."""
        error = Unavailable("The server is shutting down.", retry_after=2.0)
        for exchange in [*self._open]:
            exchange.interrupt(error)

    def _ended(self, exchange: Exchange) -> None:
        self._open.pop(exchange).leave()
        self._tally.exchanged(exchange)
