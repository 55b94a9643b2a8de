"""Creating a Response, without a transport: all is checked and settled here, then a Run is handed out.

What is wrong with a request is raised before there is a Run, so a client gets a plain 4xx for it.
"""

from time import time

from msgspec import Struct

from antiphon.agent.patience import Deadlines
from antiphon.agent.run import Plan, Run
from antiphon.core.emitter import Emitter
from antiphon.core.opening import opening
from antiphon.core.prompt import Counts
from antiphon.errors import Unavailable
from antiphon.ids import new_id
from antiphon.observe import Metrics
from antiphon.protocol.codec import Decoded
from antiphon.protocol.request import CreateResponse
from antiphon.service.honesty import ignored, refuse_unhonoured, refuse_unserved
from antiphon.service.models import Models
from antiphon.service.prepare import OutputTokens, prepare


class Accepted(Struct, frozen=True):
    """A run that waits to be driven, and the names of fields that change nothing."""

    run: Run
    ignored: list[str]


class Responses:
    def __init__(self, models: Models, room: OutputTokens, deadlines: Deadlines, metrics: Metrics) -> None:
        self._models = models
        self._room = room
        self._deadlines = deadlines
        self._metrics = metrics
        self._runs: set[Run] = set()
        metrics.watch_queue(running=lambda: len(self._runs) - models.waiting(), waiting=models.waiting)

    async def create(self, decoded: Decoded) -> Accepted:
        """Whoever gets the run drives it or cancels it."""
        request, sent = decoded.request, decoded.sent
        refuse_unserved(request, sent)
        served = self._models.find(request.model)
        able = await served.capabilities()
        refuse_unhonoured(request, sent, able, served.engine.name)
        prepared = await prepare(decoded, served, able, self._room)
        response = opening(request, sent, new_id("resp"), served.name, int(time()))
        plan = Plan(
            engine=served.engine,
            work=prepared.work,
            parser=prepared.parser,
            declared=prepared.declared,
            summarises=bool(request.reasoning.summary or request.reasoning.generate_summary),
            ticket=self._models.admit(served, able),
            deadlines=self._deadlines,
        )
        run = Run(plan, Emitter(response, new_id, _obfuscates(request)), self._ended)
        self._runs.add(run)
        return Accepted(run, [*decoded.ignored, *ignored(request, sent), *prepared.ignored])

    def interrupt(self) -> None:
        """The server's grace is over: whatever runs ends now, each with its terminal event."""
        for run in [*self._runs]:
            run.interrupt(Unavailable("The server is shutting down.", retry_after=2.0))

    def _ended(self, run: Run) -> None:
        self._runs.discard(run)
        response, end = run.response, run.ended_at or run.started_at
        usage = response.usage
        counts = (
            Counts()
            if usage is None
            else Counts(
                input_tokens=usage.input_tokens,
                cached_tokens=usage.input_tokens_details.cached_tokens,
                output_tokens=usage.output_tokens,
            )
        )
        first = None if run.first_at is None else run.first_at - run.started_at
        self._metrics.response_done(response.status, counts, first, end - run.started_at)


def _obfuscates(request: CreateResponse) -> bool:
    return request.stream_options is not None and request.stream_options.include_obfuscation
