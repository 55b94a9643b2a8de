"""Checks of the models that vector stores use. The rate of the embedding model tells how long indexing takes.

An embedding model of the embedded engine is loaded alone, and only if its file is on this machine.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

from msgspec.structs import replace

from antiphon.cli.doctor.engines import EMBEDDED
from antiphon.cli.doctor.findings import Finding, ok, shorten, warning
from antiphon.config import Config
from antiphon.config.engines import EngineSpec
from antiphon.engines.base import Engine, Task
from antiphon.engines.embedded.embedding import pooling_type
from antiphon.engines.embedded.known_models import EMBEDDING_MODEL
from antiphon.engines.embedded.model_files import is_fetched, parse_sources
from antiphon.engines.factory import build_member_specs
from antiphon.engines.openvino.model import read_model_header
from antiphon.errors import AntiphonError, StartupError

_OPEN_SECONDS, _MEASURE_SECONDS = 8.0, 6.0  # together less than a check may take
_ENOUGH_SECONDS = 0.5  # a request that takes as long shows the rate
_SAMPLE = "The filter of the machine is cleaned once a month with cold water, and then left to dry. " * 5
_MEGABYTE_TOKENS = 500_000  # of English text, in chunks that overlap by half


async def check_vector_models(config: Config) -> AsyncIterator[Finding]:
    engines = [*_build_engines(config)]
    try:
        opened = await asyncio.gather(*map(_list_tasks, engines))
        pairs = zip(engines, opened, strict=True)
        found = {model: (tasks, engine) for engine, models in pairs for model, tasks in models.items()}
        name = config.vectors.embedding_model
        wanted = found if name is None else [config.inference.names.get(name, name)]
        embedder = next((model for model in wanted if model in found and "embed" in found[model][0]), None)
        if embedder is not None:
            yield await _measure(found[embedder][1], embedder)
        elif name is not None:
            remedy = "Serve it, or download it with `antiphon pull`."
            yield warning(f"--embedding-model names {name}, with which no engine embeds yet.", remedy)
        else:
            yield ok("No model embeds yet. One of the embedded engine is downloaded when it is first used.")
        ranker = config.vectors.rerank_model
        if ranker and "rerank" not in found.get(config.inference.names.get(ranker, ranker), ((), None))[0]:
            remedy = "Start an engine that serves it, or correct --rerank-model."
            yield warning(f"--rerank-model names {ranker}, which no engine ranks with.", remedy)
    finally:
        await asyncio.gather(*[engine.close() for engine in engines])


def _build_engines(config: Config) -> Iterator[Engine]:
    for spec, member in zip(config.inference.specs, build_member_specs(config), strict=True):
        if spec.kind not in EMBEDDED:
            yield member.build()
        elif models := [*_find_embedding_files(spec, config)]:
            engine: Any = type(member.build())
            yield engine(replace(member.settings, model=tuple(models)))


def _find_embedding_files(spec: EngineSpec, config: Config) -> Iterator[str]:
    """Yield the models that embed or rank and whose files exist, as the setting --model names them."""
    for source in parse_sources(spec.models):
        with suppress(StartupError):  # the check of the models reports it
            if source.file == EMBEDDING_MODEL:
                if is_fetched(EMBEDDING_MODEL, config.inference.cache_dir):
                    yield f"{source.id}={EMBEDDING_MODEL.id}"
            elif isinstance(source.file, Path) and pooling_type(read_model_header(source.file)) is not None:
                yield f"{source.id}={source.file}"


async def _list_tasks(engine: Engine) -> dict[str, frozenset[Task]]:
    """Return the tasks of the models of an engine; none if it fails, which the check of the engines reports."""
    with suppress(AntiphonError, StartupError, OSError, TimeoutError):
        async with asyncio.timeout(_OPEN_SECONDS):
            await engine.open()
            return {model.id: (await engine.capabilities(model.id)).tasks for model in engine.models()}
    return {}


async def _measure(engine: Engine, model: str) -> Finding:
    try:
        async with asyncio.timeout(_MEASURE_SECONDS):
            await engine.embed(model, [_SAMPLE])  # may load the model
            seconds = rate = 0.0
            for count in (1, 8, 64):  # fast engines compute many texts at once
                if seconds < _ENOUGH_SECONDS:
                    started = perf_counter()
                    tokens = (await engine.embed(model, [_SAMPLE] * count)).tokens
                    seconds = perf_counter() - started
                    rate = tokens / seconds
    except TimeoutError:
        return warning(f"{model} did not embed a few short texts within {_MEASURE_SECONDS:g} s.")
    except AntiphonError as error:
        return warning(f"{model} does not embed: {shorten(error)}")
    minutes = _MEGABYTE_TOKENS / max(rate, 1.0) / 60.0
    return ok(f"{model} embeds {rate:,.0f} tokens per second: indexing 1 MB of English text takes {minutes:.1f} min.")
