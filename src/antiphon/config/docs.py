"""docs/configuration.md, made from the table of settings; `make docs` writes it."""

from collections.abc import Iterator
from itertools import groupby

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


def page() -> str:
    return INTRODUCTION + "".join(_sections()) + "\n_This page is made from the table of settings by `make docs`._\n"


def _sections() -> Iterator[str]:
    for title, rows in groupby(settings().values(), key=lambda row: row.note.group):
        yield f"\n## {title}\n\n| setting | default | |\n|---|---|---|\n"
        yield from map(_line, rows)


def _line(row: Setting) -> str:
    names = [row.flag, row.variable] if row.name == "config" else [row.flag, row.variable, row.name]
    text = row.note.text + (" Can be repeated." if row.repeats else "")
    return f"| {'<br>'.join(f'`{name}`' for name in names)} | {row.shown_default} | {text} |\n"
