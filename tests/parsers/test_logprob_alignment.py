"""Log probabilities stay with the text that they are of, whatever was held back, dropped or split."""

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.deltas import Delta, Text
from antiphon.core.prompt import Chunk
from antiphon.parsers.base import PLAIN, Reading
from antiphon.parsers.logprob_alignment import Ledger
from antiphon.parsers.raw import RawParser
from antiphon.parsers.reasoning.formats import THOUGHTS
from antiphon.protocol.types.response import Logprob
from tests.parsers.joined_deltas import NO_PROMPT, everything

TOOLS = {"f": {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}}
CALL = '<tool_call>{"name": "f", "arguments": {"a": "é"}}</tool_call>'
WORDS = ["a", "b ", "é", "😀", "\n", "<", "</", "<tool", "_call>", "x<think>", "word", "[", " ", CALL]


def logprob(token: bytes) -> Logprob:
    return Logprob(token=token.decode(errors="replace"), bytes=list(token), logprob=-1.0)


def tokenised(text: str, cuts: list[int]) -> list[bytes]:
    """Cut anywhere between bytes."""
    said = text.encode()
    places = sorted({cut % (len(said) + 1) for cut in cuts} | {0, len(said)})
    return [said[begin:end] for begin, end in pairwise(places)]


def chunked(tokens: list[bytes], sizes: list[int]) -> list[Chunk]:
    """So many tokens to a chunk; a character comes with the token that ends it, as engines do it."""
    chunks, left, at = [], b"", 0
    for size in [*sizes, len(tokens)]:
        taken = tokens[at : at + size]
        at += size
        left += b"".join(taken)
        whole = left.decode(errors="ignore") if at < len(tokens) else left.decode()
        left = left[len(whole.encode()) :]
        chunks.append(Chunk(text=whole, logprobs=tuple([logprob(token) for token in taken])))
    return chunks


def messages(deltas: list[Delta]) -> list[tuple[str, list[Logprob]]]:
    """Text that is not interrupted, and its tokens."""
    found: list[tuple[str, list[Logprob]]] = []
    apart = True
    for delta in deltas:
        if isinstance(delta, Text):
            if apart:
                found.append(("", []))
            text, tokens = found[-1]
            found[-1] = text + delta.text, [*tokens, *delta.logprobs]
        apart = not isinstance(delta, Text)
    return found


@given(
    words=st.lists(st.integers(0, 40), max_size=16),
    cuts=st.lists(st.integers(0, 2000), max_size=40),
    sizes=st.lists(st.integers(1, 4), max_size=40),
    family=st.sampled_from([None, "qwen3", "mistral", "hunyuan_a13b", "cohere_command3", "granite"]),
    calls=st.sampled_from([None, "hermes"]),
)
@pytest.mark.shows("D.16")
def test_the_tokens_of_a_message_cover_its_text_and_are_in_their_order(
    words: list[int], cuts: list[int], sizes: list[int], family: str | None, calls: str | None
) -> None:
    marks = THOUGHTS[family] if family else None
    around = [text for one in marks.answer for text in (one.opening, one.closing)] if marks else []
    known = [*(marks.opening + marks.closing if marks else ()), *around, *WORDS]
    text = "".join([known[word % len(known)] for word in words])
    reading = Reading(thoughts=family, calls=calls, tools=TOOLS if calls else {})
    tokens = tokenised(text, cuts)
    deltas = everything(RawParser(NO_PROMPT, reading), chunked(tokens, sizes))
    for said, logprobs in messages(deltas):
        kept = [bytes(one.bytes) for one in logprobs]
        assert _in_order(said, b"".join(kept).decode(errors="ignore"))
        assert _in_order(kept, tokens)
    assert "".join([said for said, _ in messages(deltas)]) == _said(RawParser(NO_PROMPT, reading), text)


def _in_order(some: Iterable[object], of: Iterable[object]) -> bool:
    """With nothing in between but what was dropped."""
    rest = iter(of)
    return all(one in rest for one in some)


def _said(parser: RawParser, text: str) -> str:
    return "".join([delta.text for delta in everything(parser, [Chunk(text=text)]) if isinstance(delta, Text)])


@given(
    before=st.sampled_from(["", "a", "é "]),
    cuts=st.lists(st.integers(0, 200), max_size=6),
    sizes=st.lists(st.integers(1, 3), max_size=9),
)
def test_a_token_that_is_of_two_messages_is_told_in_both(before: str, cuts: list[int], sizes: list[int]) -> None:
    tokens = tokenised(f"{before}{CALL}b", cuts)
    deltas = everything(RawParser(NO_PROMPT, Reading(calls="hermes", tools=TOOLS)), chunked(tokens, sizes))
    found = messages(deltas)
    assert [text for text, _ in found] == [before, "b"][not before :]
    for text, logprobs in found:
        assert text.encode() in b"".join([bytes(one.bytes) for one in logprobs])


@given(
    words=st.lists(st.sampled_from(["<think>", "</think>", "<thi", "nk>", "</", " \n", "a", "b "]), max_size=12),
    size=st.integers(1, 4),
)
@pytest.mark.shows("D.16")
def test_the_answers_tokens_and_no_others_keep_their_logprobs(words: list[str], size: int) -> None:
    """Several tokens to a chunk or one: of what is told no token could be left out."""
    tokens = [word.encode() for word in words]
    deltas = everything(RawParser(NO_PROMPT, Reading(thoughts="think")), chunked(tokens, [size] * (len(words) // size)))
    for said, logprobs in messages(deltas):
        kept = [one.token for one in logprobs]
        begin = "".join(kept).index(said)
        assert begin < len(kept[0])
        assert len("".join(kept)) - begin - len(said) < len(kept[-1])


@pytest.mark.parametrize("reading", [PLAIN, Reading(thoughts="qwen3"), Reading(calls="hermes", tools=TOOLS)])
def test_halves_of_a_character_go_with_it(reading: Reading) -> None:
    chunks = [Chunk(text=text, logprobs=(logprob(token),)) for text, token in
              [("a", b"a"), ("", b"\xf0\x9f"), ("\U0001f600", b"\x98\x80"), ("b", b"b")]]  # fmt: skip
    ((text, logprobs),) = messages(everything(RawParser(NO_PROMPT, reading), chunks))
    assert text == "a\U0001f600b"
    assert b"".join([bytes(one.bytes) for one in logprobs]) == text.encode()


def test_text_that_came_without_any_does_not_shift_those_that_follow() -> None:
    """An engine says <think> for a prompt that had it already."""
    chunks = [Chunk(text="<think>\n"), *[Chunk(text=word, logprobs=(logprob(word.encode()),)) for word in
              ["hm", "</think>", "Yes", ", so", "."]]]  # fmt: skip
    ((text, logprobs),) = messages(everything(RawParser(NO_PROMPT, Reading(thoughts="qwen3")), chunks))
    assert (text, [one.token for one in logprobs]) == ("Yes, so.", ["Yes", ", so", "."])


def test_tokens_that_are_written_otherwise_than_they_are_read_shift_nothing_for_long() -> None:
    ledger = Ledger(0)
    strange = Logprob(token="\ufffd\ufffd\ufffd", bytes=list("\ufffd\ufffd\ufffd".encode()), logprob=-1.0)
    ledger.note(Chunk(text="é", logprobs=(strange,)))
    ledger.take(0, 1)
    for at in range(1, 6):
        ledger.note(Chunk(text="x", logprobs=(logprob(b"x"),)))
        assert [one.token for one in ledger.take(at, at + 1)] == ["x"]
