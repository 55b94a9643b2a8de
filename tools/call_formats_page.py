# ruff: noqa: E501 - rows of a table are as long as they are
"""docs/tool-calls.md, made from the registry of tool-call formats and what was recorded of each."""

from antiphon.parsers.calls.delimited_calls import MOST_CALLS, MOST_FAILURES
from antiphon.parsers.calls.registry import FORMATS, load_format
from antiphon.parsers.json.repair import MOST_ESCAPES, MOST_MENDS, MOST_PARTS
from antiphon.parsers.json.skip import CONTAINER, DEEPEST
from tests.golden.calls.recordings import load

SHOWN = 100  # characters of an example

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
    "hermes": "Hermes, Qwen 2.5, Qwen 3, and the tool prompt for templates that know no tools",
    "hunyuan_a13b": "Hunyuan A13B",
    "hy_v3": "Hunyuan 3",
    "internlm": "InternLM 2, 2.5",
    "jamba": "Jamba 1.5 and later",
    "json": "answers that an engine holds to a JSON schema",
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
    "pythonic": "Llama 3.2 and others that write Python",
    "qwen3_coder": "Qwen3-Coder, Qwen 3.5, Nemotron 3",
    "qwen3_xml": "as `qwen3_coder`",
    "seed_oss": "Seed-OSS",
    "step3": "Step 3",
    "step3p5": "Step 3.5",
    "xlam": "xLAM",
}

INTRODUCTION = """\
<!-- Made from src/antiphon/parsers/calls by `make docs`. Do not edit. -->

# Tool calls

Every family of models writes tool calls in its own way. Antiphon reads {count} of them, while they arrive: a call begins
for the client as soon as its name is known and its arguments begin, and the arguments follow as the model writes them.
[What models say](reasoning-formats.md) tells how the format of a model is found, and the flag `--tool-call-parser` that
names one. The names are vLLM's where it has the format too.

## The formats

| name | models | how a call looks |
|---|---|---|
"""

RULES = f"""
## What is a call, and what is text

- What is no call is text, to the character. So is a mark that no call follows, and everything that only looks like one.
- Formats that have a mark take any name after it; a call of something that was not offered is then dropped, and counted.
- Formats without a mark take only names that were offered, and only where the answer begins with the call: a call that a
  model quotes in the middle of a sentence stays text.
- Calls may be several, with text before, between and after them. Space between calls is nobody's.
- An answer that ends within a call has the call, with the arguments up to there.

## What is mended

Arguments that are valid JSON are passed on byte for byte. What has only one meaning is mended on the way:

- single quotes, keys and words without quotes, `True`, `False`, `None`, `NaN`, tuples
- line breaks and other control characters in strings, backslashes that escape nothing
- commas that are missing before a string, a list or an object; commas that are too many
- brackets that are missing or of the wrong kind; what is missing at the end, be it the end of the answer or a closing
  mark. A key without its value is left out there, and so is half a word
- arguments that were written as a string of JSON; `null` and an empty string, which are no arguments: `{{}}`

What has more than one meaning is not mended: two words without a comma, a key without a colon, an object after a value.
The arguments are then passed on as they were said, up to the next mark, and do not parse: whoever reads them sees what is
wrong. [Strict tools](structured-output.md) never get there.

## Bounds

A hundred kilobytes made to be slow take about 5 ms, whatever the format. What goes beyond a bound is text, or is passed
on as it was said:

| what | at most |
|---|---:|
| calls in an answer | {MOST_CALLS} |
| marks in an answer that came to nothing | {MOST_FAILURES} |
| lists and objects within each other | {DEEPEST} |
| commas in the arguments of a call; a list or an object counts as {CONTAINER} | {MOST_PARTS} |
| faults that are mended in a call | {MOST_MENDS} |
| escapes that are mended in a call | {MOST_ESCAPES} |
"""


def page() -> str:
    rows = [f"| `{name}` | {MODELS[name]} | {_example(name)} |" for name in FORMATS]
    return INTRODUCTION.format(count=len(FORMATS)) + "\n".join(rows) + "\n" + RULES


def _example(name: str) -> str:
    """The beginning of a call that was recorded, from its mark on."""
    recording = next(each for each in load(name) if "truncated" not in each.name)
    said = recording.output
    places = [said.find(mark) for mark in load_format(name)({}).openings]
    begin = min([place for place in places if place >= 0], default=0)
    shown = said[begin : begin + SHOWN].replace("\n", "↵").replace("|", "\\|")
    fence = "````" if "```" in shown else "``"
    return f"{fence} {shown}{'…' if len(said) > begin + SHOWN else ''} {fence}"
