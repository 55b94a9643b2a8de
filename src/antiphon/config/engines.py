"""Engine specifications, from `[[engines]]` in the TOML file or from `--engine` and its related flags.

A key is sent to one engine only: if it is ambiguous which one, the server does not start.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Struct
from msgspec.structs import replace

from antiphon.config.setting_types import Count, Key, Name
from antiphon.errors import StartupError

_ADDRESSED_KEY = re.compile(r"[^=]+:\d+=.")  # unambiguously HOST:PORT=KEY


class EngineSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[engines]]` table."""

    url: Annotated[Name, "URL as in `--engine`: `vllm://gpu-1:8000`, `llamacpp`, `openvino:FILE`."]
    name: Annotated[Name | None, "Name in logs, metrics and `/v1/capabilities`; default: its kind, numbered."] = None
    key: Annotated[Key | None, "API key of this engine; `env:NAME` reads it from a variable."] = None
    ca: Annotated[Path | None, "File of CA certificates; default: `--engine-ca`."] = None
    models: Annotated[tuple[Name, ...], "Models to serve; for `llamacpp` and `openvino`, files as in `--model`."] = ()
    level: Annotated[Literal["chat", "tokens"] | None, "`chat` or `tokens`; default: `--engine-level`."] = None
    slots: Annotated[Count | None, "Maximum number of concurrent requests; default: `--engine-slots`."] = None
    context: Annotated[Count | None, "Context size of its models in tokens; default: `--context`."] = None
    tool_call_parser: Annotated[Name | None, "Format of the model's tool calls; default: `--tool-call-parser`."] = None
    reasoning_parser: Annotated[Name | None, "Format of the model's reasoning; default: `--reasoning-parser`."] = None
    harmony: Annotated[bool, "The model uses the Harmony format (gpt-oss)."] = False
    drain: Annotated[bool, "Send no new requests to it; running requests continue."] = False

    @property
    def kind(self) -> str:
        """Name of the engine in the registry: the kind of vllm+https://host is vllm."""
        scheme, colon, _ = self.url.partition(":")
        return scheme.partition("+")[0] if colon else self.url

    @property
    def is_remote(self) -> bool:
        return "://" in self.url

    @property
    def path_models(self) -> tuple[str, ...]:
        """The model file in the URL of an embedded engine, as in openvino:FILE."""
        path = "" if self.is_remote else self.url.partition(":")[2]
        return (path,) if path else ()

    @property
    def address(self) -> str:
        """HOST:PORT as written in the URL; the path of a unix socket."""
        authority = self.url.partition("://")[2]
        return authority if authority.startswith("/") else authority.partition("/")[0].lower()

    def __repr__(self) -> str:
        """Omits the key."""
        return f"EngineSpec(url={self.url!r}, name={self.name!r}, models={self.models!r}, drain={self.drain})"


class ModelSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[models."name"]` table."""

    default_output_tokens: Annotated[Count | None, "Output token limit of requests without max_output_tokens."] = None
    max_output_tokens: Annotated[Count | None, "Output token limit of all requests."] = None


def complete_specs(
    specs: Sequence[EngineSpec], keys: Sequence[str], ca: Path | None, slots: int | None, models: tuple[str, ...]
) -> tuple[EngineSpec, ...]:
    """Fill in the settings that apply to all engines where a spec has none. `keys`: KEY, or HOST:PORT=KEY, which are
    assigned to their engines.
    """
    _check_unique(specs)
    has_embedded = any(not spec.is_remote for spec in specs)
    assigned = _assign_keys(specs, keys)
    return tuple(
        replace(
            spec,
            key=spec.key or key,
            ca=spec.ca or (ca if spec.is_remote else None),
            slots=spec.slots or (slots if spec.is_remote else None),
            # Model files belong to the embedded engine; if there is none, model names apply to all engines.
            models=spec.models or spec.path_models or (models if not (has_embedded and spec.is_remote) else ()),
        )
        for spec, key in zip(specs, assigned, strict=True)
    )


def _check_unique(specs: Sequence[EngineSpec]) -> None:
    for label, values in (("engine", [spec.url for spec in specs if spec.is_remote]),
                        ("name of an engine", [spec.name for spec in specs if spec.name])):  # fmt: skip
        if duplicates := sorted({value for value in values if values.count(value) > 1}):
            raise StartupError(f"The {label} {duplicates[0]} is configured twice.")


def _assign_keys(specs: Sequence[EngineSpec], keys: Sequence[str]) -> list[str | None]:
    """Return the key of each engine, from --engine-key."""
    assigned: list[str | None] = [None] * len(specs)
    for value in keys:
        number, key = _parse_key(specs, value)
        if number is None:
            continue
        if assigned[number] is not None or specs[number].key is not None:
            raise StartupError(f"The engine {specs[number].address} has two keys.")
        assigned[number] = key
    return assigned


def _parse_key(specs: Sequence[EngineSpec], value: str) -> tuple[int | None, str]:
    """Return the index of the engine that a key belongs to, and the key itself.

    The index is None if all engines are embedded: the environment variable may be meant for another server.
    """
    remote = [number for number, spec in enumerate(specs) if spec.is_remote]
    address, _, key = value.partition("=")
    matching = [number for number in remote if address.lower() == specs[number].address and key]
    if len(matching) == 1:
        return matching[0], key
    if matching:
        raise StartupError(
            f"--engine-key names {address}, which several engines use: set the key of each in [[engines]]."
        )
    if not remote:
        return None, value
    if len(remote) == 1 and not _ADDRESSED_KEY.match(value):
        return remote[0], value
    addresses = ", ".join(specs[number].address for number in remote)
    raise StartupError(
        f"It is ambiguous which engine --engine-key is for: write HOST:PORT=KEY with one of {addresses}."
    )
