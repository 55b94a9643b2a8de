"""Embedded llama.cpp: a child process for each model, loaded when it is first needed, so many at a time.

A model that nobody named, but that is there for who wants embeddings, is not even fetched before. Closing the iterator
of `generate` closes the connection to the child, which frees the slot: in decode after the token under way, in prefill
after at most two batches.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct, field

from antiphon.config.xdg import cache_home
from antiphon.core.prompt import Chunk, Prompt, Reads, Work
from antiphon.engines.base import Capabilities, Embedded, GeneratesOnly, Model
from antiphon.engines.client import Refused
from antiphon.engines.gguf import Header, read_header
from antiphon.engines.llamacpp import embedding, wire
from antiphon.engines.llamacpp.child import Launch
from antiphon.engines.llamacpp.download import Fetching, Logged
from antiphon.engines.llamacpp.embedding import EmbeddingModel
from antiphon.engines.llamacpp.model import LocalModel
from antiphon.engines.llamacpp.model_files import Known, Progress, Source, fetch, sources
from antiphon.engines.llamacpp.supervisor import Patience
from antiphon.engines.llamacpp.wire import Answer
from antiphon.errors import EngineFailed, ModelNotFound, StartupError, Unavailable

MOST_CONTEXT = 8192  # unless the operator asks for more: every slot has memory for all of it
MOST_TO_EMBED = 2048  # the same; a batch has memory for all of it, too
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
    reads: Reads = Reads()


class LlamaCpp(GeneratesOnly):
    name = "llamacpp"

    def __init__(self, settings: LlamaCppSettings | None = None) -> None:
        self.settings = settings or LlamaCppSettings()
        self.on_progress: Progress | None = None  # is told of fetches and loads; may be called from another thread
        self._sources = {source.id: source for source in sources(self.settings.model)}
        self._models: dict[str, LocalModel] = {}
        self._fetching = Fetching(self._fetched, self._take)
        self._making_room = asyncio.Lock()
        self._idle = asyncio.Event()  # a model has no more work
        self._opened = False
        self.stopped = False

    async def open(self) -> None:
        self.stopped = False
        try:
            for source in self._sources.values():
                if not source.later:
                    self._models[source.id] = await asyncio.to_thread(self._model, source, self.on_progress)
        except asyncio.CancelledError:
            self.stopped = True  # the thread that fetches looks at it, or the loop would wait for a slow network
            raise
        first = next(iter(self._models.values()))
        self._tell(f"Loading {first.id}", 0)
        await first.load()
        self._tell(f"Loading {first.id}", 1)
        self._opened = True

    async def close(self) -> None:
        self._opened = False
        self.stopped = True
        await self._fetching.close()
        await asyncio.gather(*(model.unload() for model in self._models.values()))

    def models(self) -> Sequence[Model]:
        return [Model(id=id, created=self._models[id].created if id in self._models else 0) for id in self._sources]

    def serves(self, model: str) -> bool:
        return model in self._sources

    async def capabilities(self, model: str) -> Capabilities:
        """From the file's header: nothing is loaded for it, or fetched."""
        if (known := self._later(model)) is not None and known.embeds is not None:
            context = self._context(known.embeds.context, MOST_TO_EMBED)
            return embedding.able(context, self.settings.slots)
        return self._find(model).capabilities()

    async def count(self, model: str, prompt: Prompt) -> int:
        async with self._using(model) as used:
            return await used.count(prompt)

    async def embed(
        self,
        model: str,
        inputs: Sequence[str | Sequence[int]],
        dimensions: int | None = None,
        truncate: int | None = None,
    ) -> Embedded:
        async with self._using(model) as used:
            return await used.embed(inputs, dimensions, truncate)

    async def tokenize(self, model: str, prompt: Prompt, special: bool = True) -> tuple[int, ...]:
        async with self._using(model) as used:
            return tuple(await used.tokens(prompt, special))

    async def detokenize(self, model: str, tokens: Sequence[int]) -> str:
        async with self._using(model) as used:
            return await used.detokenize(tokens)

    async def generate(self, work: Work) -> AsyncGenerator[list[Chunk], None]:
        ended = False
        try:
            async with self._using(work.model) as used, used.answering(work) as (prompt, events):
                answer = Answer(work.sampling, prompt)
                async for together in events:
                    if chunks := answer.take(together):
                        ended = chunks[-1].finish is not None
                        yield chunks
                        if answer.cut:
                            break
        except Refused as refused:
            raise wire.explained(refused) from None
        if not ended:
            raise EngineFailed("The engine stopped in the middle of its answer.")

    def healthy(self) -> bool:
        return self._opened and not any(model.down for model in self._models.values())

    @asynccontextmanager
    async def _using(self, name: str) -> AsyncIterator[LocalModel]:
        """A model that stays loaded meanwhile."""
        model = self._models.get(name) or await self._had(name)
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

    def _later(self, name: str) -> Known | None:
        """What is known of a model that nobody has asked for yet."""
        source = self._sources.get(name)
        waits = source is not None and source.later and name not in self._models
        return source.file if waits and source is not None and isinstance(source.file, Known) else None

    async def _had(self, name: str) -> LocalModel:
        if self._later(name) is None or not self._opened:
            return self._find(name)
        return await self._fetching.wait(name, self.settings.load_timeout)

    def _fetched(self, name: str) -> LocalModel:
        return self._model(self._sources[name], Logged())

    def _take(self, name: str, model: LocalModel) -> None:
        self._models[name] = model

    def _model(self, source: Source, progress: Progress | None) -> LocalModel:
        """Blocks: it may fetch the file."""
        file = source.file
        path = fetch(file, self.settings.cache_dir, _Stoppable(self, progress)) if isinstance(file, Known) else file
        header = read_header(path)
        patience = Patience(load=self.settings.load_timeout, idle=self.settings.idle_timeout)
        pooling = embedding.pooling(header)
        if pooling == embedding.RANK:
            raise StartupError(f"{path} is a model that ranks texts, which this engine does not serve.")
        kind = LocalModel if pooling is None else EmbeddingModel
        made = kind(source.id, header, self._launch(path, header, pooling), patience)
        made.reads = self.settings.reads
        return made

    def _launch(self, path: Path, header: Header, pooling: int | None) -> Launch:
        settings = self.settings
        return Launch(
            model=str(path.absolute()),
            context=self._context(header.context, MOST_CONTEXT if pooling is None else MOST_TO_EMBED),
            slots=settings.slots,
            threads=settings.threads or _cores(),
            connections=2 * settings.slots + SPARE_CONNECTIONS,
            gpu_layers=settings.gpu_layers,
            batch=settings.batch_size,
            pooling=pooling,
        )

    def _context(self, trained: int | None, most: int) -> int:
        context = self.settings.context or most
        return min(context, trained or context)

    def _tell(self, task: str, done: int) -> None:
        if self.on_progress is not None:
            self.on_progress(task, done, 1)


class _Stoppable:
    """Progress of a fetch in another thread, which comes to an end when the engine is closed."""

    def __init__(self, engine: LlamaCpp, progress: Progress | None) -> None:
        self._engine = engine
        self._progress = progress

    def __call__(self, task: str, done: int, whole: int) -> None:
        if self._engine.stopped:
            raise StartupError("The fetch was stopped.")
        if self._progress is not None:
            self._progress(task, done, whole)


def _cores() -> int:
    """That we may use: a container may have been given fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
