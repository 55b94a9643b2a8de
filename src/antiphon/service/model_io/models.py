"""Who serves which model: names, aliases, and a queue of its own for each.

What the operator says of models: their names, and how long their answers may be. It may change while we serve.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from msgspec import Struct, field
from msgspec.structs import replace

from antiphon.admission import USUAL, Admission, Ticket
from antiphon.config import Config
from antiphon.engines.base import FALLEN, Capabilities, Engine, Model, Standing, State
from antiphon.errors import AntiphonError, Busy, MissingParameter, ModelNotFound, Unavailable
from antiphon.observe.gauges import Queue
from antiphon.service.access.service_tiers import RANKS
from antiphon.service.model_io.selection import learn, spoken


class OutputTokens(Struct, frozen=True, kw_only=True):
    """How many an answer has."""

    default: int | None = None
    most: int | None = None

    def allowed(self, asked: int | None) -> int | None:
        wanted = self.default if asked is None else asked
        return wanted if self.most is None else min(wanted or self.most, self.most)


class Naming(Struct, frozen=True, kw_only=True):
    """By the names of the API or of the engines."""

    served: tuple[str, ...] = ()  # names of the first model, in place of its own
    aliases: Mapping[str, str] = {}
    accept_any: bool = False  # the first model answers for names that nobody knows
    rooms: Mapping[str, OutputTokens] = {}
    room: OutputTokens | None = None  # of the others; None: whatever holds for all


def naming(config: Config) -> Naming:
    default, most = config.default_output_tokens, config.max_output_tokens
    return Naming(
        served=config.served_model_name,
        aliases=config.names,
        accept_any=config.accept_any_model,
        rooms={
            name: OutputTokens(default=one.default_output_tokens or default, most=one.max_output_tokens or most)
            for name, one in config.models.items()
        },
        room=OutputTokens(default=default, most=most),
    )


_TOLD = 100  # queues, in metrics
_MOST_FOUND = 256
_LOOK = 1.0  # seconds between two looks at who could be let in


class Served(Struct, frozen=True):
    """A model as a request finds it: the name the client used and where the work goes."""

    name: str
    model: str
    engine: Engine
    room: OutputTokens | None = None  # its own; None: whatever holds for all
    standing: Standing = field(default_factory=lambda: FALLEN)  # FALLEN: it may be found elsewhere the next time

    async def capabilities(self) -> Capabilities:
        """The engine's, and what comes of how the model is spoken to."""
        return await self.spoken(await self.engine.capabilities(self.model))

    async def spoken(self, able: Capabilities) -> Capabilities:
        """`able`: what the engine says."""
        if able.prompt != "chat":
            await learn()
        return spoken(able, self.model)


class Models:
    def __init__(
        self,
        engines: Sequence[Engine],
        served: Sequence[str] = (),
        accept_any: bool = False,
        queue: int = 64,
        naming: Naming | None = None,
        waited: Callable[[float], None] | None = None,
    ) -> None:
        """`waited` is told how long each work waited for its model."""
        self._engines = engines
        self._waited = waited
        self._naming = naming or Naming(served=tuple(served), accept_any=accept_any)
        self._queue = queue
        self._lanes: dict[str, _Lane] = {}
        self._found: dict[str, Served] = {}  # models by the names that their engines have for them

    def renew(self, naming: Naming, queue: int) -> None:
        """From now on; what was found before keeps its name."""
        self._naming = naming
        self._queue = queue
        self._lose()
        for lane in self._lanes.values():
            lane.admission.queue = queue

    def models(self) -> list[Model]:
        """Aliases come last, each as what it stands for; one that has the name of a model stands in its place."""
        known = listed = [model for engine in self._engines for model in engine.models()]
        served, aliases = self._naming.served, self._naming.aliases
        if served and (first := self._engines[0].first()) is not None:
            listed = [replace(first, id=name) for name in served] + known[1:]
        named = {model.id: model for model in (*known, *listed)}
        others = [replace(named[model], id=name) for name, model in aliases.items() if model in named]
        return [model for model in listed if model.id not in aliases] + others

    def model(self, name: str) -> Model:
        for model in self.models():
            if model.id == name:
                return model
        return Model(id=self.find(name).name, created=0)

    def find(self, name: str | None) -> Served:
        if not name:
            raise MissingParameter("Missing required parameter: 'model'.", param="model")
        if (found := self._found.get(name)) is not None and found.engine.serves(found.model):
            return found
        served, model = self._naming.served, self._naming.aliases.get(name, name)
        if model not in served:
            for engine in self._engines:
                if engine.serves(model):
                    return self._kept(Served(name, model, engine, self._room(name, model), Standing()))
            if not self._naming.accept_any:
                raise self._unknown(name)
        engine = self._engines[0]
        if (first := engine.first()) is None:
            raise self._absent() or Unavailable(f"The {engine.name} engine has no models.", retry_after=1.0)
        return Served(name, first.id, engine, self._room(name, first.id))

    def _kept(self, found: Served) -> Served:
        """Some engines serve whatever name a client thinks of."""
        if len(self._found) >= _MOST_FOUND:
            self._lose()
        self._found[found.name] = found
        return found

    def _lose(self) -> None:
        for found in self._found.values():
            found.standing.fall()
        self._found.clear()

    async def able(self) -> list[tuple[Served, Capabilities]]:
        """Every model that a request may name, and what it can do. One that nobody can be asked about is left out."""
        return [(served, able) for served, able in await self.survey() if isinstance(able, Capabilities)]

    async def survey(self) -> list[tuple[Served, Capabilities | AntiphonError]]:
        """The same with those whose engine fails when it is asked, and with what it fails."""
        found: list[tuple[Served, Capabilities | AntiphonError]] = []
        for served in [self.find(model.id) for model in self.models()]:
            try:
                found.append((served, await served.capabilities()))
            except (ModelNotFound, Unavailable):
                continue
            except AntiphonError as error:
                found.append((served, error))
        return found

    def states(self) -> list[State]:
        """Of all engines, each by itself."""
        return [state for engine in self._engines for state in engine.states()]

    def ready(self) -> list[str]:
        """Reasons why not; none is good."""
        return [_unready(engine) for engine in self._engines if not engine.healthy()]

    def admit(
        self, served: Served, able: Capabilities, patient: bool = False, tenant: str = "", rank: int = USUAL
    ) -> Ticket | None:
        """A place in the model's queue; Busy when that is full. Background work has waited elsewhere: it is patient.
        `rank`: how much of a hurry it is in (tiers.py)."""
        if able.slots is None:
            return None
        name = served.model if able.lane is None else able.lane
        lane = self._lanes.get(name)
        if lane is None:
            self._forget()
            lane = self._lanes[name] = _Lane(Admission(able.slots, self._queue, self._waited), served)
        admission = lane.admission
        if admission.slots != able.slots:
            admission.resize(able.slots)
        return admission.patient(tenant, rank) if patient else admission.enter(tenant, rank)

    async def attend(self) -> None:
        """For ever: those who wait have their turn when engines come back, though nobody new asks for them."""
        while True:
            await asyncio.sleep(_LOOK)
            for lane in [*self._lanes.values()]:
                if lane.admission.waiting:
                    await lane.look()

    def turned_away(self, tenant: str) -> Busy | None:
        """Whatever it may ask for: where there is one model, and its queue is full."""
        if len(self._lanes) != 1:
            return None
        (lane,) = self._lanes.values()
        if lane.admission.running < lane.admission.slots:
            return None
        busy = lane.admission.turns_away(tenant)
        return busy if busy is None or sum(len(engine.models()) for engine in self._engines) == 1 else None

    def crowding(self) -> float:
        """The largest share of a queue that is taken."""
        queue = max(self._queue, 1)
        return max([lane.admission.impatient / queue for lane in self._lanes.values()], default=0.0)

    def queues(self) -> list[Queue]:
        """As they stand, of so many models as can be told: some engines take any name."""
        return [
            Queue(
                model=name,
                running=lane.admission.running,
                slots=lane.admission.slots,
                waiting=dict(zip(RANKS, lane.admission.waiting_by_rank(), strict=True)),
            )
            for name, lane in islice(self._lanes.items(), _TOLD)
        ]

    def waiting(self) -> int:
        return sum(lane.admission.waiting for lane in self._lanes.values())

    def _room(self, name: str, model: str) -> OutputTokens | None:
        naming = self._naming
        return naming.rooms.get(name) or naming.rooms.get(model) or naming.room

    def _forget(self) -> None:
        """Lanes of engines that are gone, once nobody is in them any more."""
        for name in [name for name, lane in self._lanes.items() if lane.is_empty]:
            del self._lanes[name]

    def _unknown(self, name: str) -> ModelNotFound | Unavailable:
        """An engine that was never there may have it: whoever asks again later may be served."""
        if (absent := self._absent()) is not None:
            return absent
        known = ", ".join(model.id for model in self.models()[:5]) or "none"
        meant = self._naming.aliases.get(name)
        stands = "does not exist here" if meant is None else f"stands for '{meant[:80]}', which does not exist here"
        return ModelNotFound(f"The model '{name[:80]}' {stands}. This server has: {known}.", param="model")

    def _absent(self) -> Unavailable | None:
        """Says so of an engine that was never there."""
        for state in self.states():
            if not state.models and not state.healthy:
                return Unavailable(f"The {state.name} engine is not ready.", retry_after=1.0)
        return None


class _Lane(Struct, frozen=True):
    """A queue of its own, for one model or for several that share their engines' slots."""

    admission: Admission
    served: Served

    @property
    def is_empty(self) -> bool:
        return not (self.admission.running or self.admission.waiting)

    async def look(self) -> None:
        try:
            able = await self.served.capabilities()
        except AntiphonError:
            return  # nobody is there to ask
        if able.slots is not None and able.slots != self.admission.slots:
            self.admission.resize(able.slots)


def _unready(engine: Engine) -> str:
    several = len(engine.states()) > 1
    return (
        f"None of the {len(engine.states())} engines is ready."
        if several
        else f"The {engine.name} engine is not ready."
    )
