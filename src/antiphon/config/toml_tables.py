"""Settings that only the TOML file can hold: engines, aliases, models, MCP servers and tenants.

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
from antiphon.config.rate_limits import TenantSpec
from antiphon.config.setting_types import Name
from antiphon.config.tool_settings import McpServerSpec
from antiphon.errors import StartupError

TABLES: dict[str, Any] = {
    "engines": tuple[EngineSpec, ...],
    "aliases": dict[Name, Name],
    "models": dict[Name, ModelSpec],
    "mcp": tuple[McpServerSpec, ...],
    "tool_servers": tuple[McpServerSpec, ...],
    "tenants": dict[Name, TenantSpec],
}
_TABLE_TITLES = {"engines": "[[engines]]", "aliases": "[aliases]", "models": '[models."NAME"]', "mcp": "[[mcp]]",
          "tool_servers": "[[tool_servers]]", "tenants": "[tenants.NAME]"}  # fmt: skip
_VARIABLE_PREFIX = "env:"


def read_table(name: str, value: Any, path: str) -> Any:
    """Return a table of the file, validated and with secrets resolved. Raises StartupError."""
    try:
        table = msgspec.convert(value, TABLES[name], strict=True, dec_hook=to_path)
    except msgspec.ValidationError as error:  # the message names the position and the expected type, never a value
        raise StartupError(f"{_TABLE_TITLES[name]} in {path} is invalid: {render_table_error(str(error))}.")
    if name == "engines":
        return tuple(_resolve_engine_key(spec, path) for spec in table)
    if name in ("mcp", "tool_servers"):
        return tuple(_resolve_mcp_secrets(spec, f"[[{name}]] in {path} reads a value") for spec in table)
    return table


def render_table_error(error: str) -> str:
    """Shorten msgspec's message: «Object contains unknown field `urll` - at `$[0]`» → «…, at [0]»."""
    message, _, position = error.partition(" - at `$")
    return f"{message}, at {position.rstrip('`').lstrip('.')}" if position.rstrip("`") else message


def _resolve_engine_key(spec: EngineSpec, path: str) -> EngineSpec:
    description = f"[[engines]] in {path} reads a key"
    return spec if spec.key is None else replace(spec, key=resolve_secret(spec.key, description))


def _resolve_mcp_secrets(spec: McpServerSpec, description: str) -> McpServerSpec:
    return replace(
        spec,
        env={name: resolve_secret(value, description) for name, value in spec.env.items()},
        headers={name: resolve_secret(value, description) for name, value in spec.headers.items()},
        authorization=None if spec.authorization is None else resolve_secret(spec.authorization, description),
    )


def resolve_secret(value: str, description: str) -> str:
    """Replace `env:NAME` by the value of the variable. Raises StartupError, which begins with `description`."""
    if not value.startswith(_VARIABLE_PREFIX):
        return value
    variable = value.removeprefix(_VARIABLE_PREFIX)
    if not (secret := os.environ.get(variable, "").strip()):
        raise StartupError(f"{description} from {variable}, which is not set.")
    return secret


def to_path(kind: type, value: Any) -> Path:
    """Convert a value for msgspec, which knows no paths."""
    if not isinstance(value, str | Path):
        raise TypeError(kind)
    return Path(value).expanduser()
