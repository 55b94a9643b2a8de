"""Detection of a model's output format: the configuration takes precedence, then the chat template, then the model's
name.
"""

from pathlib import Path

import msgspec
import pytest
from msgspec import Struct

from antiphon.core.prompt import ParserChoice
from antiphon.errors import StartupError
from antiphon.parsers.calls.registry import FORMATS
from antiphon.parsers.detection import (
    CALL_ALIASES,
    CALL_MARKERS,
    MODEL_FAMILIES,
    REASONING_ALIASES,
    REASONING_MARKERS,
    UNSUPPORTED,
    ModelOutputFormat,
    detect_output_format,
    get_configured_format,
)
from antiphon.parsers.reasoning import REASONING_FORMATS
from tests.support.paths import DOCS

AUTO = ParserChoice()


class TemplateSample(Struct, frozen=True, kw_only=True):
    """A chat template in use: the markers that occur in it, and the formats of its model."""

    path: str
    marks: tuple[str, ...]
    thoughts: str | None
    calls: str | None
    harmony: bool = False


TEMPLATES = [
    sample
    for several in msgspec.json.decode(
        Path(__file__).with_name("templates.json").read_bytes(), type=dict[str, list[TemplateSample]]
    ).values()
    for sample in several
]

# name or architecture, reasoning format, call format
NAMES = [
    ("Qwen/Qwen3-8B", "qwen3", "hermes"),
    ("Qwen3-30B-A3B-Thinking-2507-Q4_K_M.gguf", "qwen3", "hermes"),
    ("Qwen/Qwen3-30B-A3B-Instruct-2507", None, "hermes"),
    ("Qwen/Qwen3-Coder-30B-A3B-Instruct", None, "qwen3_coder"),
    ("Qwen/Qwen3.5-35B-A3B", "qwen3", "qwen3_coder"),
    ("Qwen/QwQ-32B", "qwen3", "hermes"),
    ("qwen2.5-coder-1.5b-instruct", None, "hermes"),
    ("qwen3_moe", "qwen3", "hermes"),
    ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "deepseek_r1", "deepseek_v3"),
    ("deepseek-ai/DeepSeek-V3-0324", None, "deepseek_v3"),
    ("deepseek-ai/DeepSeek-V3.1", "deepseek_v3", "deepseek_v31"),
    ("deepseek-ai/DeepSeek-V3.2-Exp", "deepseek_v3", "deepseek_v32"),
    ("zai-org/GLM-4.5-Air", "glm45", "glm45"),
    ("zai-org/GLM-4.7-Flash", "glm47", "glm47"),
    ("glm4_moe", "glm45", "glm45"),
    ("moonshotai/Kimi-K2-Instruct", None, "kimi_k2"),
    ("moonshotai/Kimi-K2-Thinking", "kimi_k2", "kimi_k2"),
    ("MiniMaxAI/MiniMax-M2", "minimax_m2", "minimax_m2"),
    ("mistralai/Magistral-Small-2509", "mistral", "mistral"),
    ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", None, "mistral"),
    ("mistralai/Devstral-Small-2507", None, "mistral"),
    ("ibm-granite/granite-3.3-8b-instruct", "granite", "granite"),
    ("ibm-granite/granite-4.0-h-small", None, "granite4"),
    ("ibm-granite/granite-20b-functioncalling", None, "granite-20b-fc"),
    ("ByteDance-Seed/Seed-OSS-36B-Instruct", "seed_oss", "seed_oss"),
    ("tencent/Hunyuan-A13B-Instruct", "hunyuan_a13b", "hunyuan_a13b"),
    ("baidu/ERNIE-4.5-21B-A3B-Thinking", "ernie45", "ernie45"),
    ("stepfun-ai/step3", "step3", "step3"),
    ("stepfun-ai/Step-3.5-Flash", "step3p5", "step3p5"),
    ("allenai/Olmo-3-7B-Think", "olmo3", "olmo3"),
    ("allenai/Olmo-3-7B-Instruct", None, "olmo3"),
    ("google/functiongemma-270m-it", None, "functiongemma"),
    ("google/gemma-4-31b-it", "gemma4", "gemma4"),
    ("google/gemma-3-27b-it", None, "pythonic"),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nemotron_v3", "qwen3_coder"),
    ("XiaomiMiMo/MiMo-V2-Flash", "mimo", "mimo"),
    ("meituan-longcat/LongCat-Flash-Chat", None, "longcat"),
    ("microsoft/Phi-4-mini-instruct", None, "phi4_mini_json"),
    ("internlm/internlm2_5-7b-chat", None, "internlm"),
    ("ai21labs/AI21-Jamba-1.5-Mini", None, "jamba"),
    ("Salesforce/Llama-xLAM-2-8b-fc-r", None, "xlam"),
    ("LiquidAI/LFM2-8B-A1B", None, "lfm2"),
    ("meta-llama/Llama-4-Scout-17B-16E-Instruct", None, "llama4_pythonic"),
    ("meta-llama/Llama-3.3-70B-Instruct", None, "llama3_json"),
    ("NousResearch/Hermes-3-Llama-3.1-8B", None, "hermes"),
    ("HuggingFaceTB/SmolLM3-3B", "think", "hermes"),
    ("CohereLabs/command-a-reasoning-08-2025", "cohere_command3", "cohere_command3"),
]


@pytest.mark.parametrize("sample", TEMPLATES, ids=lambda sample: sample.path.rpartition("/")[2])
@pytest.mark.shows("D.8")
def test_the_markers_of_a_template_determine_the_format(sample: TemplateSample) -> None:
    source = "\n".join(sample.marks) or "a template without marks"
    output_format = detect_output_format("a-model", None, source, AUTO)
    if sample.harmony:
        assert output_format.harmony
    else:
        assert (output_format.reasoning, output_format.calls) == (sample.thoughts, sample.calls)


@pytest.mark.parametrize(("name", "reasoning", "calls"), NAMES)
def test_without_a_template_the_name_or_the_architecture_determines_the_format(
    name: str, reasoning: str | None, calls: str
) -> None:
    # the default markers do no harm in a model that does not use them
    expected = ModelOutputFormat(reasoning=reasoning or "think", calls=calls)
    assert detect_output_format(name, None, "", AUTO) == expected
    assert detect_output_format("a-model", name, "", AUTO) == expected


def test_a_template_takes_precedence_over_a_name() -> None:
    assert detect_output_format("gemma-4-tuned", "gemma4", "<tool_call> <think>", AUTO) == ModelOutputFormat(
        reasoning="think", calls="hermes"
    )
    # the format of the name has the same markers
    assert detect_output_format("Qwen3-8B", "qwen3", "<tool_call> <think>", AUTO).reasoning == "qwen3"
    assert detect_output_format("some-model", "llama", "nothing", AUTO) == ModelOutputFormat(
        reasoning=None, calls="hermes"
    )


@pytest.mark.parametrize("name", ["openai/gpt-oss-20b", "gpt-oss", "gpt_oss"])
def test_gpt_oss_uses_harmony(name: str) -> None:
    assert detect_output_format(name, None, "", AUTO).harmony
    assert detect_output_format("a-model", name, "", AUTO).harmony
    assert not detect_output_format(name, None, "", ParserChoice(calls="hermes")).harmony


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (ParserChoice(calls="mistral"), ModelOutputFormat(reasoning="qwen3", calls="mistral")),
        (ParserChoice(reasoning="deepseek_r1"), ModelOutputFormat(reasoning="deepseek_r1", calls="hermes")),
        (ParserChoice(reasoning="none"), ModelOutputFormat(reasoning=None, calls="hermes")),
        (ParserChoice(calls="none"), ModelOutputFormat(reasoning="qwen3", calls=None)),
        (
            ParserChoice(reasoning="deepseek-r1", calls="qwen3-coder"),
            ModelOutputFormat(reasoning="deepseek_r1", calls="qwen3_coder"),
        ),
        (
            ParserChoice(reasoning="magistral", calls="llama3"),
            ModelOutputFormat(reasoning="mistral", calls="llama3_json"),
        ),
        (ParserChoice(harmony=True), ModelOutputFormat(harmony=True)),
        (ParserChoice(reasoning="openai_gptoss"), ModelOutputFormat(harmony=True)),
        (ParserChoice(calls="openai"), ModelOutputFormat(harmony=True)),
    ],
)
def test_the_configured_parsers_take_precedence(choice: ParserChoice, expected: ModelOutputFormat) -> None:
    get_configured_format(choice)
    assert detect_output_format("Qwen3-8B", "qwen3", "<tool_call> <think>", choice) == expected


def test_the_output_of_a_parsing_engine_is_parsed_only_as_configured() -> None:
    assert get_configured_format(AUTO) == ModelOutputFormat(calls=None)
    assert get_configured_format(ParserChoice(reasoning="qwen3")) == ModelOutputFormat(reasoning="qwen3", calls=None)
    assert get_configured_format(ParserChoice(calls="hermes")) == ModelOutputFormat(calls="hermes")


@pytest.mark.parametrize(
    ("choice", "flag"), [(ParserChoice(calls="hermies"), "tool-call"), (ParserChoice(reasoning="q"), "reasoning")]
)
def test_an_unknown_parser_name_is_rejected_with_the_available_names(choice: ParserChoice, flag: str) -> None:
    with pytest.raises(StartupError, match=rf"{flag}-parser .* is not known; there are auto, none, .*, mistral"):
        get_configured_format(choice)


def test_a_model_with_an_unsupported_call_format_is_instructed_to_use_hermes() -> None:
    output_format = detect_output_format("MiniMax-M3", None, "<mm:think> <tool_call>", AUTO)
    assert output_format == ModelOutputFormat(reasoning="minimax_m3", calls="hermes", calls_unsupported=True)


def test_every_row_names_existing_formats() -> None:
    calls = (
        {name for _, name in CALL_MARKERS} | {family.calls for family in MODEL_FAMILIES} | set(CALL_ALIASES.values())
    )
    reasoning = {name for _, name in REASONING_MARKERS} | {family.reasoning for family in MODEL_FAMILIES}
    assert calls - {None, UNSUPPORTED} <= FORMATS.keys()
    assert (reasoning | set(REASONING_ALIASES.values())) - {None} <= REASONING_FORMATS.keys()


@pytest.mark.parametrize("name", REASONING_FORMATS)
def test_every_reasoning_format_is_documented(name: str) -> None:
    page = DOCS / "reasoning-formats.md"
    assert f"`{name}`" in page.read_text("utf-8")


def test_every_call_format_is_detected_for_some_model() -> None:
    chosen = {name for _, name in CALL_MARKERS} | {family.calls for family in MODEL_FAMILIES}
    only_configurable = {"json", "qwen3_xml", "minicpm5"}
    assert FORMATS.keys() - chosen <= only_configurable
