"""docs/engines.md, made from the registry of engines and the one table of fields."""

from collections.abc import Iterator
from importlib import import_module

from antiphon.engines.http.base import HttpEngine
from antiphon.engines.http.fields import NAMES, TABLE, Cell, Kept, Lacking, Sent
from antiphon.engines.registry import ENGINES

TITLES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "ovms": "OpenVINO Model Server",
    "llamacpp-server": "llama.cpp's server",
    "ollama": "Ollama",
    "openai": "OpenAI, and what speaks like it",
}
# How they were tried; the others only over stand-ins that were written from their documentation and source.
TRIED = {"llamacpp-server": "with the real server"}
STAND_IN = "over a stand-in"

INTRODUCTION = """\
<!-- Made from src/antiphon/engines by `make docs`. Do not edit. -->

# Engines

An engine is what generates. Two come along: `llamacpp`, which is embedded and the default, and
[`fake`](fake-engine.md), which needs no model. All others run elsewhere and are named by a URL:

```sh
antiphon serve --engine vllm://gpu-1:8000
antiphon serve --engine vllm+https://gpu.example --engine-ca company.pem
antiphon serve --engine llamacpp-server+unix:///run/llama.sock
ANTIPHON_ENGINE_KEY=sk-… antiphon serve --engine openai+https://api.openai.com --model gpt-5.5
```

`NAME://` speaks HTTP in the clear, `NAME+https://` TLS, `NAME+unix://` HTTP on a unix socket. A path stands before all
paths of the engine (`vllm://gateway/team-a`); that of `openai` is the path of the API itself, `/v1` if there is none.
Certificates and names are always checked, against the system's authorities or those in the file of `--engine-ca`.

The key of an engine is given as `--engine-key`, `ANTIPHON_ENGINE_KEY` or `engine_key` in the TOML file. A key in a URL
is refused, because URLs end up in logs. It is sent to the engine that the URL names and to nobody else: redirects are
not followed.

With `--model` only the named models of an engine are served; without it all that the engine lists.
"""

PROBE = """\
## What an engine is asked about itself

When Antiphon starts, every quarter of a minute, and whenever work could not be handed over, an engine is asked for
its version, its models, their context lengths, its slots and whether it counts tokens, as far as it has an answer. An
engine that is not there keeps Antiphon from being ready (`GET /ready`), not from starting: it is asked again, after a
quarter of a second at first and every ten seconds at last, and served from as soon as it answers. Until then its
models are a 503 with `Retry-After`. `GET /v1/capabilities` shows what was found. Only a key that the engine does not
accept stops the start.

Where an engine counts tokens (vLLM, llama.cpp's server), a prompt that is too long is a 400 before any work, and
`truncation: "auto"` drops what is oldest. Elsewhere the engine finds out, and the client is told the same code,
`context_length_exceeded`.
"""

FIELDS = """\
## What each field becomes

A field of a request, and the name under which each engine gets it. **✗** is a 400 that names the field, the engine and
the reason; **·** is not sent, because Antiphon does it itself or because it changes no answer. `messages` carries the
conversation everywhere, developer messages as system messages; streams always ask for usage. An `n` above 1 and a
`priority` are refused by Antiphon itself as long as it has no use for them.
"""


def page() -> str:
    lines = [INTRODUCTION, *_engines(), "", PROBE, FIELDS, *_table(), "", *_notes()]
    return "\n".join(lines).rstrip() + "\n"


def _engines() -> Iterator[str]:
    yield "| engine | `--engine` | port | tried |"
    yield "|---|---|---:|---|"
    for name in NAMES:
        yield f"| {TITLES[name]} | `{name}://` | {_kind(name).port} | {TRIED.get(name, STAND_IN)} |"


def _kind(name: str) -> type[HttpEngine]:
    module, _, attribute = ENGINES[name].partition(":")
    kind: type[HttpEngine] = getattr(import_module(module), attribute)
    return kind


def _table() -> Iterator[str]:
    yield "| field | " + " | ".join(f"`{name}`" for name in NAMES) + " |"
    yield "|---" * (len(NAMES) + 1) + "|"
    for field, cells in TABLE.items():
        yield f"| `{field}` | " + " | ".join(_cell(cells[name]) for name in NAMES) + " |"


def _cell(cell: Cell) -> str:
    match cell:
        case Sent(name=name, also=also):
            return ", ".join(f"`{one}`" for one in [*also, name])
        case Kept():
            return "·"
        case Lacking():
            return "✗"


def _notes() -> Iterator[str]:
    """Those that say the same of the same engines in one line."""
    told: dict[tuple[str, str], list[str]] = {}
    for field, cells in TABLE.items():
        engines: dict[str, list[str]] = {}
        for name in NAMES:
            if note := _note(cells[name]):
                engines.setdefault(note, []).append(name)
        for note, names in engines.items():
            who = "all" if len(names) == len(NAMES) else ", ".join(names)
            told.setdefault((who, note), []).append(f"`{field}`")
    for (who, note), fields in told.items():
        yield f"- {', '.join(fields)} ({who}): {note}"


def _note(cell: Cell) -> str:
    match cell:
        case Lacking(reason=reason):
            return reason
        case Kept(note=note) | Sent(note=note):
            return note and f"{note}."
