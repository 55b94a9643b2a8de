"""One EngineSpec for each engine, from `[[engines]]` in the file or from `--engine` and what belongs to it.

A key belongs to one engine and is never sent to another: where it is not clear to which, the server does not start.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from antiphon.config.value_types import Count, Key, Name
from antiphon.errors import StartupError

_FOR_A_PLACE = re.compile(r"[^=]+:\d+=.")  # what can only be meant as HOST:PORT=KEY


class EngineSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of `[[engines]]`."""

    url: Annotated[Name, Meta(description="As in `--engine`: `vllm://gpu-1:8000`, `llamacpp`.")]
    name: Annotated[
        Name | None, Meta(description="In logs, metrics and `/v1/capabilities`; else its kind, numbered.")
    ] = None
    key: Annotated[Key | None, Meta(description="Key for this engine alone; `env:NAME` takes it from a variable.")] = (
        None
    )
    ca: Annotated[Path | None, Meta(description="File of certificates to trust; else that of `--engine-ca`.")] = None
    models: Annotated[
        tuple[Name, ...], Meta(description="Serve these alone; for `llamacpp` files, as in `--model`.")
    ] = ()
    level: Annotated[
        Literal["chat", "tokens"] | None, Meta(description="`chat` or `tokens`; else that of `--engine-level`.")
    ] = None
    slots: Annotated[
        Count | None, Meta(description="Requests that it works on at once; else that of `--engine-slots`.")
    ] = None
    tool_call_parser: Annotated[
        Name | None, Meta(description="How its model writes tool calls; else that of `--tool-call-parser`.")
    ] = None
    reasoning_parser: Annotated[
        Name | None, Meta(description="How its model writes its thoughts; else that of `--reasoning-parser`.")
    ] = None
    harmony: Annotated[bool, Meta(description="Its model speaks Harmony, as gpt-oss does.")] = False
    drain: Annotated[bool, Meta(description="Give it no new work, and let what runs end.")] = False

    @property
    def kind(self) -> str:
        """The engine's name in the registry: vllm+https://host is of the engine vllm."""
        scheme, colon, _ = self.url.partition(":")
        return scheme.partition("+")[0] if colon else self.url

    @property
    def runs_elsewhere(self) -> bool:
        return ":" in self.url

    @property
    def place(self) -> str:
        """HOST:PORT as it stands in the URL; of a unix socket its path."""
        rest = self.url.partition("://")[2]
        return rest if rest.startswith("/") else rest.partition("/")[0].lower()

    def __repr__(self) -> str:
        """Without the key."""
        return f"EngineSpec(url={self.url!r}, name={self.name!r}, models={self.models!r}, drain={self.drain})"


class ModelSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of `[models."name"]`."""

    default_output_tokens: Annotated[
        Count | None, Meta(description="Tokens of an answer whose request names no max_output_tokens.")
    ] = None
    max_output_tokens: Annotated[Count | None, Meta(description="Tokens of any answer.")] = None


class Shared(Struct, frozen=True, kw_only=True):
    """What was said of all engines at once."""

    keys: tuple[str, ...] = ()  # KEY, or HOST:PORT=KEY
    ca: Path | None = None
    slots: int | None = None
    models: tuple[str, ...] = ()


def completed(specs: Sequence[EngineSpec], shared: Shared) -> tuple[EngineSpec, ...]:
    """With what was said of all engines where a table says nothing, and each with its own key."""
    _refuse_twins(specs)
    embedded = any(not spec.runs_elsewhere for spec in specs)
    keys = _assigned(specs, shared.keys)
    return tuple(
        replace(
            spec,
            key=spec.key or key,
            ca=spec.ca or (shared.ca if spec.runs_elsewhere else None),
            slots=spec.slots or (shared.slots if spec.runs_elsewhere else None),
            # Files are for the engine that runs here; names are for all if none does.
            models=spec.models or (shared.models if not (embedded and spec.runs_elsewhere) else ()),
        )
        for spec, key in zip(specs, keys, strict=True)
    )


def _refuse_twins(specs: Sequence[EngineSpec]) -> None:
    for what, given in (("engine", [spec.url for spec in specs if spec.runs_elsewhere]),
                        ("name of an engine", [spec.name for spec in specs if spec.name])):  # fmt: skip
        if twins := sorted({one for one in given if given.count(one) > 1}):
            raise StartupError(f"The {what} {twins[0]} is given twice.")


def _assigned(specs: Sequence[EngineSpec], keys: Sequence[str]) -> list[str | None]:
    """For each engine its key among those of --engine-key."""
    assigned: list[str | None] = [None] * len(specs)
    for given in keys:
        number, key = _owner(specs, given)
        if number is None:
            continue
        if assigned[number] is not None or specs[number].key is not None:
            raise StartupError(f"The engine {specs[number].place} has two keys.")
        assigned[number] = key
    return assigned


def _owner(specs: Sequence[EngineSpec], given: str) -> tuple[int | None, str]:
    """Whose key it is, and the key itself. Nobody's if all engines run here: the variable may be there for others."""
    elsewhere = [number for number, spec in enumerate(specs) if spec.runs_elsewhere]
    place, _, key = given.partition("=")
    named = [number for number in elsewhere if place.lower() == specs[number].place and key]
    if len(named) == 1:
        return named[0], key
    if named:
        raise StartupError(f"--engine-key names {place}, where several engines are; give each its key in [[engines]].")
    if not elsewhere:
        return None, given
    if len(elsewhere) == 1 and not _FOR_A_PLACE.match(given):
        return elsewhere[0], given
    places = ", ".join(specs[number].place for number in elsewhere)
    raise StartupError(f"It is not clear which engine --engine-key is for: write HOST:PORT=KEY, of {places}.")
