"""Thoughts and answers come apart, however they are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.deltas import Text
from antiphon.core.prompt import ChatPrompt, Chunk, Prompt, Segment, TextPrompt
from antiphon.parsers.base import Reading
from antiphon.parsers.calls.registry import FORMATS
from antiphon.parsers.raw import RawParser
from antiphon.parsers.reasoning.formats import THOUGHTS, closed, opens
from tests.parsers.cuts import CUTS, pieces
from tests.parsers.joined_deltas import NO_PROMPT, everything, joined, opened
from tests.support.cpu import cpu_time

TOOLS = {"f": {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}}
WORDS = [
    "<",
    "</",
    "think>",
    " ",
    "\n",
    "a",
    "é",
    "Here is my",
    "<tool_call>",
    '{"name": "f", "arguments": {}}',
    "[",
    "]",
]


def told(
    text: str, prompt: Prompt = NO_PROMPT, family: str = "think", calls: str | None = None, unseen: bool = False
) -> list[tuple[str, str]]:
    reading = Reading(thoughts=family, calls=calls, tools=TOOLS if calls else {}, unseen=unseen)
    whole = joined(everything(RawParser(prompt, reading), [Chunk(text=text)]))
    for cut in range(1, len(text)):
        parts = [Chunk(text=text[:cut]), Chunk(text=text[cut:])]
        assert joined(everything(RawParser(prompt, reading), parts)) == whole, text[:cut]
    return whole


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
        ("", []),
        ("  ", [("text", "  ")]),
    ],
)
@pytest.mark.shows("D4.1")
def test_a_thought_before_the_answer_is_told_from_it(text: str, expected: list[tuple[str, str]]) -> None:
    assert told(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "first <think>x</think>",
        "The mark `</think>` ends a thought.",
        "Models write <think>, then </think>.\n<think>x</think>\n",
        "a\n</think>",
    ],
)
@pytest.mark.shows("D.18")
def test_marks_that_an_answer_quotes_stay_text(text: str) -> None:
    assert told(text) == [("text", text)]
    assert told(f"<think>x</think>{text}") == [("thought", "x"), ("text", text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>cut off \n</thi", [("thought", "cut off \n</thi")]),
        ("<think>cut off \n", [("thought", "cut off \n")]),
        ("<think>\n", []),
    ],
)
def test_a_thought_that_was_cut_is_all_thought(text: str, expected: list[tuple[str, str]]) -> None:
    assert told(text) == expected


@pytest.mark.parametrize("text", ["</think>x", "</think>\n\nx", "\n</think></think> x", "<think>\n\n</think></think>x"])
def test_a_closing_mark_that_closes_nothing_is_dropped_before_the_answer(text: str) -> None:
    assert told(text) == [("text", "x")]


def test_thoughts_that_follow_each_other_are_parted() -> None:
    assert told("<think>a</think>\n<think>\nb</think>c") == [("thought", "a\n\nb"), ("text", "c")]


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
    assert told(text, ChatPrompt(()), "deepseek_r1", unseen=True) == expected


@pytest.mark.parametrize(
    "prompt",
    [
        ChatPrompt(({"role": "user", "content": "<think>"},)),
        TextPrompt((Segment("<|user|>", True), Segment("<think>", False))),
        TextPrompt((Segment("<think>\n\n</think>\n\n", True),)),
    ],
)
def test_no_one_but_the_template_opens_a_thought_and_one_that_it_closed_is_over(prompt: Prompt) -> None:
    for family in ("think", "qwen3", "deepseek_r1"):
        assert told("Yes.", prompt, family) == [("text", "Yes.")]


@pytest.mark.parametrize(("end", "closing"), [("<think>\n", "\n</think>\n\n"), ("[THINK]", "\n\n[/THINK]\n\n")])
def test_a_thought_that_a_prompt_opened_can_be_closed_again(end: str, closing: str) -> None:
    prompt = TextPrompt((Segment(end, True),))
    made = closed(prompt, THOUGHTS["mistral"])
    assert made.segments == (*prompt.segments, Segment(closing, True))
    assert not opens(made, THOUGHTS["mistral"])


CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
CALLED = [("call", "0 f"), ("arguments 0", "{}"), ("done", "0")]


@pytest.mark.parametrize("between", ["\n", "\n\n  "])
def test_a_call_on_a_line_of_its_own_ends_a_thought_that_was_left_open(between: str) -> None:
    assert told(f"<think>I call.{between}{CALL}", calls="hermes") == [("thought", "I call."), *CALLED]
    assert told(f"<think>{CALL}", calls="hermes") == CALLED


@pytest.mark.parametrize(
    "thought",
    [
        "I write `<tool_call>` first.",
        "With <tool_call></tool_call> around.",
        "<tool_call> is it, or <tool_call",
        f"As in {CALL}.",
    ],
)
def test_a_thought_may_quote_the_mark_of_a_call(thought: str) -> None:
    thought = f"Well: {thought}"
    assert told(f"<think>{thought}</think>{CALL}", calls="hermes") == [("thought", thought), *CALLED]


def test_space_around_thoughts_and_calls_is_nobodys() -> None:
    assert told(f"\n<think>a</think>\n\n{CALL}\n{CALL}\n", calls="hermes") == [
        ("thought", "a"),
        *CALLED,
        *[("call", "1 f"), ("arguments 1", "{}"), ("done", "1")],
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[THINK]a[/THINK]b\n[THINK]c[/THINK]\nd",
            [("thought", "a"), ("text", "b\n"), ("thought", "c"), ("text", "d")],
        ),
        ("[THINK]a[/THINK]b [THINK]c[/THINK] d", [("thought", "a"), ("text", "b [THINK]c[/THINK] d")]),
    ],
)
def test_a_model_that_thinks_again_does_so_on_a_line_of_its_own(text: str, expected: list[tuple[str, str]]) -> None:
    assert told(text, family="mistral") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\na\n</think>\n<answer>\nb\nc\n</answer>\n", [("thought", "a"), ("text", "b\nc")]),
        ("<answer>\nb\n</answer>", [("text", "b")]),
        ("<answer>The tag </answer> ends it. </answer>", [("text", "The tag </answer> ends it.")]),
        ("<think>a</think><answer>b \n</ans", [("thought", "a"), ("text", "b \n</ans")]),
        ("<think>a</think>b</answer>", [("thought", "a"), ("text", "b</answer>")]),
        (f"<think>a</think><answer>{CALL}\n</answer>", [("thought", "a"), *CALLED]),
    ],
)  # fmt: skip
def test_marks_around_an_answer_are_no_part_of_it(text: str, expected: list[tuple[str, str]]) -> None:
    assert told(text, family="hunyuan_a13b", calls="hermes") == expected


def test_control_tokens_around_an_answer_are_dropped_wherever_they_stand() -> None:
    said = f"<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>b<|END_RESPONSE|>\n{CALL}"
    assert told(said, family="cohere_command3", calls="hermes") == [("thought", "a"), ("text", "b"), *CALLED]


@given(
    words=st.lists(st.integers(0, 30), max_size=14),
    cuts=CUTS,
    begun=st.booleans(),
    family=st.sampled_from(sorted(THOUGHTS)),
    calls=st.sampled_from([None, "hermes"]),
)
@pytest.mark.shows("D.18", "D4.1")
def test_a_cut_anywhere_tells_the_same_of_every_family(
    words: list[int], cuts: list[int], begun: bool, family: str, calls: str | None
) -> None:
    marks = THOUGHTS[family]
    around = [text for one in marks.answer for text in (one.opening, one.closing)]
    known = [*marks.opening, *marks.closing, *around, *WORDS]
    text = "".join([known[word % len(known)] for word in words])
    prompt = opened(marks.opening[0]) if begun else NO_PROMPT
    reading = Reading(thoughts=family, calls=calls, tools=TOOLS)
    whole = joined(everything(RawParser(prompt, reading), [Chunk(text=text)]))
    parts = [Chunk(text=part) for part in pieces(text, cuts)]
    assert joined(everything(RawParser(prompt, reading), parts)) == whole


@pytest.mark.parametrize("family", sorted({marks: name for name, marks in THOUGHTS.items()}.values()))
def test_every_family_goes_with_every_format_of_calls(family: str) -> None:
    opening, closing = THOUGHTS[family].opening[0], THOUGHTS[family].closing[0]
    for calls in FORMATS:
        parser = RawParser(NO_PROMPT, Reading(thoughts=family, calls=calls, tools=TOOLS))
        chunks = [Chunk(text=char) for char in f"{opening}I might call f.{closing}But I do not."]
        assert joined(everything(parser, chunks)) == [("thought", "I might call f."), ("text", "But I do not.")], calls


def test_what_is_no_mark_is_said_at_once() -> None:
    parser = RawParser(NO_PROMPT, Reading(thoughts="think"))
    assert joined(parser.feed(Chunk(text="<think>I wonder"))) == [("thought", "I wonder")]
    assert joined(parser.feed(Chunk(text=" why </"))) == [("thought", " why")]
    assert joined(parser.feed(Chunk(text="b>"))) == [("thought", " </b>")]
    assert joined(parser.feed(Chunk(text="</think>So"))) == [("text", "So")]
    assert joined(parser.feed(Chunk(text=" <think>"))) == [("text", " <think>")]


@pytest.mark.parametrize("family", THOUGHTS)
def test_every_family_has_its_marks(family: str) -> None:
    for opening in THOUGHTS[family].opening:
        for closing in THOUGHTS[family].closing:
            chunks = [Chunk(text=char) for char in f"{opening}a{closing}b"]
            deltas = everything(RawParser(NO_PROMPT, Reading(thoughts=family)), chunks)
            assert joined(deltas) == [("thought", "a"), ("text", "b")]


@pytest.mark.parametrize("family", sorted({marks: name for name, marks in THOUGHTS.items()}.values()))
def test_a_hundred_kilobytes_of_marks_take_linear_time(family: str) -> None:
    marks = THOUGHTS[family]
    opening, closing = marks.opening[0], marks.closing[0]
    around = marks.answer[0] if marks.answer else None
    hostile = [opening, closing, opening + closing, f"x{opening}\n", " ", "<tool_call>", f"{opening}x <tool_call>", "<",
               *([around.closing, f"{around.closing} x"] if around else [])]  # fmt: skip
    for said in hostile:
        for begin in ("", opening, f"{opening}{closing}" + (around.opening if around else "")):
            text = begin + said * (100_000 // len(said))
            for size in (97, len(text)):
                parser = RawParser(NO_PROMPT, Reading(thoughts=family))
                chunks = [Chunk(text=text[at : at + size]) for at in range(0, len(text), size)]
                with cpu_time() as spent:
                    everything(parser, chunks)
                assert spent.seconds < 2.5, (said, begin, size)  # by quadratic means it takes minutes


def test_text_passes_as_it_is_where_nothing_is_looked_for() -> None:
    chunks = [Chunk(text="<think>a"), Chunk(), Chunk(text="</think>", finish="stop")]
    assert everything(RawParser(NO_PROMPT), chunks) == [Text("<think>a"), Text("</think>")]
