"""Reasoning is split from the answer in the format of every family, at every cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.deltas import Text
from antiphon.core.prompt import ChatPrompt, Chunk, Prompt, Segment, TextPrompt
from antiphon.parsers.base import ParserOptions
from antiphon.parsers.calls.registry import FORMATS
from antiphon.parsers.raw import RawParser
from antiphon.parsers.reasoning import REASONING_FORMATS, close_reasoning, opens_reasoning
from tests.parsers.cuts import CUTS, split_at
from tests.parsers.joined_deltas import NO_PROMPT, join_deltas, make_open_prompt, run_parser
from tests.support.cpu import cpu_timer

TOOLS = {"f": {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}}
FRAGMENTS = [
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


def parse_text(
    text: str, prompt: Prompt = NO_PROMPT, family: str = "think", calls: str | None = None, unseen: bool = False
) -> list[tuple[str, str]]:
    reading = ParserOptions(reasoning=family, calls=calls, tools=TOOLS if calls else {}, prompt_hidden=unseen)
    expected = join_deltas(run_parser(RawParser(prompt, reading), [Chunk(text=text)]))
    for cut in range(1, len(text)):
        parts = [Chunk(text=text[:cut]), Chunk(text=text[cut:])]
        assert join_deltas(run_parser(RawParser(prompt, reading), parts)) == expected, text[:cut]
    return expected


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
def test_reasoning_before_the_answer_is_split_from_it(text: str, expected: list[tuple[str, str]]) -> None:
    assert parse_text(text) == expected


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
def test_markers_that_an_answer_quotes_stay_text(text: str) -> None:
    assert parse_text(text) == [("text", text)]
    assert parse_text(f"<think>x</think>{text}") == [("thought", "x"), ("text", text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>cut off \n</thi", [("thought", "cut off \n</thi")]),
        ("<think>cut off \n", [("thought", "cut off \n")]),
        ("<think>\n", []),
    ],
)
def test_truncated_reasoning_is_all_reasoning(text: str, expected: list[tuple[str, str]]) -> None:
    assert parse_text(text) == expected


@pytest.mark.parametrize("text", ["</think>x", "</think>\n\nx", "\n</think></think> x", "<think>\n\n</think></think>x"])
def test_an_unmatched_closing_marker_is_dropped_before_the_answer(text: str) -> None:
    assert parse_text(text) == [("text", "x")]


def test_consecutive_reasoning_blocks_are_separated() -> None:
    assert parse_text("<think>a</think>\n<think>\nb</think>c") == [("thought", "a\n\nb"), ("text", "c")]


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
def test_the_output_starts_with_reasoning_if_the_prompt_ends_with_the_marker(
    text: str, expected: list[tuple[str, str]]
) -> None:
    assert parse_text(text, make_open_prompt("<think>")) == expected
    assert parse_text(text, ChatPrompt(()), "deepseek_r1", unseen=True) == expected


@pytest.mark.parametrize(
    "prompt",
    [
        ChatPrompt(({"role": "user", "content": "<think>"},)),
        TextPrompt((Segment("<|user|>", True), Segment("<think>", False))),
        TextPrompt((Segment("<think>\n\n</think>\n\n", True),)),
    ],
)
def test_only_the_template_opens_reasoning_and_closed_reasoning_is_over(prompt: Prompt) -> None:
    for family in ("think", "qwen3", "deepseek_r1"):
        assert parse_text("Yes.", prompt, family) == [("text", "Yes.")]


@pytest.mark.parametrize(("end", "closing"), [("<think>\n", "\n</think>\n\n"), ("[THINK]", "\n\n[/THINK]\n\n")])
def test_reasoning_that_a_prompt_opened_can_be_closed(end: str, closing: str) -> None:
    prompt = TextPrompt((Segment(end, True),))
    made = close_reasoning(prompt, REASONING_FORMATS["mistral"])
    assert made.segments == (*prompt.segments, Segment(closing, True))
    assert not opens_reasoning(made, REASONING_FORMATS["mistral"])


CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
CALL_DELTAS = [("call", "0 f"), ("arguments 0", "{}"), ("done", "0")]


@pytest.mark.parametrize("between", ["\n", "\n\n  "])
def test_a_call_on_its_own_line_ends_unclosed_reasoning(between: str) -> None:
    assert parse_text(f"<think>I call.{between}{CALL}", calls="hermes") == [("thought", "I call."), *CALL_DELTAS]
    assert parse_text(f"<think>{CALL}", calls="hermes") == CALL_DELTAS


@pytest.mark.parametrize(
    "reasoning",
    [
        "I write `<tool_call>` first.",
        "With <tool_call></tool_call> around.",
        "<tool_call> is it, or <tool_call",
        f"As in {CALL}.",
    ],
)
def test_reasoning_may_quote_the_marker_of_a_call(reasoning: str) -> None:
    reasoning = f"Well: {reasoning}"
    assert parse_text(f"<think>{reasoning}</think>{CALL}", calls="hermes") == [("thought", reasoning), *CALL_DELTAS]


def test_whitespace_around_reasoning_and_calls_is_dropped() -> None:
    assert parse_text(f"\n<think>a</think>\n\n{CALL}\n{CALL}\n", calls="hermes") == [
        ("thought", "a"),
        *CALL_DELTAS,
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
def test_later_reasoning_starts_on_its_own_line(text: str, expected: list[tuple[str, str]]) -> None:
    assert parse_text(text, family="mistral") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\na\n</think>\n<answer>\nb\nc\n</answer>\n", [("thought", "a"), ("text", "b\nc")]),
        ("<answer>\nb\n</answer>", [("text", "b")]),
        ("<answer>The tag </answer> ends it. </answer>", [("text", "The tag </answer> ends it.")]),
        ("<think>a</think><answer>b \n</ans", [("thought", "a"), ("text", "b \n</ans")]),
        ("<think>a</think>b</answer>", [("thought", "a"), ("text", "b</answer>")]),
        (f"<think>a</think><answer>{CALL}\n</answer>", [("thought", "a"), *CALL_DELTAS]),
    ],
)  # fmt: skip
def test_markers_around_an_answer_are_dropped(text: str, expected: list[tuple[str, str]]) -> None:
    assert parse_text(text, family="hunyuan_a13b", calls="hermes") == expected


def test_control_tokens_around_an_answer_are_dropped_everywhere() -> None:
    text = f"<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>b<|END_RESPONSE|>\n{CALL}"
    assert parse_text(text, family="cohere_command3", calls="hermes") == [("thought", "a"), ("text", "b"), *CALL_DELTAS]


@given(
    words=st.lists(st.integers(0, 30), max_size=14),
    cuts=CUTS,
    begun=st.booleans(),
    family=st.sampled_from(sorted(REASONING_FORMATS)),
    calls=st.sampled_from([None, "hermes"]),
)
@pytest.mark.shows("D.18", "D4.1")
def test_every_family_gives_the_same_deltas_at_every_cut(
    words: list[int], cuts: list[int], begun: bool, family: str, calls: str | None
) -> None:
    markers = REASONING_FORMATS[family]
    answer_markers = [text for one in markers.answer for text in (one.opening, one.closing)]
    fragments = [*markers.opening, *markers.closing, *answer_markers, *FRAGMENTS]
    text = "".join([fragments[index % len(fragments)] for index in words])
    prompt = make_open_prompt(markers.opening[0]) if begun else NO_PROMPT
    reading = ParserOptions(reasoning=family, calls=calls, tools=TOOLS)
    expected = join_deltas(run_parser(RawParser(prompt, reading), [Chunk(text=text)]))
    parts = [Chunk(text=part) for part in split_at(text, cuts)]
    assert join_deltas(run_parser(RawParser(prompt, reading), parts)) == expected


@pytest.mark.parametrize("family", sorted({marks: name for name, marks in REASONING_FORMATS.items()}.values()))
def test_every_family_works_with_every_call_format(family: str) -> None:
    opening, closing = REASONING_FORMATS[family].opening[0], REASONING_FORMATS[family].closing[0]
    for calls in FORMATS:
        parser = RawParser(NO_PROMPT, ParserOptions(reasoning=family, calls=calls, tools=TOOLS))
        chunks = [Chunk(text=char) for char in f"{opening}I might call f.{closing}But I do not."]
        assert join_deltas(run_parser(parser, chunks)) == [("thought", "I might call f."), ("text", "But I do not.")], (
            calls
        )


def test_text_that_is_not_a_marker_is_emitted_immediately() -> None:
    parser = RawParser(NO_PROMPT, ParserOptions(reasoning="think"))
    assert join_deltas(parser.feed(Chunk(text="<think>I wonder"))) == [("thought", "I wonder")]
    assert join_deltas(parser.feed(Chunk(text=" why </"))) == [("thought", " why")]
    assert join_deltas(parser.feed(Chunk(text="b>"))) == [("thought", " </b>")]
    assert join_deltas(parser.feed(Chunk(text="</think>So"))) == [("text", "So")]
    assert join_deltas(parser.feed(Chunk(text=" <think>"))) == [("text", " <think>")]


@pytest.mark.parametrize("family", REASONING_FORMATS)
def test_every_marker_of_a_family_is_recognised(family: str) -> None:
    for opening in REASONING_FORMATS[family].opening:
        for closing in REASONING_FORMATS[family].closing:
            chunks = [Chunk(text=char) for char in f"{opening}a{closing}b"]
            deltas = run_parser(RawParser(NO_PROMPT, ParserOptions(reasoning=family)), chunks)
            assert join_deltas(deltas) == [("thought", "a"), ("text", "b")]


@pytest.mark.parametrize("family", sorted({markers: name for name, markers in REASONING_FORMATS.items()}.values()))
def test_a_hundred_kilobytes_of_markers_take_linear_time(family: str) -> None:
    markers = REASONING_FORMATS[family]
    opening, closing = markers.opening[0], markers.closing[0]
    around = markers.answer[0] if markers.answer else None
    hostile = [opening, closing, opening + closing, f"x{opening}\n", " ", "<tool_call>", f"{opening}x <tool_call>", "<",
               *([around.closing, f"{around.closing} x"] if around else [])]  # fmt: skip
    for fragment in hostile:
        for begin in ("", opening, f"{opening}{closing}" + (around.opening if around else "")):
            text = begin + fragment * (100_000 // len(fragment))
            for size in (97, len(text)):
                parser = RawParser(NO_PROMPT, ParserOptions(reasoning=family))
                chunks = [Chunk(text=text[at : at + size]) for at in range(0, len(text), size)]
                with cpu_timer() as spent:
                    run_parser(parser, chunks)
                assert spent.seconds < 2.5, (fragment, begin, size)  # a quadratic algorithm takes minutes


def test_text_is_unchanged_if_no_format_is_configured() -> None:
    chunks = [Chunk(text="<think>a"), Chunk(), Chunk(text="</think>", finish="stop")]
    assert run_parser(RawParser(NO_PROMPT), chunks) == [Text("<think>a"), Text("</think>")]
