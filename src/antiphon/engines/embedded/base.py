"""An embedded engine: one child process per model, started on first use, with a limit on loaded models.

The default embedding model, which is available without being named, is not even fetched before its first use. Closing
the iterator of `generate` closes the connection to the child, which frees the slot: during decode after the current
token, during prefill after at most two batches.
"""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Generic, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from antiphon.config.base_folders import cache_home
from antiphon.core.prompt import Chunk, GenerationRequest, ParserChoice, Prompt
from antiphon.engines.base import (
    JSON_MEDIA_TYPE,
    Capabilities,
    EmbeddingInputs,
    EmbeddingResult,
    Engine,
    EngineStatus,
    Model,
    PassthroughReply,
    ProgressCallback,
    Task,
)
from antiphon.engines.client import EngineHttpError
from antiphon.engines.embedded import wire
from antiphon.engines.embedded.embedding import embedding_capabilities
from antiphon.engines.embedded.known_models import KnownModel
from antiphon.engines.embedded.model import LocalModel
from antiphon.engines.embedded.model_files import ModelSource, fetch_model, parse_sources
from antiphon.engines.embedded.wire import LlamaCppStreamDecoder
from antiphon.errors import EngineFailed, ModelNotFound, StartupError, Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

DEFAULT_CONTEXT = 8192  # default limit; every slot allocates memory for all of it
DEFAULT_EMBEDDING_CONTEXT = 2048  # the same for embeddings, where a batch allocates memory for all of it, too
LOG_INTERVAL = 5.0  # seconds between progress log lines
RETRY_AFTER = 30.0  # seconds until a client should retry


class ChildEngineSettings(Struct, frozen=True, kw_only=True):
    """Settings of every embedded engine; the fields have the names of configuration fields."""

    model: tuple[str, ...] = ()  # FILE, ID=FILE, hf:ORG/REPO or a known name; empty: the default ones
    cache_dir: Path = field(default_factory=cache_home)
    context: int | None = None  # tokens of prompt and answer, per slot
    threads: int | None = None
    slots: int = 4
    max_loaded_models: int = 2
    load_timeout: float = 300.0
    idle_timeout: float = 120.0
    llamacpp_embeddings: bool = False  # llama.cpp embeds even where OpenVINO is installed
    reads: ParserChoice = ParserChoice()


class ProgressLogger:
    """Progress callback of a fetch on first use, when no terminal shows a progress bar: it writes log lines."""

    def __init__(self) -> None:
        self._task = ""
        self._complete = False
        self._next_log_at = 0.0

    def __call__(self, task: str, done: int, total: int) -> None:
        complete, now = done >= total, monotonic()
        if task == self._task and (self._complete or (now < self._next_log_at and not complete)):
            return
        self._task, self._complete, self._next_log_at = task, complete, now + LOG_INTERVAL
        log.info("%s: %d %%", task, 100 * done // max(total, 1))


class ModelFetcher(Generic[T]):
    """Runs one fetch per model in a thread, for any number of waiting requests; it continues when they are cancelled.

    `load` blocks until the model is available; `on_loaded` gets the result before any waiter.
    """

    def __init__(self, load: Callable[[str], T], on_loaded: Callable[[str, T], None]) -> None:
        self._load = load
        self._on_loaded = on_loaded
        self._tasks: dict[str, asyncio.Task[T]] = {}

    async def fetch(self, name: str, seconds: float) -> T:
        """Fetch the model or join its running fetch; raises `Unavailable` after a failure or `seconds`."""
        task = self._tasks.get(name)
        if task is None:
            task = self._tasks[name] = asyncio.create_task(self._run_fetch(name), name=f"fetch of {name}")
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(task)
        except TimeoutError:
            raise Unavailable(f"The model {name} is still being fetched.", retry_after=RETRY_AFTER) from None
        except StartupError as error:
            raise Unavailable(str(error), retry_after=RETRY_AFTER) from None

    async def close(self) -> None:
        """Wait for all fetches. The caller must have stopped `load` by other means: a thread cannot be cancelled."""
        for task in (tasks := [*self._tasks.values()]):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_fetch(self, name: str) -> T:
        try:
            model = await asyncio.to_thread(self._load, name)
            self._on_loaded(name, model)
            return model
        except StartupError as error:
            log.warning("%s could not be fetched: %s", name, error)
            raise
        finally:
            del self._tasks[name]


class ChildEngine(Engine):
    """Engine that runs models in supervised child processes. A subclass creates the models."""

    name: str

    def __init__(self, settings: ChildEngineSettings) -> None:
        self.settings = settings
        # receives the progress of fetches and loads, possibly from another thread
        self.on_progress: ProgressCallback = lambda task, done, total: None
        self._sources = {source.id: source for source in parse_sources(self.settings.model)}
        self._models: dict[str, LocalModel] = {}
        self._fetcher = ModelFetcher(
            lambda name: self._create_model(self._sources[name], ProgressLogger()), self._models.__setitem__
        )
        self._room_lock = asyncio.Lock()
        self._model_idle = asyncio.Event()  # set when a model has no more requests in flight
        self._opened = False
        self._stopped = False

    async def open(self) -> None:
        if not hasattr(socket, "AF_UNIX"):  # Windows
            raise StartupError(
                "This system cannot run models in the server. Use that of an engine: --engine ollama://…"
            )
        self._stopped = False
        try:
            for source in self._sources.values():
                if not source.lazy:
                    self._models[source.id] = await asyncio.to_thread(self._create_model, source, self.on_progress)
        except asyncio.CancelledError:
            self._stopped = True  # checked by the fetching thread; otherwise the loop would wait for a slow network
            raise
        first = next(iter(self._models.values()))
        self.on_progress(f"Loading {first.id}", 0, 1)
        await first.supervisor.wait_ready()
        self.on_progress(f"Loading {first.id}", 1, 1)
        self._opened = True

    async def close(self) -> None:
        self._opened = False
        self._stopped = True
        await self._fetcher.close()
        await asyncio.gather(*(model.supervisor.stop() for model in self._models.values()))

    def models(self) -> Sequence[Model]:
        return [Model(id=id, created=self._models[id].created if id in self._models else 0) for id in self._sources]

    def serves(self, model: str) -> bool:
        return model in self._sources

    async def capabilities(self, model: str) -> Capabilities:
        """Return the capabilities from the file header, without loading or fetching the model."""
        source = self._find_lazy(model)
        if source is not None and isinstance(source.file, KnownModel):
            context = self.limit_context(source.file.embedding_context, DEFAULT_EMBEDDING_CONTEXT)
            return embedding_capabilities(context, self.settings.slots)
        return self._find_model(model).capabilities()

    async def count_tokens(self, model: str, prompt: Prompt) -> int:
        async with self._use_model(model) as local_model:
            return await local_model.count_tokens(prompt)

    async def embed(
        self, model: str, inputs: EmbeddingInputs, dimensions: int | None = None, truncate: int | None = None
    ) -> EmbeddingResult:
        async with self._use_model(model) as local_model:
            return await local_model.embed(inputs, dimensions, truncate)

    async def tokenize(self, model: str, prompt: Prompt, special: bool = True) -> tuple[int, ...]:
        async with self._use_model(model) as local_model:
            return tuple(await local_model.tokenize(prompt, special))

    async def detokenize(self, model: str, tokens: Sequence[int]) -> str:
        async with self._use_model(model) as local_model:
            return await local_model.detokenize(tokens)

    async def pass_through(
        self, model: str, task: Task, body: bytes, media_type: str = JSON_MEDIA_TYPE
    ) -> PassthroughReply:
        async with self._use_model(model) as local_model:
            return await local_model.pass_through(task, body)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[list[Chunk], None]:
        ended = False
        try:
            async with (
                self._use_model(request.model) as local_model,
                local_model.open_completion(request) as (prompt, events),
            ):
                decoder = LlamaCppStreamDecoder(request.sampling, prompt)
                async for batch in events:
                    if chunks := decoder.decode(batch):
                        ended = chunks[-1].finish is not None
                        yield chunks
                        if decoder.stopped:
                            break
        except EngineHttpError as error:
            raise wire.to_client_error(error) from None
        if not ended:
            raise EngineFailed("The engine stopped in the middle of its answer.")

    def is_healthy(self) -> bool:
        return self._opened and not any(model.is_down for model in self._models.values())

    def statuses(self) -> Sequence[EngineStatus]:
        (status,) = super().statuses()
        loaded = tuple(model.id for model in self.loaded_models if model.child is not None)
        return [replace(status, loaded=loaded)]

    @asynccontextmanager
    async def _use_model(self, name: str) -> AsyncIterator[LocalModel]:
        """Load the model if needed and keep it loaded until the context ends."""
        if self._opened and self._find_lazy(name) is not None:
            model = await self._fetcher.fetch(name, self.settings.load_timeout)
        else:
            model = self._find_model(name)
        if not model.is_loaded:
            await self._make_room(model)
        model.in_flight += 1
        try:
            yield model
        finally:
            model.in_flight -= 1
            model.last_used = asyncio.get_running_loop().time()
            if not model.in_flight:
                self._model_idle.set()

    async def _make_room(self, model: LocalModel) -> None:
        """Unload the least recently used idle model if the limit is reached; wait if none is idle."""
        try:
            async with asyncio.timeout(self.settings.load_timeout), self._room_lock:
                while not model.is_loaded and len(loaded := self.loaded_models) >= self.settings.max_loaded_models:
                    if idle := [other for other in loaded if not other.in_flight]:
                        await min(idle, key=lambda other: other.last_used).supervisor.stop()
                    else:
                        self._model_idle.clear()
                        await self._model_idle.wait()
                model.supervisor.start()
        except TimeoutError:
            raise Unavailable("Every model that fits into memory is busy.", retry_after=5.0) from None

    @property
    def loaded_models(self) -> list[LocalModel]:
        return [model for model in self._models.values() if model.is_loaded]

    def _find_model(self, name: str) -> LocalModel:
        if name not in self._models:
            raise ModelNotFound(f"The model '{name}' does not exist here.", param="model")
        return self._models[name]

    def _find_lazy(self, name: str) -> ModelSource | None:
        """Return the source of a model that is fetched on first use and has not been requested yet."""
        source = self._sources.get(name)
        return source if source is not None and source.lazy and name not in self._models else None

    def _create_model(self, source: ModelSource, progress: ProgressCallback) -> LocalModel:
        """Create the model, blocking: the file may have to be fetched."""

        def report(task: str, done: int, total: int) -> None:
            if self._stopped:
                raise StartupError("The model download was stopped.")
            progress(task, done, total)

        file = source.file
        path = file if isinstance(file, Path) else fetch_model(file, self.settings.cache_dir, report)
        model = self.create_model(source, path)
        model.parser_choice = self.settings.reads
        if isinstance(file, KnownModel):
            model.default_sampling = file.sampling
        return model

    def create_model(self, source: ModelSource, path: Path) -> LocalModel:
        """Create the model of a file that is on this machine; raises StartupError if it cannot be served."""
        raise NotImplementedError

    def count_threads(self) -> int:
        """Return the configured threads, or the usable cores, which may be fewer in a container than on the machine."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return self.settings.threads or cores

    def limit_context(self, trained_context: int | None, default: int) -> int:
        context = self.settings.context or default
        return min(context, trained_context or context)
