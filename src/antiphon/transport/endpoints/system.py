"""What operators and clients ask about the server itself: is it alive, is it ready, what does it serve.

/health answers without looking at anything: a server whose engine is down is alive, and restarting it would not help.
"""

from typing import Literal, Protocol

import msgspec
from msgspec import Struct

from antiphon.engines.base import Model, State
from antiphon.errors import Unavailable
from antiphon.observe import Metrics
from antiphon.observe.prometheus import CONTENT_TYPE
from antiphon.service.access.principal import ADMIN
from antiphon.transport.http.request import Request, Route
from antiphon.transport.middleware.auth import Guard

_encode = msgspec.json.Encoder().encode


class ModelDirectory(Protocol):
    def models(self) -> list[Model]: ...

    def model(self, name: str) -> Model:
        """Raises ModelNotFound."""

    def ready(self) -> list[str]:
        """Reasons why not, as sentences."""

    def states(self) -> list[State]:
        """Of all engines."""


class Keeps(Protocol):
    """Of a store, all that matters here."""

    name: str

    def healthy(self) -> bool: ...


class Health(Struct, frozen=True):
    status: Literal["ok"] = "ok"


class Share(Struct, frozen=True):
    up: int
    all: int


class Ready(Struct, frozen=True, omit_defaults=True):
    status: Literal["ready"]
    engines: Share | None = None  # of a server with several; which of them, /v1/capabilities and /metrics tell
    sheds: str | None = None  # why no background work is taken just now


class Version(Struct, frozen=True):
    version: str


class ModelObject(Struct, frozen=True, kw_only=True):
    """A model that requests may name."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str


class ModelList(Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelObject]


HEALTHY = _encode(Health())
READY = _encode(Ready("ready"))


class System:
    def __init__(
        self, models: ModelDirectory, metrics: Metrics, guard: Guard, version: str, store: Keeps | None = None
    ) -> None:
        self._models = models
        self._store = store
        self._metrics = metrics
        self._guard = guard
        self._version = _encode(Version(version))

    def routes(self) -> list[Route]:
        return [
            Route(method="GET", path="/v1/models", endpoint=self.models, summary="List the models", gives=ModelList),
            Route(
                method="GET",
                path="/v1/models/{model...}",
                endpoint=self.model,
                summary="Describe one model",
                gives=ModelObject,
                errors=(404,),
            ),
            Route(
                method="GET",
                path="/health",
                endpoint=self.health,
                summary="Is the server alive?",
                gives=Health,
                needs=None,
            ),
            Route(
                method="GET",
                path="/ready",
                endpoint=self.ready,
                summary="Does the server take work?",
                description="503 with the reasons while an engine or the store is not healthy, while no new work is "
                "taken, and at shutdown.",
                gives=Ready,
                errors=(503,),
                needs=None,
            ),
            Route(
                method="GET",
                path="/version",
                endpoint=self.version,
                summary="What runs here?",
                gives=Version,
                needs=None,
            ),
            Route(
                method="GET",
                path="/metrics",
                endpoint=self.metrics,
                summary="Numbers for Prometheus",
                media_type="text/plain",
                gives=str,
                needs=ADMIN,
            ),
        ]

    async def health(self, request: Request) -> None:
        await request.reply(200, HEALTHY)

    async def ready(self, request: Request) -> None:
        if reasons := ["The server is shutting down."] if self._guard.closed else self._reasons():
            raise Unavailable(" ".join(reasons), retry_after=1.0)
        await request.reply(200, self._shares())

    def _shares(self) -> bytes:
        states, pressure = self._models.states(), self._guard.pressure
        up = sum(state.healthy and not state.draining for state in states)
        sheds = None if pressure is None else pressure.reason or None
        if len(states) <= 1 and sheds is None:
            return READY
        return _encode(Ready("ready", None if len(states) <= 1 else Share(up, len(states)), sheds))

    def _reasons(self) -> list[str]:
        reasons = self._models.ready()
        if self._store is not None and not self._store.healthy():
            reasons = [*reasons, f"The {self._store.name} store does not answer."]
        if self._guard.pressure is not None and self._guard.pressure.full:
            reasons = [*reasons, self._guard.pressure.reason]
        return reasons

    async def version(self, request: Request) -> None:
        await request.reply(200, self._version)

    async def metrics(self, request: Request) -> None:
        await request.reply(200, self._metrics.text(), [(b"content-type", CONTENT_TYPE)])

    async def models(self, request: Request) -> None:
        await request.reply(200, _encode(ModelList(data=[_shown(model) for model in self._models.models()])))

    async def model(self, request: Request) -> None:
        await request.reply(200, _encode(_shown(self._models.model(request.params["model"]))))


def _shown(model: Model) -> ModelObject:
    return ModelObject(id=model.id, created=model.created, owned_by=model.owned_by)
