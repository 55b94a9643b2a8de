"""Endpoints about the server itself: health, readiness, version, metrics and models.

/health checks nothing: a server whose engine is down is alive, and restarting it would not help.
"""

from typing import Literal, Protocol

import msgspec
from msgspec import Struct

from antiphon.engines.base import EngineStatus, Model
from antiphon.errors import Unavailable
from antiphon.observe import Metrics
from antiphon.observe.prometheus import CONTENT_TYPE
from antiphon.service.access.api_keys import ADMIN
from antiphon.transport.http.request import Request
from antiphon.transport.middleware.auth import Authenticator
from antiphon.transport.middleware.routing import Route

_encode = msgspec.json.Encoder().encode


class ModelDirectory(Protocol):
    """The models of the server."""

    def models(self) -> list[Model]: ...

    def model(self, name: str) -> Model:
        """Raises ModelNotFound."""

    def ready(self) -> list[str]:
        """Return why the server is not ready, as sentences; empty when ready."""

    def states(self) -> list[EngineStatus]:
        """Return the status of all engines."""


class StoreHealth(Protocol):
    """The health of a store."""

    name: str

    def healthy(self) -> bool: ...


class Health(Struct, frozen=True):
    status: Literal["ok"] = "ok"


class Share(Struct, frozen=True):
    up: int
    all: int


class Ready(Struct, frozen=True, omit_defaults=True):
    status: Literal["ready"]
    engines: Share | None = None  # only with several engines; /v1/capabilities and /metrics show which of them
    sheds: str | None = None  # why background work is rejected at present


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


class SystemEndpoints:
    """Serves the endpoints about the server itself."""

    def __init__(
        self,
        models: ModelDirectory,
        metrics: Metrics,
        authenticator: Authenticator,
        version: str,
        store: StoreHealth | None = None,
    ) -> None:
        self._models = models
        self._store = store
        self._metrics = metrics
        self._authenticator = authenticator
        self._version = _encode(Version(version))

    def routes(self) -> list[Route]:
        return [
            Route(method="GET", path="/v1/models", endpoint=self.models, summary="List models", gives=ModelList),
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
                summary="Check that the server is alive",
                gives=Health,
                needs=None,
            ),
            Route(
                method="GET",
                path="/ready",
                endpoint=self.ready,
                summary="Check that the server accepts work",
                description="503 with the reasons while an engine or the store is not healthy, while no new work is "
                "accepted, and during shutdown.",
                gives=Ready,
                errors=(503,),
                needs=None,
            ),
            Route(
                method="GET",
                path="/version",
                endpoint=self.version,
                summary="Get the version of the server",
                gives=Version,
                needs=None,
            ),
            Route(
                method="GET",
                path="/metrics",
                endpoint=self.metrics,
                summary="Get metrics in the Prometheus format",
                media_type="text/plain",
                gives=str,
                needs=ADMIN,
            ),
        ]

    async def health(self, request: Request) -> None:
        await request.reply(200, HEALTHY)

    async def ready(self, request: Request) -> None:
        if reasons := ["The server is shutting down."] if self._authenticator.closed else self._list_reasons():
            raise Unavailable(" ".join(reasons), retry_after=1.0)
        await request.reply(200, self._render_ready())

    def _render_ready(self) -> bytes:
        states, load_monitor = self._models.states(), self._authenticator.load_monitor
        up = sum(state.healthy and not state.draining for state in states)
        sheds = None if load_monitor is None else load_monitor.reason or None
        if len(states) <= 1 and sheds is None:
            return READY
        return _encode(Ready("ready", None if len(states) <= 1 else Share(up, len(states)), sheds))

    def _list_reasons(self) -> list[str]:
        reasons = self._models.ready()
        if self._store is not None and not self._store.healthy():
            reasons = [*reasons, f"The {self._store.name} store does not respond."]
        if self._authenticator.load_monitor is not None and self._authenticator.load_monitor.is_full:
            reasons = [*reasons, self._authenticator.load_monitor.reason]
        return reasons

    async def version(self, request: Request) -> None:
        await request.reply(200, self._version)

    async def metrics(self, request: Request) -> None:
        await request.reply(200, self._metrics.text(), [(b"content-type", CONTENT_TYPE)])

    async def models(self, request: Request) -> None:
        await request.reply(200, _encode(ModelList(data=[_to_model_object(model) for model in self._models.models()])))

    async def model(self, request: Request) -> None:
        await request.reply(200, _encode(_to_model_object(self._models.model(request.params["model"]))))


def _to_model_object(model: Model) -> ModelObject:
    return ModelObject(id=model.id, created=model.created, owned_by=model.owned_by)
