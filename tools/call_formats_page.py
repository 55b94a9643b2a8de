"""Renders docs/tool-calls.md from the registry of tool-call formats and the recordings of each format."""

from antiphon.parsers.calls.delimited_calls import MAX_CALLS, MAX_FAILURES
from antiphon.parsers.calls.registry import FORMATS, load_format
from antiphon.parsers.json_repair import CONTAINER_WEIGHT, MAX_DEPTH, MAX_ESCAPE_REPAIRS, MAX_PARTS, MAX_REPAIRS
from tests.golden.calls.recordings import load_recordings

EXAMPLE_LENGTH = 100  # characters

MODELS = {
    "apertus": "Apertus",
    "cohere_command3": "Command R7B, Command A",
    "deepseek_v3": "DeepSeek V3, R1",
    "deepseek_v31": "DeepSeek V3.1",
    "deepseek_v32": "DeepSeek V3.2",
    "deepseek_v4": "DeepSeek V4",
    "dots": "dots",
    "ernie45": "ERNIE 4.5",
    "functiongemma": "FunctionGemma",
    "gemma4": "Gemma 4",
    "gigachat3": "GigaChat 3, 3.1",
    "glm45": "GLM 4.5, 4.6",
    "glm47": "GLM 4.7 and later",
    "granite": "Granite 3",
    "granite-20b-fc": "Granite 20B function calling",
    "granite4": "Granite 4",
    "hermes": "Hermes, Qwen 2.5, Qwen 3, and the tool prompt for templates without tool support",
    "hunyuan_a13b": "Hunyuan A13B",
    "hy_v3": "Hunyuan 3",
    "internlm": "InternLM 2, 2.5",
    "jamba": "Jamba 1.5 and later",
    "json": "output that an engine constrains to a JSON schema",
    "kimi_k2": "Kimi K2",
    "lfm2": "LFM 2",
    "ling3": "Ling 3",
    "llama3_json": "Llama 3.1 to 3.3, Llama 4 with JSON",
    "llama4_pythonic": "Llama 4",
    "longcat": "LongCat Flash",
    "mimo": "MiMo",
    "minicpm5": "MiniCPM 5",
    "minimax": "MiniMax M1",
    "minimax_m2": "MiniMax M2",
    "mistral": "Mistral, Devstral, Magistral, Ministral",
    "nemotron": "Nemotron Nano 2",
    "olmo3": "OLMo 3",
    "phi4_mini_json": "Phi-4-mini",
    "poolside_v1": "Poolside",
    "pythonic": "Llama 3.2 and other models that write Python",
    "qwen3_coder": "Qwen3-Coder, Qwen 3.5, Nemotron 3",
    "qwen3_xml": "same as `qwen3_coder`",
    "seed_oss": "Seed-OSS",
    "step3": "Step 3",
    "step3p5": "Step 3.5",
    "xlam": "xLAM",
}

INTRODUCTION = """\
<!-- Generated from src/antiphon/parsers/calls by `make docs`. Do not edit. -->

# Tool calls

Each model family writes tool calls in its own format. Antiphon parses {count} formats while the output arrives: the
client receives a call as soon as its name is known and its arguments begin, and the arguments follow as the model
writes them. [Reasoning and output formats](reasoning-formats.md) describes how the format of a model is selected, and
the flag `--tool-call-parser`, which sets it. The names are those of vLLM where vLLM has the same format.

## Formats

| name | models | example of a call |
|---|---|---|
"""

RULES = f"""
## Calls and text

- Output that is not a call is text and passed on unchanged. This includes a marker without a call after it, and
  everything that only resembles a call.
- Formats with a marker accept any name after it. A call of a tool that the request did not offer leaves no item; the
  model [gets an error](structured-output.md#asking-again) if it called nothing else.
- Formats without a marker accept only names of offered tools, and only if the output begins with the call. A call that
  a model quotes within a sentence stays text.
- An output may contain several calls, with text before, between and after them. White space between calls is dropped.
- If the output ends within a call, the call has the arguments up to that point.

## Repairs

Arguments that are valid JSON are passed on byte for byte. Unambiguous errors are repaired:

- single quotes, triple quotes (with literal backslashes), keys and words without quotes, `True`, `False`, `None`,
  `NaN`, tuples
- line breaks and other control characters in strings, backslashes that escape nothing
- missing commas before a string, a list or an object; superfluous commas
- missing brackets and brackets of the wrong kind; a missing end, at the end of the output or at a closing marker. A key
  without a value is dropped there, and so is an incomplete word
- arguments that were written as a string of JSON; `null` and an empty string, which mean no arguments: `{{}}`

Ambiguous errors are not repaired: two words without a comma, a key without a colon, an object after a value. The
arguments are then passed on as the model wrote them, up to the next marker. They do not parse, so the client can detect
the error. With [strict tools](structured-output.md) this does not happen.

## Limits

Adversarial output of 100 kB takes about 5 ms in every format. Output beyond a limit is text, or is passed on as the
model wrote it:

| limit | maximum |
|---|---:|
| calls in an output | {MAX_CALLS} |
| markers in an output without a valid call | {MAX_FAILURES} |
| nested lists and objects | {MAX_DEPTH} |
| commas in the arguments of a call; a list or an object counts as {CONTAINER_WEIGHT} | {MAX_PARTS} |
| repaired errors in a call | {MAX_REPAIRS} |
| repaired escapes in a call | {MAX_ESCAPE_REPAIRS} |
"""


def render_page() -> str:
    rows = [f"| `{name}` | {MODELS[name]} | {_render_example(name)} |" for name in FORMATS]
    return INTRODUCTION.format(count=len(FORMATS)) + "\n".join(rows) + "\n" + RULES


def _render_example(name: str) -> str:
    """Return the beginning of a recorded call, from its marker on."""
    recording = next(each for each in load_recordings(name) if "truncated" not in each.name)
    output = recording.output
    positions = [output.find(marker) for marker in load_format(name)({}).openings]
    start = min([position for position in positions if position >= 0], default=0)
    excerpt = output[start : start + EXAMPLE_LENGTH].replace("\n", "↵").replace("|", "\\|")
    fence = "````" if "```" in excerpt else "``"
    return f"{fence} {excerpt}{'…' if len(output) > start + EXAMPLE_LENGTH else ''} {fence}"
