"""Log probabilities stay with the text of their tokens, whatever was buffered, dropped or split.

Covers `parsers/base.py` and `parsers/raw.py`.
"""

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.deltas import Delta, Text
from antiphon.core.prompt import Chunk
from antiphon.parsers.base import DEFAULT_OPTIONS, ParserOptions
from antiphon.parsers.logprob_alignment import LogprobAligner
from antiphon.parsers.raw import RawParser
from antiphon.parsers.reasoning import REASONING_FORMATS
from antiphon.protocol.types.parts import Logprob
from tests.parsers.joined_deltas import NO_PROMPT, run_parser

TOOLS = {"f": {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}}
CALL = '<tool_call>{"name": "f", "arguments": {"a": "é"}}</tool_call>'
FRAGMENTS = ["a", "b ", "é", "😀", "\n", "<", "</", "<tool", "_call>", "x<think>", "word", "[", " ", CALL]


def make_logprob(token: bytes) -> Logprob:
    return Logprob(token=token.decode(errors="replace"), bytes=list(token), logprob=-1.0)


def split_tokens(text: str, cuts: list[int]) -> list[bytes]:
    """Split the UTF-8 bytes of `text` at arbitrary positions."""
    data = text.encode()
    positions = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[begin:end] for begin, end in pairwise(positions)]


def make_chunks(tokens: list[bytes], sizes: list[int]) -> list[Chunk]:
    """Group tokens into chunks of these sizes. A character is in the chunk of the token that completes it, as engines
    send it.
    """
    chunks, pending, at = [], b"", 0
    for size in [*sizes, len(tokens)]:
        taken = tokens[at : at + size]
        at += size
        pending += b"".join(taken)
        decoded = pending.decode(errors="ignore") if at < len(tokens) else pending.decode()
        pending = pending[len(decoded.encode()) :]
        chunks.append(Chunk(text=decoded, logprobs=tuple([make_logprob(token) for token in taken])))
    return chunks


def get_messages(deltas: list[Delta]) -> list[tuple[str, list[Logprob]]]:
    """Return each uninterrupted text with the log probabilities of its tokens."""
    found: list[tuple[str, list[Logprob]]] = []
    interrupted = True
    for delta in deltas:
        if isinstance(delta, Text):
            if interrupted:
                found.append(("", []))
            text, tokens = found[-1]
            found[-1] = text + delta.text, [*tokens, *delta.logprobs]
        interrupted = not isinstance(delta, Text)
    return found


@given(
    words=st.lists(st.integers(0, 40), max_size=16),
    cuts=st.lists(st.integers(0, 2000), max_size=40),
    sizes=st.lists(st.integers(1, 4), max_size=40),
    family=st.sampled_from([None, "qwen3", "mistral", "hunyuan_a13b", "cohere_command3", "granite"]),
    calls=st.sampled_from([None, "hermes"]),
)
@pytest.mark.shows("D.16")
def test_the_tokens_of_a_message_cover_its_text_in_order(
    words: list[int], cuts: list[int], sizes: list[int], family: str | None, calls: str | None
) -> None:
    markers = REASONING_FORMATS[family] if family else None
    answer_markers = [text for one in markers.answer for text in (one.opening, one.closing)] if markers else []
    fragments = [*(markers.opening + markers.closing if markers else ()), *answer_markers, *FRAGMENTS]
    text = "".join([fragments[index % len(fragments)] for index in words])
    reading = ParserOptions(reasoning=family, calls=calls, tools=TOOLS if calls else {})
    tokens = split_tokens(text, cuts)
    deltas = run_parser(RawParser(NO_PROMPT, reading), make_chunks(tokens, sizes))
    for message, logprobs in get_messages(deltas):
        received = [bytes(one.bytes) for one in logprobs]
        assert _is_subsequence(message, b"".join(received).decode(errors="ignore"))
        assert _is_subsequence(received, tokens)
    assert "".join([message for message, _ in get_messages(deltas)]) == _parse_text(RawParser(NO_PROMPT, reading), text)


def _is_subsequence(items: Iterable[object], sequence: Iterable[object]) -> bool:
    """Return whether `items` is a subsequence of `sequence`."""
    remaining = iter(sequence)
    return all(one in remaining for one in items)


def _parse_text(parser: RawParser, text: str) -> str:
    return "".join([delta.text for delta in run_parser(parser, [Chunk(text=text)]) if isinstance(delta, Text)])


@given(
    before=st.sampled_from(["", "a", "é "]),
    cuts=st.lists(st.integers(0, 200), max_size=6),
    sizes=st.lists(st.integers(1, 3), max_size=9),
)
def test_a_token_of_two_messages_is_returned_with_both(before: str, cuts: list[int], sizes: list[int]) -> None:
    tokens = split_tokens(f"{before}{CALL}b", cuts)
    deltas = run_parser(RawParser(NO_PROMPT, ParserOptions(calls="hermes", tools=TOOLS)), make_chunks(tokens, sizes))
    found = get_messages(deltas)
    assert [text for text, _ in found] == [before, "b"][not before :]
    for text, logprobs in found:
        assert text.encode() in b"".join([bytes(one.bytes) for one in logprobs])


@given(
    words=st.lists(st.sampled_from(["<think>", "</think>", "<thi", "nk>", "</", " \n", "a", "b "]), max_size=12),
    size=st.integers(1, 4),
)
@pytest.mark.shows("D.16")
def test_only_the_tokens_of_the_answer_have_their_logprobs_returned(words: list[str], size: int) -> None:
    """With one or several tokens per chunk, every token that is returned is needed to cover the text."""
    tokens = [fragment.encode() for fragment in words]
    deltas = run_parser(
        RawParser(NO_PROMPT, ParserOptions(reasoning="think")), make_chunks(tokens, [size] * (len(words) // size))
    )
    for message, logprobs in get_messages(deltas):
        received = [one.token for one in logprobs]
        begin = "".join(received).index(message)
        assert begin < len(received[0])
        assert len("".join(received)) - begin - len(message) < len(received[-1])


@pytest.mark.parametrize(
    "reading", [DEFAULT_OPTIONS, ParserOptions(reasoning="qwen3"), ParserOptions(calls="hermes", tools=TOOLS)]
)
def test_tokens_of_partial_characters_stay_with_their_character(reading: ParserOptions) -> None:
    chunks = [Chunk(text=text, logprobs=(make_logprob(token),)) for text, token in
              [("a", b"a"), ("", b"\xf0\x9f"), ("\U0001f600", b"\x98\x80"), ("b", b"b")]]  # fmt: skip
    ((text, logprobs),) = get_messages(run_parser(RawParser(NO_PROMPT, reading), chunks))
    assert text == "a\U0001f600b"
    assert b"".join([bytes(one.bytes) for one in logprobs]) == text.encode()


def test_text_without_logprobs_does_not_shift_later_logprobs() -> None:
    """An engine repeats the <think> that already ended the prompt, without log probabilities."""
    chunks = [
        Chunk(text="<think>\n"),
        *[
            Chunk(text=fragment, logprobs=(make_logprob(fragment.encode()),))
            for fragment in ["hm", "</think>", "Yes", ", so", "."]
        ],
    ]
    ((text, logprobs),) = get_messages(run_parser(RawParser(NO_PROMPT, ParserOptions(reasoning="qwen3")), chunks))
    assert (text, [one.token for one in logprobs]) == ("Yes, so.", ["Yes", ", so", "."])


def test_tokens_that_differ_from_their_text_do_not_shift_later_logprobs() -> None:
    ledger = LogprobAligner(0)
    strange = Logprob(token="\ufffd\ufffd\ufffd", bytes=list("\ufffd\ufffd\ufffd".encode()), logprob=-1.0)
    ledger.add_chunk(Chunk(text="é", logprobs=(strange,)))
    ledger.take_overlapping(0, 1)
    for at in range(1, 6):
        ledger.add_chunk(Chunk(text="x", logprobs=(make_logprob(b"x"),)))
        assert [one.token for one in ledger.take_overlapping(at, at + 1)] == ["x"]
