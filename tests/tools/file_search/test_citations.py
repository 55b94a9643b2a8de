"""Marks of a model become file_citation annotations."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.deltas import Break, CallDelta, CallDone, CallStarted, Citation, Delta, ReasoningDelta, Text
from antiphon.protocol.types.parts import FileCitation, Logprob
from antiphon.tools.file_search.citations import FileCitationRewriter
from antiphon.tools.file_search.passages import Passages
from tests.support.cpu import cpu_timer
from tests.tools.file_search.library import make_hit

NAMES = ("otters.txt", "fish.txt")


def make_rewriter(*names: str, is_last: bool = True) -> FileCitationRewriter:
    passages = Passages()
    passages.render([make_hit(name, f"About {name}.") for name in names or NAMES])
    return FileCitationRewriter(passages, is_last)


def rewrite(text: str, *names: str, is_last: bool = True) -> tuple[str, list[tuple[str, int]]]:
    """Rewrite a text and return it with the files and indexes of its citations."""
    rewriter = make_rewriter(*names, is_last=is_last)
    return join([*rewriter.feed([Text(text)]), *rewriter.finish()])


def join(deltas: Sequence[Delta]) -> tuple[str, list[tuple[str, int]]]:
    """Return the text of the deltas and their citations, each of which follows the text that it is about."""
    text, citations = "", []
    for delta in deltas:
        if isinstance(delta, Text):
            text += delta.text
        elif isinstance(delta, Citation):
            assert isinstance(delta.annotation, FileCitation)
            assert delta.annotation.index == len(text)
            citations.append((delta.annotation.filename, delta.annotation.index))
    return text, citations


@pytest.mark.parametrize(
    ("text", "expected", "citations"),
    [
        ("Pizza【1†otters.txt】.", "Pizza.", [("otters.txt", 5)]),
        ("Pizza 【1†otters.txt】.", "Pizza .", [("otters.txt", 6)]),  # OpenAI leaves the space as well
        ("A【1†otters.txt】 B【2†fish.txt】", "A B", [("otters.txt", 1), ("fish.txt", 3)]),
        ("A【1†otters.txt】【2†fish.txt】", "A", [("otters.txt", 1), ("fish.txt", 1)]),
        ("A【1†otters.txt】【1†otters.txt】", "A", [("otters.txt", 1)]),
        ("【2†fish.txt】A", "A", [("fish.txt", 0)]),
        ("ö😀【1†otters.txt】", "ö😀", [("otters.txt", 2)]),
        ("A【1】 B【1†L1-L4】 C【1†otters.txt†x】", "A B C", [("otters.txt", 1), ("otters.txt", 3), ("otters.txt", 5)]),
    ],
)
def test_a_mark_becomes_a_citation_at_its_index(text: str, expected: str, citations: list[tuple[str, int]]) -> None:
    assert rewrite(text) == (expected, citations)


@pytest.mark.parametrize("text", ["A【7†otters.txt】B", "A【0†x】B", "A【1:0†source】B", "A【999999†】B"])
def test_a_mark_with_an_unknown_number_is_removed(text: str) -> None:
    assert rewrite(text) == ("AB", [])


@pytest.mark.parametrize(
    "text",
    [
        "【重要】 text",
        "【9】 text",
        "【",
        "【1†otters.txt",
        "【1†otters\n.txt】",
        "【1†" + "x" * 500 + "】",
        "[1] a[1]",
        "1†a】",
    ],
)
def test_text_that_is_no_mark_is_unchanged(text: str) -> None:
    assert rewrite(text) == (text, [])


def test_a_mark_in_code_is_removed_because_the_code_would_not_run_with_it() -> None:
    assert rewrite("```\nrun()【1†otters.txt】\n```") == ("```\nrun()\n```", [("otters.txt", 9)])


def test_marks_are_found_however_the_text_is_split() -> None:
    text = "A【1†otters.txt】 b【2†fish.txt】.【9†x】【重】"
    for first in range(len(text)):
        for second in range(first, len(text)):
            rewriter = make_rewriter()
            pieces = [text[:first], text[first:second], text[second:]]
            deltas = [delta for piece in pieces for delta in rewriter.feed([Text(piece)])]
            assert join([*deltas, *rewriter.finish()]) == ("A b.【重】", [("otters.txt", 1), ("fish.txt", 3)])


@given(st.lists(st.text(alphabet="ab 【】†:123\n", max_size=12), max_size=8))
def test_the_result_does_not_depend_on_the_split(pieces: list[str]) -> None:
    rewriter = make_rewriter()
    deltas = [delta for piece in pieces for delta in rewriter.feed([Text(piece)])]
    assert join([*deltas, *rewriter.finish()]) == rewrite("".join(pieces))


def test_text_is_held_back_only_while_it_may_become_a_mark() -> None:
    rewriter = make_rewriter()
    released = []
    for piece in ("A ", "【", "1", "†ott", "ers】", "【", "重", "】 ", "【1†", "x\n"):
        released.append("".join(delta.text for delta in rewriter.feed([Text(piece)]) if isinstance(delta, Text)))
    assert released == ["A ", "", "", "", "", "", "【重", "】 ", "", "【1†x\n"]


def test_the_only_file_is_cited_at_the_end_of_an_answer_without_marks() -> None:
    assert rewrite("They hold hands.", "otters.txt") == ("They hold hands.", [("otters.txt", 16)])
    assert rewrite("They hold hands.", "otters.txt", "otters.txt")[1] == [("otters.txt", 16)]
    assert rewrite("They hold hands【5†x】.", "otters.txt") == ("They hold hands.", [("otters.txt", 16)])
    assert rewrite("They【1†otters.txt】 hold hands.", "otters.txt")[1] == [("otters.txt", 4)]
    assert rewrite("", "otters.txt") == ("", [])


def test_with_several_files_none_is_cited_without_a_mark() -> None:
    assert rewrite("They hold hands.") == ("They hold hands.", [])


def test_text_before_a_call_is_not_an_answer() -> None:
    rewriter = make_rewriter("otters.txt")
    calls: list[Delta] = [CallStarted(0, "f"), CallDelta(0, "{}"), CallDone(0)]
    deltas: list[Delta] = [Text("Let me look."), *calls]
    assert [*rewriter.feed(deltas), *rewriter.finish()] == deltas


def test_each_item_begins_a_new_part() -> None:
    rewriter = make_rewriter()
    deltas = rewriter.feed([Text("One【1†otters.txt】"), Break(), ReasoningDelta("【1†otters.txt】"), Text("2【2†b")])
    deltas += rewriter.feed([CallDelta(0, "{}"), Text("】.")])
    assert [*deltas, *rewriter.finish()] == [
        Text("One"),
        Citation(FileCitation(file_id="file-otters", filename="otters.txt", index=3)),
        Break(),
        ReasoningDelta("【1†otters.txt】"),
        Text("2"),
        CallDelta(0, "{}"),
        Citation(FileCitation(file_id="file-fish", filename="fish.txt", index=1)),
        Text("."),
    ]


def test_log_probabilities_of_a_removed_mark_are_kept() -> None:
    logprobs = [Logprob(token=token, bytes=[], logprob=-1.0) for token in ("A", "【1†", "otters.txt】")]
    rewriter = make_rewriter()
    deltas = [delta for one in logprobs for delta in rewriter.feed([Text(one.token, (one,))])]
    deltas += [*rewriter.feed([Break()]), *rewriter.finish()]
    assert [one for delta in deltas if isinstance(delta, Text) for one in delta.logprobs] == logprobs
    assert join(deltas) == ("A", [("otters.txt", 1)])


def test_before_another_rewriter_only_marks_with_the_name_of_the_file_count() -> None:
    text = "A【1†otters.txt】 B【1†L3】 C【2†otters.txt】 D【1】 E【9†x】"
    expected = "A B【1†L3】 C【2†otters.txt】 D【1】 E【9†x】"
    assert rewrite(text, is_last=False) == (expected, [("otters.txt", 1)])
    assert rewrite("From a page【0†L1】.", "otters.txt", is_last=False) == ("From a page【0†L1】.", [])


@pytest.mark.parametrize("text", ["【1†", "【1", "【", "【1†otters.txt】", "【1†" + "x" * 399, "x"])
@pytest.mark.parametrize("size", [7, 300_000])
def test_adversarial_text_takes_linear_time(text: str, size: int) -> None:
    source = text * (200_000 // len(text))
    rewriter = make_rewriter()
    with cpu_timer() as spent:
        for at in range(0, len(source), size):
            rewriter.feed([Text(source[at : at + size])])
        rewriter.finish()
    assert spent.seconds < 10  # a quadratic algorithm takes minutes
