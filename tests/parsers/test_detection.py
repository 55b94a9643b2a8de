"""Which words a model uses: its operator knows best, then its template, then its name."""

from pathlib import Path

import msgspec
import pytest
from msgspec import Struct

from antiphon.core.prompt import Reads
from antiphon.errors import StartupError
from antiphon.parsers.calls.registry import FORMATS
from antiphon.parsers.detection import Manner, check_reads, choose_manner, named_manner
from antiphon.parsers.model_families import CALL_NAMES, CALL_WORDS, FAMILIES, THOUGHT_NAMES, THOUGHT_WORDS, UNREAD
from antiphon.parsers.reasoning.formats import THOUGHTS
from tests.support.paths import DOCS

AUTO = Reads()


class Known(Struct, frozen=True, kw_only=True):
    """A chat template that is in use: the marks that occur in it, and what its model is."""

    path: str
    marks: tuple[str, ...]
    thoughts: str | None
    calls: str | None
    harmony: bool = False


TEMPLATES = [
    known
    for several in msgspec.json.decode(
        Path(__file__).with_name("templates.json").read_bytes(), type=dict[str, list[Known]]
    ).values()
    for known in several
]

# name or architecture, thoughts, calls
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


@pytest.mark.parametrize("known", TEMPLATES, ids=lambda known: known.path.rpartition("/")[2])
@pytest.mark.shows("D.8")
def test_a_templates_own_words_tell(known: Known) -> None:
    source = "\n".join(known.marks) or "a template without marks"
    manner = choose_manner("a-model", None, source, AUTO)
    if known.harmony:
        assert manner.harmony
    else:
        assert (manner.thoughts, manner.calls) == (known.thoughts, known.calls)


@pytest.mark.parametrize(("name", "thoughts", "calls"), NAMES)
def test_where_there_is_no_template_the_name_or_the_architecture_tells(
    name: str, thoughts: str | None, calls: str
) -> None:
    expected = Manner(thoughts=thoughts or "think", calls=calls)  # those marks do no harm where they do not occur
    assert choose_manner(name, None, "", AUTO) == expected
    assert choose_manner("a-model", name, "", AUTO) == expected


def test_a_template_counts_for_more_than_a_name() -> None:
    assert choose_manner("gemma-4-tuned", "gemma4", "<tool_call> <think>", AUTO) == Manner(
        thoughts="think", calls="hermes"
    )
    assert choose_manner("Qwen3-8B", "qwen3", "<tool_call> <think>", AUTO).thoughts == "qwen3"  # of the same marks
    assert choose_manner("some-model", "llama", "nothing", AUTO) == Manner(thoughts=None, calls="hermes")


@pytest.mark.parametrize("name", ["openai/gpt-oss-20b", "gpt-oss", "gpt_oss"])
def test_gpt_oss_speaks_harmony(name: str) -> None:
    assert choose_manner(name, None, "", AUTO).harmony
    assert choose_manner("a-model", name, "", AUTO).harmony
    assert not choose_manner(name, None, "", Reads(calls="hermes")).harmony


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        (Reads(calls="mistral"), Manner(thoughts="qwen3", calls="mistral")),
        (Reads(thoughts="deepseek_r1"), Manner(thoughts="deepseek_r1", calls="hermes")),
        (Reads(thoughts="none"), Manner(thoughts=None, calls="hermes")),
        (Reads(calls="none"), Manner(thoughts="qwen3", calls=None)),
        (Reads(thoughts="deepseek-r1", calls="qwen3-coder"), Manner(thoughts="deepseek_r1", calls="qwen3_coder")),
        (Reads(thoughts="magistral", calls="llama3"), Manner(thoughts="mistral", calls="llama3_json")),
        (Reads(harmony=True), Manner(harmony=True)),
        (Reads(thoughts="openai_gptoss"), Manner(harmony=True)),
        (Reads(calls="openai"), Manner(harmony=True)),
    ],
)
def test_the_operators_word_counts_for_more_than_all_else(reads: Reads, expected: Manner) -> None:
    check_reads(reads)
    assert choose_manner("Qwen3-8B", "qwen3", "<tool_call> <think>", reads) == expected


def test_an_engine_that_parses_is_read_only_as_far_as_the_operator_says() -> None:
    assert named_manner(AUTO) == Manner(calls=None)
    assert named_manner(Reads(thoughts="qwen3")) == Manner(thoughts="qwen3", calls=None)
    assert named_manner(Reads(calls="hermes")) == Manner(calls="hermes")


@pytest.mark.parametrize(("reads", "flag"), [(Reads(calls="hermies"), "tool-call"), (Reads(thoughts="q"), "reasoning")])
def test_a_word_that_nobody_knows_is_answered_with_those_there_are(reads: Reads, flag: str) -> None:
    with pytest.raises(StartupError, match=rf"{flag}-parser .* is not known; there are auto, none, .*, mistral"):
        check_reads(reads)


def test_a_model_whose_calls_nobody_can_read_is_told_how_to_write_them() -> None:
    manner = choose_manner("MiniMax-M3", None, "<mm:think> <tool_call>", AUTO)
    assert manner == Manner(thoughts="minimax_m3", calls="hermes", foreign=True)


def test_every_row_names_what_there_is() -> None:
    calls = {name for _, name in CALL_WORDS} | {family.calls for family in FAMILIES} | set(CALL_NAMES.values())
    thoughts = {name for _, name in THOUGHT_WORDS} | {family.thoughts for family in FAMILIES}
    assert calls - {None, UNREAD} <= FORMATS.keys()
    assert (thoughts | set(THOUGHT_NAMES.values())) - {None} <= THOUGHTS.keys()


@pytest.mark.parametrize("name", THOUGHTS)
def test_every_name_of_a_way_to_think_is_on_the_page_about_them(name: str) -> None:
    page = DOCS / "reasoning-formats.md"
    assert f"`{name}`" in page.read_text("utf-8")


def test_every_format_of_calls_is_chosen_for_some_model() -> None:
    chosen = {name for _, name in CALL_WORDS} | {family.calls for family in FAMILIES}
    by_word_alone = {"json", "qwen3_xml", "minicpm5"}
    assert FORMATS.keys() - chosen <= by_word_alone
