"""Which models speak Harmony, and what a header says."""

import pytest

from antiphon.core.harmony import CHANNEL, CONSTRAIN, START
from antiphon.core.prompt import Reads
from antiphon.parsers.detection import choose_manner
from antiphon.parsers.harmony.header import Address, Part, address, called, read_header

TEMPLATE = "{{ '<|start|>assistant<|channel|>analysis<|message|>' }}…<|call|>"


NAMES = ["openai/gpt-oss-120b", "gpt_oss_20b.gguf", "GPT-OSS:20b", "unsloth/gpt-oss-20b-BF16"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.shows("D1.1")
def test_a_model_is_known_by_its_name(name: str) -> None:
    assert choose_manner(name, None, "", Reads()).harmony


@pytest.mark.parametrize("name", ["qwen3", "gpt-5.5", "oss-gpt", "harmony-7b", ""])
def test_other_names_are_other_models(name: str) -> None:
    assert not choose_manner(name, None, "", Reads()).harmony


@pytest.mark.shows("D1.1")
def test_a_model_is_known_by_its_file_its_engine_its_template_or_its_operator() -> None:
    assert choose_manner("mine", "gpt_oss", "", Reads()).harmony
    assert choose_manner("mine", "gpt-oss", "", Reads()).harmony
    assert choose_manner("mine", None, TEMPLATE, Reads()).harmony
    assert choose_manner("mine", "llama", "<|im_start|>", Reads(harmony=True)).harmony
    assert not choose_manner("gpt-oss-like", "llama", "<|im_start|>", Reads()).harmony


def test_a_header_that_ended_is_read_to_its_last_word() -> None:
    parts = [Part(START, "assistant "), Part(CHANNEL, "odd commentary?? to= functions.f."), Part(CONSTRAIN, "JSON x")]
    header = read_header(parts, True)
    assert (header.role, header.channel, header.recipient) == ("assistant", "commentary", "functions.f")
    assert header.odd == ["odd", "", "x"]
    assert not header.rest


@pytest.mark.parametrize(
    ("parts", "rest"),
    [
        ([Part(CHANNEL, "final The end.")], "The end."),
        ([Part(CHANNEL, "final"), Part(CONSTRAIN, 'json {"a": 1}')], '{"a": 1}'),
        ([Part(0, " bare words")], " bare words"),
        ([Part(START, "assistantfinal42")], "42"),
        ([Part(CHANNEL, "Words "), Part(CHANNEL, "and more")], "Words and more"),
        ([Part(CHANNEL, "comm")], ""),
        ([Part(CHANNEL, "commentary t")], ""),
        ([Part(CONSTRAIN, "js")], ""),
        ([Part(0, "  ")], "  "),
        ([], ""),
    ],
)
def test_one_that_did_not_ends_at_the_first_word_that_is_none_of_its_own(parts: list[Part], rest: str) -> None:
    assert read_header(parts, False).rest == rest


def test_whoever_speaks_but_the_assistant_is_not_heard() -> None:
    for role in ("user", "system", "developer", "functions.f", "browser.search"):
        header = read_header([Part(START, role), Part(CHANNEL, "commentary to=functions.f")], True)
        assert address(header, {"f"}) == Address(kind="thought")


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
def test_a_recipient_is_the_name_of_what_was_offered_or_nothing(recipient: str, name: str) -> None:
    assert called(recipient, {"f", "space__g", "browser"}) == name
