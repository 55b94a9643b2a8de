"""Who serves which model: names, aliases, and a queue of its own for each."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from antiphon.admission import Admission, Ticket
from antiphon.engines.base import Capabilities, Engine, Model
from antiphon.errors import MissingParameter, ModelNotFound, Unavailable


class Served(Struct, frozen=True):
    """A model as a request finds it: the name the client used and where the work goes."""

    name: str
    model: str
    engine: Engine

    async def capabilities(self) -> Capabilities:
        """The engine's, and the effort too where the model's own template can be told whether to think."""
        able = await self.engine.capabilities(self.model)
        if able.template is None or "enable_thinking" not in able.template.source:
            return able
        return replace(able, honours=able.honours | {"reasoning.effort"})


class Models:
    def __init__(self, engines: Sequence[Engine], aliases: Sequence[str], accept_any: bool, queue: int) -> None:
        self._engines = engines
        self._aliases = tuple(aliases)
        self._accept_any = accept_any
        self._queue = queue
        self._admissions: dict[str, Admission] = {}

    def models(self) -> list[Model]:
        known = [model for engine in self._engines for model in engine.models()]
        if not (self._aliases and known):
            return known
        return [replace(known[0], id=name) for name in self._aliases] + known[1:]

    def model(self, name: str) -> Model:
        for model in self.models():
            if model.id == name:
                return model
        return Model(id=self.find(name).name, created=0)

    def find(self, name: str | None) -> Served:
        if not name:
            raise MissingParameter("Missing required parameter: 'model'.", param="model")
        if name not in self._aliases:
            for engine in self._engines:
                if engine.serves(name):
                    return Served(name, name, engine)
            if not self._accept_any:
                raise self._unknown(name)
        engine = self._engines[0]
        if not (known := engine.models()):
            raise Unavailable(f"The {engine.name} engine is not ready.", retry_after=1.0)
        return Served(name, known[0].id, engine)

    async def able(self) -> list[tuple[Served, Capabilities]]:
        """Every model that a request may name, and what it can do."""
        served = [self.find(model.id) for model in self.models()]
        return [(one, await one.capabilities()) for one in served]

    def ready(self) -> list[str]:
        """Reasons why not; none is good."""
        return [f"The {engine.name} engine is not ready." for engine in self._engines if not engine.healthy()]

    def admit(self, served: Served, able: Capabilities, patient: bool = False) -> Ticket | None:
        """A place in the model's queue; Busy when that is full. Background work has waited elsewhere: it is patient."""
        if able.slots is None:
            return None
        if served.model not in self._admissions:
            self._admissions[served.model] = Admission(able.slots, self._queue)
        admission = self._admissions[served.model]
        return admission.patient() if patient else admission.enter()

    def waiting(self) -> int:
        return sum(admission.waiting for admission in self._admissions.values())

    def _unknown(self, name: str) -> ModelNotFound | Unavailable:
        """An engine that was never there may have it: whoever asks again later may be served."""
        for engine in self._engines:
            if not engine.models() and not engine.healthy():
                return Unavailable(f"The {engine.name} engine is not ready.", retry_after=1.0)
        known = ", ".join(model.id for model in self.models()[:5]) or "none"
        return ModelNotFound(f"The model '{name[:80]}' does not exist here. This server has: {known}.", param="model")
