"""Embedded llama.cpp: a child process for each model, loaded when it is first needed, so many at a time.

Closing the iterator of `generate` closes the connection to the child, which frees the slot: in decode after the
token under way, in prefill after at most two batches.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct, field

from antiphon.config.table import cache_home
from antiphon.core.prompt import Chunk, Prompt, Work
from antiphon.engines.base import Capabilities, GeneratesOnly, Model
from antiphon.engines.client import Refused
from antiphon.engines.gguf import read_header
from antiphon.engines.llamacpp import wire
from antiphon.engines.llamacpp.child import Launch
from antiphon.engines.llamacpp.model import LocalModel
from antiphon.engines.llamacpp.model_files import Known, Progress, Source, fetch, sources
from antiphon.engines.llamacpp.supervisor import Patience
from antiphon.errors import EngineFailed, ModelNotFound, StartupError, Unavailable

MOST_CONTEXT = 8192  # unless the operator asks for more: every slot has memory for all of it
SPARE_CONNECTIONS = 8  # threads of llama.cpp's HTTP server beyond those that generate


class LlamaCppSettings(Struct, frozen=True, kw_only=True):
    model: tuple[str, ...] = ()  # FILE, ID=FILE or the name of a known model; none: the default model
    cache_dir: Path = field(default_factory=cache_home)
    context: int | None = None  # tokens of prompt and answer, for each slot
    gpu_layers: int | None = None
    threads: int | None = None
    slots: int = 4
    batch_size: int | None = None  # prompt tokens at a time; None: what can be cancelled within a second
    max_loaded_models: int = 2
    load_timeout: float = 300.0
    idle_timeout: float = 120.0


class LlamaCpp(GeneratesOnly):
    name = "llamacpp"

    def __init__(self, settings: LlamaCppSettings | None = None) -> None:
        self.settings = settings or LlamaCppSettings()
        self.on_progress: Progress | None = None  # is told of fetches and loads; may be called from another thread
        self._sources = {source.id: source for source in sources(self.settings.model)}
        self._models: dict[str, LocalModel] = {}
        self._listed = [Model(id=id, created=0) for id in self._sources]
        self._making_room = asyncio.Lock()
        self._idle = asyncio.Event()  # a model has no more work
        self._opened = False
        self._stopped = False

    async def open(self) -> None:
        try:
            for source in self._sources.values():
                self._models[source.id] = await asyncio.to_thread(self._model, source)
        except asyncio.CancelledError:
            self._stopped = True  # the thread that fetches looks at it, or the loop would wait for a slow network
            raise
        self._listed = [Model(id=model.id, created=model.created) for model in self._models.values()]
        first = next(iter(self._models.values()))
        self._tell(f"Loading {first.id}", 0)
        await first.load()
        self._tell(f"Loading {first.id}", 1)
        self._opened = True

    async def close(self) -> None:
        self._opened = False
        await asyncio.gather(*(model.unload() for model in self._models.values()))

    def models(self) -> Sequence[Model]:
        return self._listed

    def serves(self, model: str) -> bool:
        return model in self._sources

    async def capabilities(self, model: str) -> Capabilities:
        """From the file's header: nothing is loaded for it."""
        return self._find(model).capabilities()

    async def count(self, model: str, prompt: Prompt) -> int:
        async with self._using(model) as used:
            return await used.count(prompt)

    async def generate(self, work: Work) -> AsyncGenerator[list[Chunk], None]:
        sampling = work.sampling
        ended = False
        try:
            async with self._using(work.model) as used, used.answering(work) as events:
                async for together in events:
                    if chunks := wire.chunks(together, sampling):
                        ended = chunks[-1].finish is not None
                        yield chunks
        except Refused as refused:
            raise wire.explained(refused) from None
        if not ended:
            raise EngineFailed("The engine stopped in the middle of its answer.")

    def healthy(self) -> bool:
        return self._opened and not any(model.down for model in self._models.values())

    @asynccontextmanager
    async def _using(self, name: str) -> AsyncIterator[LocalModel]:
        """A model that stays loaded meanwhile."""
        model = self._find(name)
        if not model.loaded:
            await self._make_room(model)
        model.in_flight += 1
        try:
            yield model
        finally:
            model.in_flight -= 1
            model.last_used = asyncio.get_running_loop().time()
            if not model.in_flight:
                self._idle.set()

    async def _make_room(self, model: LocalModel) -> None:
        """Unload the least recently used of the idle models; wait if none is idle."""
        try:
            async with asyncio.timeout(self.settings.load_timeout), self._making_room:
                while not model.loaded and len(loaded := self.loaded) >= self.settings.max_loaded_models:
                    if idle := [other for other in loaded if not other.in_flight]:
                        await min(idle, key=lambda other: other.last_used).unload()
                    else:
                        self._idle.clear()
                        await self._idle.wait()
                model.begin_to_load()
        except TimeoutError:
            raise Unavailable("Every model that fits into memory is busy.", retry_after=5.0) from None

    @property
    def loaded(self) -> list[LocalModel]:
        return [model for model in self._models.values() if model.loaded]

    def _find(self, name: str) -> LocalModel:
        if name not in self._models:
            raise ModelNotFound(f"The model '{name}' does not exist here.", param="model")
        return self._models[name]

    def _model(self, source: Source) -> LocalModel:
        """Blocks: it may fetch the file."""
        file = source.file
        path = fetch(file, self.settings.cache_dir, self._fetching) if isinstance(file, Known) else file
        header = read_header(path)
        patience = Patience(load=self.settings.load_timeout, idle=self.settings.idle_timeout)
        return LocalModel(source.id, header, self._launch(path, header.context), patience)

    def _launch(self, path: Path, trained: int | None) -> Launch:
        settings = self.settings
        context = settings.context or MOST_CONTEXT
        return Launch(
            model=str(path.absolute()),
            context=min(context, trained or context),
            slots=settings.slots,
            threads=settings.threads or _cores(),
            connections=2 * settings.slots + SPARE_CONNECTIONS,
            gpu_layers=settings.gpu_layers,
            batch=settings.batch_size,
        )

    def _fetching(self, task: str, done: int, whole: int) -> None:
        """In another thread, several times a second."""
        if self._stopped:
            raise StartupError("The fetch was stopped.")
        if self.on_progress is not None:
            self.on_progress(task, done, whole)

    def _tell(self, task: str, done: int) -> None:
        if self.on_progress is not None:
            self.on_progress(task, done, 1)


def _cores() -> int:
    """That we may use: a container may have been given fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
