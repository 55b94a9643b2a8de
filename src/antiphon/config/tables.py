"""What the TOML file alone can say, since it has a shape of its own: engines, aliases, and models.

[[engines]]                       [aliases]              [models."qwen3-8b"]
url = "vllm://gpu-1:8000"         fast = "qwen3-8b"      max_output_tokens = 4096
key = "env:GPU_1_KEY"
"""

import os
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from antiphon.config.engines import EngineSpec, ModelSpec
from antiphon.config.kinds import Name
from antiphon.errors import StartupError

TABLES: dict[str, Any] = {
    "engines": tuple[EngineSpec, ...],
    "aliases": dict[Name, Name],
    "models": dict[Name, ModelSpec],
}
_SHOWN = {"engines": "[[engines]]", "aliases": "[aliases]", "models": '[models."NAME"]'}
_VARIABLE = "env:"


def read_tables(content: dict[str, Any], path: str) -> dict[str, Any]:
    """Those that are there, checked."""
    found = {name: _converted(name, content[name], path) for name in TABLES if name in content}
    if "engines" in found:
        found["engines"] = tuple(_keyed(spec, path) for spec in found["engines"])
        if not found["engines"]:
            del found["engines"]
    return found


def _converted(name: str, value: Any, path: str) -> Any:
    try:
        return msgspec.convert(value, TABLES[name], strict=True, dec_hook=_path)
    except msgspec.ValidationError as error:  # its words name the place and what is expected, never a value
        raise StartupError(f"{_SHOWN[name]} in {path} does not fit: {_plain(str(error))}.")


def _plain(error: str) -> str:
    """«Object contains unknown field `urll` - at `$[0]`» → «…, at [0]»."""
    words, _, place = error.partition(" - at `$")
    return f"{words}, at {place.rstrip('`').lstrip('.')}" if place.rstrip("`") else words


def _keyed(spec: EngineSpec, path: str) -> EngineSpec:
    """With the key itself where a variable holds it."""
    if spec.key is None or not spec.key.startswith(_VARIABLE):
        return spec
    variable = spec.key.removeprefix(_VARIABLE)
    if not (key := os.environ.get(variable, "").strip()):
        raise StartupError(f"[[engines]] in {path} takes a key from {variable}, which is not set.")
    return replace(spec, key=key)


def _path(kind: type, value: Any) -> Path:
    if not isinstance(value, str):
        raise TypeError(kind)
    return Path(value).expanduser()
