"""What the TOML file alone can say, since it has a shape of its own: engines, aliases, models, and MCP servers.

[[engines]]                       [aliases]              [models."qwen3-8b"]            [[mcp]]
url = "vllm://gpu-1:8000"         fast = "qwen3-8b"      max_output_tokens = 4096       label = "notes"
key = "env:GPU_1_KEY"                                                                   command = "notes-server"
"""

import os
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from antiphon.config.engines import EngineSpec, ModelSpec
from antiphon.config.mcp import McpServerSpec
from antiphon.config.rate_limits import TenantSpec
from antiphon.config.value_types import Name
from antiphon.errors import StartupError

TABLES: dict[str, Any] = {
    "engines": tuple[EngineSpec, ...],
    "aliases": dict[Name, Name],
    "models": dict[Name, ModelSpec],
    "mcp": tuple[McpServerSpec, ...],
    "tenants": dict[Name, TenantSpec],
}
_SHOWN = {"engines": "[[engines]]", "aliases": "[aliases]", "models": '[models."NAME"]', "mcp": "[[mcp]]",
          "tenants": "[tenants.NAME]"}  # fmt: skip
_VARIABLE = "env:"


def read_tables(content: dict[str, Any], path: str) -> dict[str, Any]:
    """Those that are there, checked."""
    found = {name: _converted(name, content[name], path) for name in TABLES if name in content}
    if "engines" in found:
        found["engines"] = tuple(_keyed(spec, path) for spec in found["engines"])
        if not found["engines"]:
            del found["engines"]
    if "mcp" in found:
        found["mcp"] = tuple(_trusted(spec, path) for spec in found["mcp"])
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
    return spec if spec.key is None else replace(spec, key=_revealed(spec.key, f"[[engines]] in {path} takes a key"))


def _trusted(spec: McpServerSpec, path: str) -> McpServerSpec:
    """Likewise with what it identifies itself with."""
    what = f"[[mcp]] in {path} takes something"
    return replace(
        spec,
        env={name: _revealed(value, what) for name, value in spec.env.items()},
        headers={name: _revealed(value, what) for name, value in spec.headers.items()},
        authorization=None if spec.authorization is None else _revealed(spec.authorization, what),
    )


def _revealed(value: str, what: str) -> str:
    if not value.startswith(_VARIABLE):
        return value
    variable = value.removeprefix(_VARIABLE)
    if not (found := os.environ.get(variable, "").strip()):
        raise StartupError(f"{what} from {variable}, which is not set.")
    return found


def _path(kind: type, value: Any) -> Path:
    if not isinstance(value, str):
        raise TypeError(kind)
    return Path(value).expanduser()
