"""docs/configuration.md, made from the table of settings; `make docs` writes it."""

from collections.abc import Iterator
from itertools import groupby
from typing import get_args

from msgspec import Meta, Struct
from msgspec.structs import fields

from antiphon.config.engines import EngineSpec, ModelSpec
from antiphon.config.mcp import McpServerSpec
from antiphon.config.rate_limits import TenantSpec
from antiphon.config.sources import Setting, settings

INTRODUCTION = """\
# Configuration

`antiphon serve` needs no settings. Each one can be given in three ways, under one name:

| on the command line | in the environment | in a TOML file |
|---|---|---|
| `--fake-rate 20` | `ANTIPHON_FAKE_RATE=20` | `fake_rate = 20`, or `rate = 20` under `[fake]` |

A flag comes before the environment, the environment before the file, the file before the default; the first that has
a value wins, whole (lists are not merged). The file is the one named by `--config` or `ANTIPHON_CONFIG`, else
`./antiphon.toml`, else `$XDG_CONFIG_HOME/antiphon/config.toml`. In TOML a section is a prefix: `body_bytes` under
`[limit]` is `limit_body_bytes`. What may be repeated on the command line is a list in TOML and separated by commas in
the environment. Switches are `--name` and `--no-name`, `true` and `false`. An empty variable counts as not set.
Relative paths start from the working directory. A name nobody knows and a value that does not fit stop the start with
a sentence that says where it came from. Variables that Kubernetes makes for a service named `antiphon` are left alone.

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

## Engines, aliases and models, in the file

What `--engine` and its companions say can be said in more detail in the file, and more can be said there. Tables of
`[[engines]]` are left aside if a flag or a variable names engines. [pool.md](pool.md) tells how several engines work
together, and what a SIGHUP does.

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

## MCP servers, in the file

What `--mcp-server` says can be said in more detail. [mcp.md](mcp.md) tells how requests use them.

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


TENANTS = """\

## Tenants, in the file

What holds for one tenant in place of the quotas above, which hold for all. [limits.md](limits.md) tells what they mean,
[keys.md](keys.md) who is whose.

```toml
[tenants.acme]
requests_per_minute = 6000
background_queue = 50
```
"""


def page() -> str:
    tables = ENGINES + "".join([*_table("[[engines]]", EngineSpec), *_table('[models."NAME"]', ModelSpec)])
    tables += MCP + "".join(_table("[[mcp]]", McpServerSpec))
    tables += TENANTS + "".join(_table("[tenants.NAME]", TenantSpec))
    made = "\n_This page is made from the table of settings by `make docs`._\n"
    return INTRODUCTION + "".join(_sections()) + tables + made


def _sections() -> Iterator[str]:
    for title, rows in groupby(settings().values(), key=lambda row: row.note.group):
        yield f"\n## {title}\n\n| setting | default | |\n|---|---|---|\n"
        yield from map(_line, rows)


def _line(row: Setting) -> str:
    names = [row.flag, row.variable] if row.name == "config" else [row.flag, row.variable, row.name]
    text = row.note.text + (" Can be repeated." if row.repeats else "")
    return f"| {'<br>'.join(f'`{name}`' for name in names)} | {row.shown_default} | {text} |\n"


def _table(title: str, struct: type[Struct]) -> Iterator[str]:
    yield f"\n| `{title}` | |\n|---|---|\n"
    for row in fields(struct):
        marks = [mark.description for mark in get_args(row.type)[1:] if isinstance(mark, Meta)]
        yield f"| `{row.name}` | {next(filter(None, marks), '')} |\n"
