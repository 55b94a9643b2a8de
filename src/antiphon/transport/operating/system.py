"""Endpoints about the server itself: health, readiness, version, metrics and models.

/health checks nothing: a server whose engine is down is alive, and restarting it would not help.
"""

from typing import Literal

from msgspec import Struct

from antiphon.errors import Unavailable
from antiphon.observe import Metrics
from antiphon.observe.prometheus import CONTENT_TYPE
from antiphon.protocol.types.operations.models import ModelList, ModelObject
from antiphon.service.access.api_keys import ADMIN
from antiphon.service.images import Images
from antiphon.service.model_io.models import Models
from antiphon.service.operations.model_catalog import ModelCatalog
from antiphon.service.persistence.store_maintenance import StoreProbe
from antiphon.transport.http.request import Request
from antiphon.transport.middleware.auth import Authenticator
from antiphon.transport.middleware.routing import Route


class Health(Struct, frozen=True):
    status: Literal["ok"] = "ok"


class Share(Struct, frozen=True):
    up: int
    all: int


class Ready(Struct, frozen=True, omit_defaults=True):
    status: Literal["ready"]
    engines: Share | None = None  # only with several engines; /v1/capabilities and /metrics show which of them
    image_services: Share | None = None  # that respond; images are optional, so the server is ready without them
    sheds: str | None = None  # why background work is rejected at present


class Version(Struct, frozen=True):
    version: str


class SystemEndpoints(Struct, frozen=True, eq=False):
    """Serves the endpoints about the server itself."""

    _models: Models
    _metrics: Metrics
    _authenticator: Authenticator
    _version: str
    _store: StoreProbe | None = None
    _images: Images | None = None

    @Route("GET", "/health", needs=None)
    async def health(self, request: Request) -> Health:
        """Check that the server is alive."""
        return Health()

    @Route("GET", "/ready", errors=(503,), needs=None)
    async def ready(self, request: Request) -> Ready:
        """Check that the server accepts work. 503 with the reasons while an engine or the store is not healthy, while
        no new work is accepted, and during shutdown.
        """
        if reasons := ["The server is shutting down."] if self._authenticator.closed else self._list_reasons():
            raise Unavailable(" ".join(reasons), retry_after=1.0)
        states, load_monitor = self._models.states(), self._authenticator.load_monitor
        up = sum(state.healthy and not state.draining for state in states)
        sheds = None if load_monitor is None else load_monitor.reason or None
        services = Share(*self._images.count_healthy()) if self._images else None
        return Ready("ready", None if len(states) <= 1 else Share(up, len(states)), services, sheds)

    def _list_reasons(self) -> list[str]:
        reasons = self._models.ready()
        if self._store is not None and not self._store.healthy():
            reasons = [*reasons, f"The {self._store.name} store does not respond."]
        if self._authenticator.load_monitor is not None and self._authenticator.load_monitor.is_full:
            reasons = [*reasons, self._authenticator.load_monitor.reason]
        return reasons

    @Route("GET", "/version", needs=None)
    async def version(self, request: Request) -> Version:
        """Get the version of the server."""
        return Version(self._version)

    @Route("GET", "/metrics", media_type="text/plain", gives=str, needs=ADMIN)
    async def metrics(self, request: Request) -> None:
        """Get metrics in the Prometheus format."""
        await request.reply(200, self._metrics.text(), [(b"content-type", CONTENT_TYPE)])

    @Route("GET", "/v1/models")
    async def models(self, request: Request) -> ModelList:
        """List models. Those of image services come last. Fields after `owned_by` are extensions: limits, modalities,
        and whether a model calls tools and reasons.
        """
        return ModelList(data=await self._catalog().list_models())

    @Route("GET", "/v1/models/{model...}", errors=(404,))
    async def model(self, request: Request) -> ModelObject:
        """Describe one model."""
        return await self._catalog().find(request.params["model"])

    def _catalog(self) -> ModelCatalog:
        return ModelCatalog(self._models, self._images)
