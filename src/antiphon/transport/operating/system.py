"""Endpoints about the server itself: health, readiness, version, metrics and models.

/health checks nothing: a server whose engine is down is alive, and restarting it would not help.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Struct, convert

from antiphon.engines.base import Model
from antiphon.errors import Unavailable
from antiphon.observe import Metrics
from antiphon.observe.prometheus import CONTENT_TYPE
from antiphon.service.access.api_keys import ADMIN
from antiphon.service.images import Images
from antiphon.service.model_io.models import Models
from antiphon.service.persistence.store_maintenance import StoreProbe
from antiphon.transport.http.request import Request
from antiphon.transport.middleware.auth import Authenticator
from antiphon.transport.middleware.routing import Route

_encode = msgspec.json.Encoder().encode


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


class SystemEndpoints(Struct, frozen=True, eq=False):
    """Serves the endpoints about the server itself."""

    _models: Models
    _metrics: Metrics
    _authenticator: Authenticator
    _version: str
    _store: StoreProbe | None = None
    _images: Images | None = None

    @Route("GET", "/health", gives=Health, needs=None)
    async def health(self, request: Request) -> None:
        """Check that the server is alive."""
        await request.reply(200, HEALTHY)

    @Route("GET", "/ready", gives=Ready, errors=(503,), needs=None)
    async def ready(self, request: Request) -> None:
        """Check that the server accepts work. 503 with the reasons while an engine or the store is not healthy, while
        no new work is accepted, and during shutdown.
        """
        if reasons := ["The server is shutting down."] if self._authenticator.closed else self._list_reasons():
            raise Unavailable(" ".join(reasons), retry_after=1.0)
        await request.reply(200, self._render_ready())

    def _render_ready(self) -> bytes:
        states, load_monitor = self._models.states(), self._authenticator.load_monitor
        up = sum(state.healthy and not state.draining for state in states)
        sheds = None if load_monitor is None else load_monitor.reason or None
        services = Share(*self._images.count_healthy()) if self._images else None
        if len(states) <= 1 and sheds is None and services is None:
            return READY
        return _encode(Ready("ready", None if len(states) <= 1 else Share(up, len(states)), services, sheds))

    def _list_reasons(self) -> list[str]:
        reasons = self._models.ready()
        if self._store is not None and not self._store.healthy():
            reasons = [*reasons, f"The {self._store.name} store does not respond."]
        if self._authenticator.load_monitor is not None and self._authenticator.load_monitor.is_full:
            reasons = [*reasons, self._authenticator.load_monitor.reason]
        return reasons

    @Route("GET", "/version", gives=Version, needs=None)
    async def version(self, request: Request) -> None:
        """Get the version of the server."""
        await request.reply(200, _encode(Version(self._version)))

    @Route("GET", "/metrics", media_type="text/plain", gives=str, needs=ADMIN)
    async def metrics(self, request: Request) -> None:
        """Get metrics in the Prometheus format."""
        await request.reply(200, self._metrics.text(), [(b"content-type", CONTENT_TYPE)])

    @Route("GET", "/v1/models", gives=ModelList)
    async def models(self, request: Request) -> None:
        """List models. Those of image services come last."""
        models = convert(self._models.models(), list[ModelObject], from_attributes=True)
        await request.reply(200, _encode(ModelList(data=[*models, *self._list_image_models(models)])))

    @Route("GET", "/v1/models/{model...}", gives=ModelObject, errors=(404,))
    async def model(self, request: Request) -> None:
        """Describe one model."""
        name = request.params["model"]
        if found := [model for model in self._list_image_models(self._models.models()) if model.id == name]:
            await request.reply(200, _encode(found[0]))
            return
        model = convert(self._models.model(request.params["model"]), ModelObject, from_attributes=True)
        await request.reply(200, _encode(model))

    def _list_image_models(self, others: Sequence[Model | ModelObject]) -> list[ModelObject]:
        """Return the models of image services that no engine has under the same name."""
        names = {model.id for model in others}
        images = [] if self._images is None else self._images.models
        return [ModelObject(id=name, created=0, owned_by="antiphon") for name in images if name not in names]
