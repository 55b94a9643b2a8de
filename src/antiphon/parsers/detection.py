"""Detects the output format of a model: by configuration, by markers in its chat template, or by its name.

The tables identify families by markers in chat templates and by fragments of names and architectures. The first
matching row applies, so special rows precede general ones; values are names in parsers/reasoning.py and in
parsers/calls/registry.py. Unknown models get the most common format: reasoning in <think>, calls as in Hermes.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Final

from msgspec import Struct

from antiphon.core.prompt import ParserChoice
from antiphon.errors import StartupError
from antiphon.parsers.calls.registry import find_format, list_formats
from antiphon.parsers.reasoning import REASONING_FORMATS

UNSUPPORTED: Final = "unread"  # a call format that has no parser here
# (markers that must all be in the template, name of the format)
CALL_MARKERS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (("<|open|>", "<|sep|>"), UNSUPPORTED),
    (("<mm:think>",), UNSUPPORTED),
    (("<atem:function_calls>",), UNSUPPORTED),
    ((">>>all",), UNSUPPORTED),
    (("<TOOLCALL>",), "nemotron"),
    (("<|tool_call:begin|>",), UNSUPPORTED),
    (("<seed:tool_call>",), "seed_oss"),
    (("｜DSML｜", "tool_calls>"), "deepseek_v4"),
    (("｜DSML｜",), "deepseek_v32"),
    (("<｜tool▁calls▁begin｜>", "```json"), "deepseek_v3"),
    (("<｜tool▁calls▁begin｜>",), "deepseek_v31"),
    (("<|tool_calls_section_begin|>",), "kimi_k2"),
    (("<minimax:tool_call>",), "minimax_m2"),
    (("<longcat_tool_call>",), "longcat"),
    (("'<tool_calls{}>'",), "hy_v3"),
    (("<tool_call>", "<arg_key>"), "glm45"),
    (("<tool_call>", "<function="), "qwen3_coder"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<|START_ACTION|>",), "cohere_command3"),
    (("<|tools_prefix|>",), "apertus"),
    (("<|/tool_call|>",), "phi4_mini_json"),
    (("<|tool_call|>",), "granite"),
    (("<start_function_call>",), "functiongemma"),
    (("<|tool_call>",), "gemma4"),
    (("<|plugin|>",), "internlm"),
    (("<|tool_list_start|>",), "lfm2"),
    (("<|tool_call_start|>",), "lfm2"),
    (("<function_calls>",), "olmo3"),
    (("any <function ... </function>",), "minicpm5"),
    (("<function_call>",), "granite-20b-fc"),
    (("<tool_calls>", "工具"), "hunyuan_a13b"),
    (("<tool_calls>", "]<]minimax[>["), "minimax"),
    (("<tool_calls>", "<beginning_of_sentence>"), "minimax"),
    (("<tool_calls>",), "jamba"),
    (("functools[",), "phi4_mini_json"),
    (("<|function_call|>",), "gigachat3"),
    (("function call<|role_sep|>",), "gigachat3"),
    (("[func_name1(param1=",), "llama4_pythonic"),
    (("[func_name1(params_name1=",), "pythonic"),
    (("tool_call_name", "additional parallel tool calls"), "xlam"),
    (("dictionary of argument name and its value",), "llama3_json"),
    (("<|python_tag|>",), "llama3_json"),
    (("<tool_call>",), "hermes"),
)

REASONING_MARKERS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (("[THINK]",), "mistral"),
    (("<seed:think>",), "seed_oss"),
    (("<mm:think>",), "minimax_m3"),
    (("<|START_THINKING|>",), "cohere_command3"),
    (("<|channel>",), "gemma4"),
    (("<|open|>", "<|sep|>"), "kimi_k3"),
    (("Here is my thought process",), "granite"),
    (("<response></response>",), "granite"),
    (("[BEGIN FINAL RESPONSE]",), "apriel"),
    (("<think>", "<tool_calls>", "工具"), "hunyuan_a13b"),
    (("'<think{}>'",), "hy_v3"),
    (("<think>",), "think"),
    (("</think>",), "think"),
    (("enable_thinking",), "think"),
)


class ModelFamily(Struct, frozen=True):
    """Formats of the models whose names contain all fragments of an alternative, such as `olmo-3 think | olmo3`."""

    names: str  # alternatives of fragments in lower case, with hyphens for dots and underscores
    reasoning: str | None = None
    calls: str | None = None
    harmony: bool = False

    def matches(self, name: str) -> bool:
        alternatives = self.names.split("|")
        return any(all(fragment in name for fragment in fragments.split()) for fragments in alternatives)


MODEL_FAMILIES: Final = (
    ModelFamily("gpt-oss", harmony=True),
    ModelFamily("qwen3-coder", None, "qwen3_coder"),
    ModelFamily("qwen3-5 | qwen35 | qwen3-6", "qwen3", "qwen3_coder"),
    ModelFamily("qwen3 instruct", None, "hermes"),
    ModelFamily("deepseek-r1", "deepseek_r1", "deepseek_v3"),
    ModelFamily("deepseek-v4", "deepseek_v4", "deepseek_v4"),
    ModelFamily("deepseek-v3-2 | deepseek-v32", "deepseek_v3", "deepseek_v32"),
    ModelFamily("deepseek-v3-1 | deepseek-v31", "deepseek_v3", "deepseek_v31"),
    ModelFamily("deepseek-v3", None, "deepseek_v3"),
    ModelFamily("qwen3 | qwq", "qwen3", "hermes"),
    ModelFamily("qwen2 | qwen-2", None, "hermes"),
    ModelFamily("hermes-4", "think", "hermes"),
    ModelFamily("hermes", None, "hermes"),
    ModelFamily("glm-4-7 | glm-5", "glm47", "glm47"),
    ModelFamily("glm-4-5 | glm-4-6 | glm4-moe | glm4moe", "glm45", "glm45"),
    ModelFamily("kimi-k3", "kimi_k3"),
    ModelFamily("kimi-k2 instruct", None, "kimi_k2"),
    ModelFamily("kimi", "kimi_k2", "kimi_k2"),
    ModelFamily("minimax-m3", "minimax_m3"),
    ModelFamily("minimax-m1", "think", "minimax"),
    ModelFamily("minimax", "minimax_m2", "minimax_m2"),
    ModelFamily("magistral | ministral reasoning", "mistral", "mistral"),
    ModelFamily("mistral | ministral | mixtral | devstral | codestral", None, "mistral"),
    ModelFamily("granite-20b-functioncalling", None, "granite-20b-fc"),
    ModelFamily("granite-3", "granite", "granite"),
    ModelFamily("granite-4 | granitemoehybrid | granitehybrid", None, "granite4"),
    ModelFamily("granite", "granite", "granite"),
    ModelFamily("seed-oss", "seed_oss", "seed_oss"),
    ModelFamily("hunyuan", "hunyuan_a13b", "hunyuan_a13b"),
    ModelFamily("hy-v3 | hy3", "hy_v3", "hy_v3"),
    ModelFamily("ernie-4-5 | ernie4-5", "ernie45", "ernie45"),
    ModelFamily("step3p5 | step-3-5 | step3-5 | step35", "step3p5", "step3p5"),
    ModelFamily("step3", "step3", "step3"),
    ModelFamily("olmo-3 think", "olmo3", "olmo3"),
    ModelFamily("olmo-3", None, "olmo3"),
    ModelFamily("olmo3", "olmo3", "olmo3"),
    ModelFamily("functiongemma", None, "functiongemma"),
    ModelFamily("gemma-4 | gemma4", "gemma4", "gemma4"),
    ModelFamily("gemma-3 | gemma3", None, "pythonic"),
    ModelFamily("nemotron-3 | nemotron-h", "nemotron_v3", "qwen3_coder"),
    ModelFamily("nemotron", "think", None),
    ModelFamily("mimo-v2", "mimo", "mimo"),
    ModelFamily("mimo", "mimo", "hermes"),
    ModelFamily("longcat", None, "longcat"),
    ModelFamily("ling-3", "ling3", "ling3"),
    ModelFamily("laguna", "poolside_v1", "poolside_v1"),
    ModelFamily("holo2", "holo2", "hermes"),
    ModelFamily("command-a-reasoning", "cohere_command3", "cohere_command3"),
    ModelFamily("command", None, "cohere_command3"),
    ModelFamily("cohere", "cohere_command3", "cohere_command3"),
    ModelFamily("phi-4-mini", None, "phi4_mini_json"),
    ModelFamily("phi-4-reasoning", "think", None),
    ModelFamily("internlm", None, "internlm"),
    ModelFamily("jamba", None, "jamba"),
    ModelFamily("xlam", None, "xlam"),
    ModelFamily("lfm2", None, "lfm2"),
    ModelFamily("apertus", None, "apertus"),
    ModelFamily("gigachat", None, "gigachat3"),
    ModelFamily("llama-4 | llama4", None, "llama4_pythonic"),
    ModelFamily("toolace", None, "pythonic"),
    ModelFamily("llama-3", None, "llama3_json"),
    ModelFamily("smollm3", "think", "hermes"),
    ModelFamily("minicpm5", "think", "minicpm5"),
    ModelFamily("dots", None, "dots"),
    ModelFamily("apriel", "apriel", "jamba"),
)

HARMONY_ALIASES: Final = frozenset({"openai_gptoss", "gpt_oss", "gpt-oss", "openai", "harmony"})

# Names that other servers use for the same formats.
REASONING_ALIASES: Final = {
    "deepseek_v31": "deepseek_v3",
    "deepseek_v32": "deepseek_v3",
    "kimi": "kimi_k2",
    "magistral": "mistral",
    "minimax": "minimax_m2",
    "minimax_append_think": "minimax_m2_append_think",
    "nano_v3": "nemotron_v3",
    "qwen3_thinking": "qwen3",
    "qwq": "qwen3",
}
CALL_ALIASES: Final = {
    "cohere_command4": "cohere_command3",
    "deepseekv3": "deepseek_v3",
    "deepseekv31": "deepseek_v31",
    "deepseekv32": "deepseek_v32",
    "glm": "glm45",
    "llama3": "llama3_json",
    "llama4_json": "llama3_json",
    "qwen": "hermes",
    "qwen25": "hermes",
}

AUTO, NONE = "auto", "none"
DEFAULT_CALLS, DEFAULT_REASONING = "hermes", "think"


class ModelOutputFormat(Struct, frozen=True, kw_only=True):
    """Formats in which a model writes reasoning and calls."""

    reasoning: str | None = None  # name in parsers/reasoning.py
    calls: str | None = DEFAULT_CALLS  # name in parsers/calls/registry.py; None: the operator disabled call parsing
    calls_unsupported: bool = False  # its native calls cannot be parsed: the prompt must specify another format
    harmony: bool = False  # gpt-oss, which is parsed by tokens


@lru_cache(maxsize=256)
def detect_output_format(
    model: str, architecture: str | None, template: str, choice: ParserChoice
) -> ModelOutputFormat:
    """Detect the format of raw output, by the chat template, or the architecture that the file or engine names."""
    if _is_harmony(choice, _find_family(architecture or model), "" if architecture else template):
        return ModelOutputFormat(harmony=True)
    family = _find_family(architecture) or _find_family(model)
    configured = get_configured_format(choice)
    reasoning = configured.reasoning if choice.reasoning != AUTO else _detect_reasoning(family, template)
    calls = configured.calls if choice.calls != AUTO else _detect_calls(family, template)
    if calls == UNSUPPORTED:
        return ModelOutputFormat(reasoning=reasoning, calls_unsupported=True)
    return ModelOutputFormat(reasoning=reasoning, calls=calls)


@lru_cache(maxsize=256)
def is_reasoning_model(model: str, choice: ParserChoice) -> bool:
    """Return whether the operator's choice or the name of a model says that it reasons."""
    family = _find_family(model)
    by_name = family is not None and (family.harmony or family.reasoning is not None)
    return by_name if choice.reasoning in (AUTO, NONE) else True


@lru_cache(maxsize=256)
def get_configured_format(choice: ParserChoice) -> ModelOutputFormat:
    """Return the configured format, for engines that parse their output themselves: nothing is detected."""
    return ModelOutputFormat(
        reasoning=_find_name(
            "--reasoning-parser", choice.reasoning, REASONING_ALIASES, REASONING_FORMATS.get, lambda: REASONING_FORMATS
        ),
        calls=_find_name("--tool-call-parser", choice.calls, CALL_ALIASES, find_format, list_formats),
    )


def _is_harmony(choice: ParserChoice, family: ModelFamily | None, template: str) -> bool:
    """Return whether the model is gpt-oss. Its tokens belong to one architecture: with another, names do not count."""
    if choice.harmony or HARMONY_ALIASES.intersection((choice.reasoning, choice.calls)):
        return True
    if (choice.reasoning, choice.calls) != (AUTO, AUTO):
        return False
    return (family is not None and family.harmony) or "<|channel|>analysis" in template


def _detect_reasoning(family: ModelFamily | None, template: str) -> str | None:
    family_format = family.reasoning if family else None
    found = _match_template(REASONING_MARKERS, template)
    if found is None or (
        found == DEFAULT_REASONING
        and family_format is not None
        and "<think>" in REASONING_FORMATS[family_format].opening
    ):
        return family_format or (None if template else DEFAULT_REASONING)
    return found


def _detect_calls(family: ModelFamily | None, template: str) -> str:
    return _match_template(CALL_MARKERS, template) or (family.calls if family else None) or DEFAULT_CALLS


def _find_name(
    flag: str,
    parser_name: str,
    aliases: Mapping[str, str],
    find: Callable[[str], object | None],
    list_names: Callable[[], Iterable[str]],
) -> str | None:
    """Return the name of the configured format, as `find` accepts it; None for one that needs no parser here."""
    name = parser_name.replace("-", "_").lower()
    if name in HARMONY_ALIASES or name in (AUTO, NONE):
        return None
    for candidate in (parser_name, name, aliases.get(name)):
        if candidate and find(candidate) is not None:
            return candidate
    raise StartupError(f"{flag} {parser_name!r} is not known; there are auto, none, {', '.join(sorted(list_names()))}.")


def _match_template(rows: tuple[tuple[tuple[str, ...], str], ...], template: str) -> str | None:
    return next((name for markers, name in rows if all(marker in template for marker in markers)), None)


def _find_family(name: str | None) -> ModelFamily | None:
    normalised = (name or "").lower().replace("_", "-").replace(".", "-")
    return next((family for family in MODEL_FAMILIES if family.matches(normalised)), None)
