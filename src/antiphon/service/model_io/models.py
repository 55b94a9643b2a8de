"""Models: names, aliases, output limits, and an admission queue for each lane.

The operator's names and limits may change at runtime.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from antiphon.admission import DEFAULT_RANK, RANK_NAMES, RANKS, Admission, Ticket
from antiphon.config import Config
from antiphon.engines.base import Capabilities, Engine, EngineStatus, Model
from antiphon.errors import AntiphonError, Busy, MissingParameter, ModelNotFound, Unavailable
from antiphon.service.model_io.served_model import OutputTokenLimits, ServedModel

_MAX_REPORTED_QUEUES = 100  # in metrics
_MAX_CACHED = 256
_POLL_SECONDS = 1.0  # seconds between checks whether waiting requests can be admitted


class ModelNaming(Struct, frozen=True, kw_only=True):
    """Operator settings for model names, in terms of API names or engine names."""

    served: tuple[str, ...] = ()  # names of the first model, replacing its own
    aliases: Mapping[str, str] = {}
    accept_any: bool = False  # the first model serves unknown names
    limits: Mapping[str, OutputTokenLimits] = {}
    default_limits: OutputTokenLimits | None = None  # of all other models; None: the planner's default

    def find_limits(self, name: str, model: str) -> OutputTokenLimits | None:
        """Return the limits of a model by the client's name for it, or else by its name at the engine."""
        return self.limits.get(name) or self.limits.get(model) or self.default_limits


def make_naming(config: Config) -> ModelNaming:
    default, maximum = config.inference.default_output_tokens, config.inference.max_output_tokens
    return ModelNaming(
        served=config.inference.served_model_name,
        aliases=config.inference.names,
        accept_any=config.inference.accept_any_model,
        limits={
            name: OutputTokenLimits(
                default=spec.default_output_tokens or default, maximum=spec.max_output_tokens or maximum
            )
            for name, spec in config.inference.models.items()
        },
        default_limits=OutputTokenLimits(default=default, maximum=maximum),
    )


class QueueStatus(Struct, frozen=True, kw_only=True):
    """The queue of one model, or of several that share their engines' slots."""

    model: str
    running: int
    slots: int
    waiting: dict[str, int]  # by service tier


class Models(Struct, eq=False):
    """The models of one engine, which may be a pool."""

    _engine: Engine
    naming: ModelNaming = ModelNaming()
    queue: int = 64
    on_wait: Callable[[float], None] | None = None  # called with the seconds that a request waited for its model
    on_queued: Callable[[Admission], None] | None = None  # called when a request has to wait for its model
    _lanes: dict[str, "_ModelLane"] = {}
    _cache: dict[str, ServedModel] = {}  # by requested name, for models that the engine serves under that name

    def configure(self, naming: ModelNaming, queue: int) -> None:
        """Apply new names and limits from now on; models that were resolved before keep their name."""
        self.naming = naming
        self.queue = queue
        self._cache.clear()
        for lane in self._lanes.values():
            lane.admission.queue = queue

    def models(self) -> list[Model]:
        """List the models; aliases come last. An alias with the name of a model replaces it."""
        all_models = listed = [*self._engine.models()]
        served, aliases = self.naming.served, self.naming.aliases
        if served and (first := self._engine.default_model()) is not None:
            listed = [replace(first, id=name) for name in served] + all_models[1:]
        named = {model.id: model for model in (*all_models, *listed)}
        others = [replace(named[model], id=name) for name, model in aliases.items() if model in named]
        return [model for model in listed if model.id not in aliases] + others

    def model(self, name: str) -> Model:
        for model in self.models():
            if model.id == name:
                return model
        return Model(id=self.find(name).name, created=0)

    def find(self, name: str | None) -> ServedModel:
        if not name:
            raise MissingParameter("Missing required parameter: 'model'.", param="model")
        if (found := self._cache.get(name)) is not None and found.engine.serves(found.model):
            return found
        engine, naming = self._engine, self.naming
        model = naming.aliases.get(name, name)
        if model not in naming.served:
            if engine.serves(model):
                return self._remember(ServedModel(name, model, engine, naming.find_limits(name, model)))
            if not naming.accept_any:
                raise self._unknown_error(name)
        if (first := engine.default_model()) is None:
            raise self._unready_error() or Unavailable(f"The {engine.name} engine has no models.", retry_after=1.0)
        return ServedModel(name, first.id, engine, naming.find_limits(name, first.id))

    def _remember(self, served: ServedModel) -> ServedModel:
        """Cache the model. The cache is bounded, because some engines serve any name."""
        if len(self._cache) >= _MAX_CACHED:
            self._cache.clear()
        self._cache[served.name] = served
        return served

    async def survey(self) -> list[tuple[ServedModel, Capabilities | AntiphonError]]:
        """List every model that a request may name with its capabilities, or with the error of an engine that fails to
        report them. Models of unavailable engines are omitted.
        """
        found: list[tuple[ServedModel, Capabilities | AntiphonError]] = []
        for served in [self.find(model.id) for model in self.models()]:
            try:
                found.append((served, await served.capabilities()))
            except (ModelNotFound, Unavailable):
                continue
            except AntiphonError as error:
                found.append((served, error))
        return found

    def states(self) -> Sequence[EngineStatus]:
        return self._engine.statuses()

    def ready(self) -> list[str]:
        """Return the reason why the server is not ready; empty when ready."""
        return [] if self._engine.is_healthy() else [_describe_unready(self._engine)]

    def admit(
        self,
        served: ServedModel,
        capabilities: Capabilities,
        patient: bool = False,
        tenant: str = "",
        service_tier: str | None = None,
    ) -> Ticket | None:
        """Enter the model's queue; None if the engine's slots are unlimited.

        Raises Busy if the queue is full. `patient`: for background work, which has already waited in its own queue.
        `service_tier` determines the priority in the queue.
        """
        if capabilities.slots is None:
            return None
        name = served.model if capabilities.lane is None else capabilities.lane
        if (lane := self._lanes.get(name)) is None:
            self._drop_empty_lanes()
            admission = Admission(capabilities.slots, self.queue, self.on_wait, self.on_queued)
            lane = self._lanes[name] = _ModelLane(admission, served)
        admission = lane.admission
        if admission.slots != capabilities.slots:
            admission.resize(capabilities.slots)
        rank = RANKS.get(service_tier, DEFAULT_RANK)
        return admission.enter_later(tenant, rank) if patient else admission.enter(tenant, rank)

    async def run_forever(self) -> None:
        """Background loop: admit waiting requests when engines recover, even without new requests."""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            for lane in [*self._lanes.values()]:
                if lane.admission.waiting:
                    await lane.refresh()

    def find_refusal(self, tenant: str) -> Busy | None:
        """Return Busy if every request of the tenant would be refused: there is one model, and its queue is full."""
        if len(self._lanes) != 1:
            return None
        (lane,) = self._lanes.values()
        if lane.admission.running < lane.admission.slots:
            return None
        busy = lane.admission.find_refusal(tenant)
        return busy if busy is None or len(self._engine.models()) == 1 else None

    def get_queue_load(self) -> float:
        """Return the largest occupied fraction of a queue."""
        queue = max(self.queue, 1)
        return max([lane.admission.queued / queue for lane in self._lanes.values()], default=0.0)

    def list_queues(self) -> list[QueueStatus]:
        """Return the state of the queues, limited in number because some engines serve any name."""
        return [
            QueueStatus(
                model=name,
                running=lane.admission.running,
                slots=lane.admission.slots,
                waiting=dict(zip(RANK_NAMES, lane.admission.waiting_by_rank(), strict=True)),
            )
            for name, lane in islice(self._lanes.items(), _MAX_REPORTED_QUEUES)
        ]

    def count_waiting(self) -> int:
        return sum(lane.admission.waiting for lane in self._lanes.values())

    def _drop_empty_lanes(self) -> None:
        """Drop lanes without requests, such as those of removed engines."""
        for name in [name for name, lane in self._lanes.items() if lane.is_empty]:
            del self._lanes[name]

    def _unknown_error(self, name: str) -> ModelNotFound | Unavailable:
        """Return the error for an unknown model: retryable if an engine that was never ready may serve it."""
        if (unready := self._unready_error()) is not None:
            return unready
        available = ", ".join(model.id for model in self.models()[:5]) or "none"
        alias_target = self.naming.aliases.get(name)
        problem = (
            "does not exist here"
            if alias_target is None
            else f"stands for '{alias_target[:80]}', which does not exist here"
        )
        return ModelNotFound(f"The model '{name[:80]}' {problem}. This server has: {available}.", param="model")

    def _unready_error(self) -> Unavailable | None:
        """Return the error for an engine that was never ready, if there is one."""
        for state in self.states():
            if not state.models and not state.healthy:
                return Unavailable(f"The {state.name} engine is not ready.", retry_after=1.0)
        return None


class _ModelLane(Struct, frozen=True):
    """The queue of one model, or of several models that share their engines' slots."""

    admission: Admission
    served: ServedModel

    @property
    def is_empty(self) -> bool:
        return not (self.admission.running or self.admission.waiting)

    async def refresh(self) -> None:
        try:
            capabilities = await self.served.capabilities()
        except AntiphonError:
            return  # the engine is unavailable
        if capabilities.slots is not None and capabilities.slots != self.admission.slots:
            self.admission.resize(capabilities.slots)


def _describe_unready(engine: Engine) -> str:
    several = len(engine.statuses()) > 1
    return (
        f"None of the {len(engine.statuses())} engines is ready."
        if several
        else f"The {engine.name} engine is not ready."
    )
