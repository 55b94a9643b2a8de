"""Detection of Harmony models, and parsing of Harmony headers."""

import pytest

from antiphon.core.harmony import CHANNEL, CONSTRAIN, START
from antiphon.core.prompt import ParserChoice
from antiphon.parsers.detection import detect_output_format
from antiphon.parsers.harmony_header import HeaderPart, MessageTarget, find_called_tool, read_header, resolve_target

TEMPLATE = "{{ '<|start|>assistant<|channel|>analysis<|message|>' }}…<|call|>"


NAMES = ["openai/gpt-oss-120b", "gpt_oss_20b.gguf", "GPT-OSS:20b", "unsloth/gpt-oss-20b-BF16"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.shows("D1.1")
def test_a_harmony_model_is_detected_by_its_name(name: str) -> None:
    assert detect_output_format(name, None, "", ParserChoice()).harmony


@pytest.mark.parametrize("name", ["qwen3", "gpt-5.5", "oss-gpt", "harmony-7b", ""])
def test_other_names_are_not_harmony_models(name: str) -> None:
    assert not detect_output_format(name, None, "", ParserChoice()).harmony


@pytest.mark.shows("D1.1")
def test_a_harmony_model_is_detected_by_architecture_template_or_configuration() -> None:
    assert detect_output_format("mine", "gpt_oss", "", ParserChoice()).harmony
    assert detect_output_format("mine", "gpt-oss", "", ParserChoice()).harmony
    assert detect_output_format("mine", None, TEMPLATE, ParserChoice()).harmony
    assert detect_output_format("mine", "llama", "<|im_start|>", ParserChoice(harmony=True)).harmony
    assert not detect_output_format("gpt-oss-like", "llama", "<|im_start|>", ParserChoice()).harmony


def test_a_complete_header_is_parsed_to_its_end() -> None:
    parts = [
        HeaderPart(START, "assistant "),
        HeaderPart(CHANNEL, "odd commentary?? to= functions.f."),
        HeaderPart(CONSTRAIN, "JSON x"),
    ]
    header = read_header(parts, True)
    assert (header.role, header.channel, header.recipient) == ("assistant", "commentary", "functions.f")
    assert header.unrecognised == ["odd", "", "x"]
    assert not header.content


@pytest.mark.parametrize(
    ("parts", "remaining"),
    [
        ([HeaderPart(CHANNEL, "final The end.")], "The end."),
        ([HeaderPart(CHANNEL, "final"), HeaderPart(CONSTRAIN, 'json {"a": 1}')], '{"a": 1}'),
        ([HeaderPart(0, " bare words")], " bare words"),
        ([HeaderPart(START, "assistantfinal42")], "42"),
        ([HeaderPart(CHANNEL, "Words "), HeaderPart(CHANNEL, "and more")], "Words and more"),
        ([HeaderPart(CHANNEL, "comm")], ""),
        ([HeaderPart(CHANNEL, "commentary t")], ""),
        ([HeaderPart(CONSTRAIN, "js")], ""),
        ([HeaderPart(0, "  ")], "  "),
        ([], ""),
    ],
)
def test_an_incomplete_header_ends_at_the_first_foreign_text(parts: list[HeaderPart], remaining: str) -> None:
    assert read_header(parts, False).content == remaining


def test_messages_of_roles_other_than_assistant_become_reasoning() -> None:
    for role in ("user", "system", "developer", "functions.f", "browser.search"):
        header = read_header([HeaderPart(START, role), HeaderPart(CHANNEL, "commentary to=functions.f")], True)
        assert resolve_target(header, {"f"}) == MessageTarget(kind="thought")


@pytest.mark.parametrize(
    ("recipient", "name"),
    [
        ("functions.f", "f"),
        ("f", "f"),
        ("functions.space.g", "space__g"),
        ("space.g", "space__g"),
        ("functions.fjson", "f"),
        ("browser.search", "browser.search"),
        ("functions.browser.search", "browser.search"),
        ("container.exec", ""),
        ("functions", ""),
        ("", ""),
    ],
)
@pytest.mark.shows("D2.1")
def test_a_recipient_resolves_to_an_offered_tool_or_to_nothing(recipient: str, name: str) -> None:
    assert find_called_tool(recipient, {"f", "space__g", "browser"}) == name
