"""Thoughts and answers come apart, however they are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.prompt import ChatPrompt, Chunk, Prompt, Segment, TextPrompt
from antiphon.parsers.registry import PARSERS, load_parser
from antiphon.parsers.think import ThinkParser
from antiphon.protocol.response import Logprob
from tests.parsers.cuts import CUTS, pieces
from tests.parsers.said import NO_PROMPT, everything, joined, opened, tokens

SAID = st.lists(st.sampled_from(["<think>", "</think>", "<", "</", "think>", " ", "\n", "a", "é"]), max_size=14).map(
    "".join
)


def told(text: str, prompt: Prompt = NO_PROMPT) -> list[tuple[str, str]]:
    return joined(everything(ThinkParser(prompt), [Chunk(text=text)]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\nhm\n</think>\n\nYes.", [("thought", "hm"), ("text", "Yes.")]),
        ("\n <think>a b\n\nc</think> d ", [("thought", "a b\n\nc"), ("text", "d ")]),
        ("<think></think>x", [("text", "x")]),
        ("<think> \n </think>", []),
        (" plain\n", [("text", " plain\n")]),
        ("<thin", [("text", "<thin")]),
        ("<thing> is no mark", [("text", "<thing> is no mark")]),
        ("first <think>x</think>", [("text", "first <think>x</think>")]),
        ("<think>x</think>a <think>b</think>", [("thought", "x"), ("text", "a <think>b</think>")]),
        ("<think>cut off \n</thi", [("thought", "cut off \n</thi")]),
        ("</think>x", [("text", "</think>x")]),
        ("", []),
        ("  ", [("text", "  ")]),
    ],
)
@pytest.mark.shows("D4.1")
def test_a_thought_before_the_answer_is_told_from_it(text: str, expected: list[tuple[str, str]]) -> None:
    assert told(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hm\n</think>\nYes.", [("thought", "hm"), ("text", "Yes.")]),
        ("<think>hm</think>Yes.", [("thought", "hm"), ("text", "Yes.")]),
        ("</think>Yes.", [("text", "Yes.")]),
        ("hm", [("thought", "hm")]),
        ("<thi", [("thought", "<thi")]),
    ],
)
@pytest.mark.shows("D4.2")
def test_a_prompt_that_ends_with_the_mark_begins_with_a_thought(text: str, expected: list[tuple[str, str]]) -> None:
    assert told(text, opened("<think>")) == expected


@pytest.mark.parametrize(
    "prompt",
    [
        ChatPrompt(({"role": "user", "content": "<think>"},)),
        TextPrompt((Segment("<|user|>", True), Segment("<think>", False))),
        TextPrompt((Segment("<think>\n\n</think>\n\n", True),)),
    ],
)
def test_no_one_but_the_template_opens_a_thought(prompt: Prompt) -> None:
    assert told("Yes.", prompt) == [("text", "Yes.")]


@given(text=SAID, cuts=CUTS, begun=st.booleans())
@pytest.mark.shows("D.18")
def test_a_cut_anywhere_tells_the_same(text: str, cuts: list[int], begun: bool) -> None:
    prompt = opened("<think>") if begun else NO_PROMPT
    parts = [Chunk(text=part) for part in pieces(text, cuts)]
    assert joined(everything(ThinkParser(prompt), parts)) == told(text, prompt)


@given(
    words=st.lists(st.sampled_from(["<think>", "</think>", "<thi", "nk>", "</", " \n", "a", "b "]), max_size=12),
    size=st.integers(1, 4),
)
@pytest.mark.shows("D.16")
def test_the_answers_tokens_and_no_others_keep_their_logprobs(words: list[str], size: int) -> None:
    """Several tokens to a chunk or one: the tokens that are told reach to the end and cover the answer."""
    chunks = [
        Chunk(
            text="".join(words[at : at + size]),
            logprobs=tuple(Logprob(token=word, bytes=[], logprob=-1.0) for word in words[at : at + size]),
        )
        for at in range(0, len(words), size)
    ]
    deltas = everything(ThinkParser(NO_PROMPT), chunks)
    answer = "".join(text for kind, text in joined(deltas) if kind == "text")
    kept = tokens(deltas)
    assert kept == words[len(words) - len(kept) :]
    assert "".join(kept).endswith(answer)
    assert not kept or len("".join(kept)) - len(answer) < len(kept[0])


def test_what_is_no_mark_is_said_at_once() -> None:
    parser = ThinkParser(NO_PROMPT)
    assert joined(parser.feed(Chunk(text="<think>I wonder"))) == [("thought", "I wonder")]
    assert joined(parser.feed(Chunk(text=" why </"))) == [("thought", " why")]
    assert joined(parser.feed(Chunk(text="b>"))) == [("thought", " </b>")]
    assert joined(parser.feed(Chunk(text="</think>So"))) == [("text", "So")]
    assert joined(parser.feed(Chunk(text=" <think>"))) == [("text", " <think>")]


@pytest.mark.parametrize("name", [name for name in PARSERS if name.endswith("think")])
def test_every_family_of_the_table_has_its_marks(name: str) -> None:
    parser = load_parser(name)
    assert issubclass(parser, ThinkParser)
    opening, closing = parser.marks
    chunks = [Chunk(text=char) for char in f"{opening}a{closing}b"]
    assert joined(everything(parser(NO_PROMPT), chunks)) == [("thought", "a"), ("text", "b")]
