"""Generates docs/configuration.md from the table of settings; `make docs` writes it."""

from collections.abc import Iterator
from itertools import groupby
from typing import get_args

from msgspec import Struct
from msgspec.structs import fields

from antiphon.config.engines import EngineSpec, ModelSpec
from antiphon.config.image_settings import ImageServiceSpec
from antiphon.config.rate_limits import TenantSpec
from antiphon.config.settings import Setting, settings
from antiphon.config.tool_settings import McpServerSpec

INTRODUCTION = """\
# Configuration

`antiphon serve` runs without any settings. Each setting has one name and can be set in three ways:

| command line | environment | TOML file |
|---|---|---|
| `--fake-rate 20` | `ANTIPHON_FAKE_RATE=20` | `fake_rate = 20`, or `rate = 20` under `[fake]` |

Flags take precedence over the environment, the environment over the file, and the file over the default. The value of
the first source is used as a whole; lists are not merged. The file is the one named by `--config` or
`ANTIPHON_CONFIG`, else `./antiphon.toml`, else `$XDG_CONFIG_HOME/antiphon/config.toml`. In TOML a section is a prefix:
`body_bytes` under `[limit]` is `limit_body_bytes`. Settings that can be repeated on the command line are lists in TOML,
and comma-separated in the environment. Switches are `--name` and `--no-name`, or `true` and `false`. An empty variable
counts as not set. Relative paths are relative to the working directory. Unknown names and invalid values prevent the
start, with an error message that names the source. Variables that Kubernetes sets for a service named `antiphon` are
ignored.

```toml
# antiphon.toml
model = ["./qwen.gguf", "small=./smollm2.gguf"]
api_key = ["one-for-me", "one-for-you"]
port = 9000

[limit]
body_bytes = 1000000
```
"""


ENGINES = """\

## Engines, aliases and models in the TOML file

The file can configure engines in more detail than `--engine` and its related flags. The `[[engines]]` tables are
ignored if a flag or a variable sets engines. [pool.md](pool.md) describes how several engines share the load, and what
SIGHUP does.

```toml
[[engines]]
url = "vllm://gpu-1:8000"
key = "env:GPU_1_KEY"

[[engines]]
url = "vllm://gpu-2:8000"
drain = true

[aliases]
fast = "qwen3-8b"

[models."qwen3-8b"]
default_output_tokens = 1024
max_output_tokens = 8192
```
"""

MCP = """\

## MCP servers in the TOML file

The file can configure MCP servers in more detail than `--mcp-server`. [mcp.md](mcp.md) describes how requests use them.

```toml
[[mcp]]
label = "github"
url = "https://api.githubcopilot.com/mcp/"
authorization = "env:GITHUB_TOKEN"
allowed_tools = ["search_issues", "get_issue"]

[[mcp]]
label = "notes"
command = "notes-server"
args = ["--folder", "/srv/notes"]
require_approval = "always"
```
"""

TOOL_SERVERS = """\

### [[tool_servers]]

MCP servers that run built-in tools, in more detail than `--tool-server`. The label is `python`, `browser` or
`container`, and the description is what models are told about the tool. The fields are those of `[[mcp]]`, without
`allowed_tools` and `require_approval`. [tool-servers.md](tool-servers.md) describes them.

```toml
[[tool_servers]]
label = "python"
url = "http://python-tool:8001/mcp"
authorization = "env:PYTHON_TOOL_TOKEN"
headers = { X-Team = "blue" }
```
"""


IMAGE_SERVICES = """\

## Image services

The tables of the file of `--image-service-config`. [images.md](images.md) describes image services.
"""


TENANTS = """\

## Tenants in the TOML file

Quotas of one tenant, which replace those above for all tenants. [limits.md](limits.md) describes the quotas,
[keys.md](keys.md) how keys belong to tenants.

```toml
[tenants.acme]
requests_per_minute = 6000
background_queue = 50
```
"""


def page() -> str:
    """Render the page as Markdown."""
    tables = ENGINES + "".join(
        [*_render_table("[[engines]]", EngineSpec), *_render_table('[models."NAME"]', ModelSpec)]
    )
    tables += MCP + "".join(_render_table("[[mcp]]", McpServerSpec)) + TOOL_SERVERS
    tables += IMAGE_SERVICES + "".join(_render_table("[NAME]", ImageServiceSpec))
    tables += TENANTS + "".join(_render_table("[tenants.NAME]", TenantSpec))
    footer = "\n_This page is generated from the table of settings by `make docs`._\n"
    return INTRODUCTION + "".join(_render_sections()) + tables + footer


def _render_sections() -> Iterator[str]:
    for title, rows in groupby(settings().values(), key=lambda row: row.group):
        yield f"\n## {title}\n\n| setting | default | description |\n|---|---|---|\n"
        yield from map(_render_setting, rows)


def _render_setting(row: Setting) -> str:
    names = [row.flag, row.variable] if row.name == "config" else [row.flag, row.variable, row.name]
    text = row.text + (" Can be repeated." if row.is_repeatable else "")
    return f"| {'<br>'.join(f'`{name}`' for name in names)} | {row.default_text} | {text} |\n"


def _render_table(title: str, struct: type[Struct]) -> Iterator[str]:
    yield f"\n| `{title}` | description |\n|---|---|\n"
    for row in fields(struct):
        text = next(note for note in get_args(row.type)[1:] if isinstance(note, str))
        yield f"| `{row.name}` | {text} |\n"
