"""Chunks of engines that parse for us: deltas by another name, and calls that end."""

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Refusal, Text, Thought
from antiphon.core.prompt import CallPiece, ChatPrompt, Chunk
from antiphon.errors import EngineFailed
from antiphon.parsers.base import Reading
from antiphon.parsers.chat import ChatParser
from antiphon.protocol.types.response import Logprob
from tests.parsers.joined_deltas import NO_PROMPT, everything, joined


def piece(index: int, arguments: str = "", name: str = "") -> Chunk:
    return Chunk(calls=(CallPiece(index=index, name=name, arguments=arguments),))


@pytest.mark.shows("D4.11")
def test_text_thought_and_refusal_pass() -> None:
    logprob = Logprob(token="a", bytes=[97], logprob=-0.5)
    chunks = [Chunk(thought="hm"), Chunk(text="a", logprobs=(logprob,)), Chunk(refusal="no"), Chunk(finish="stop")]
    assert everything(ChatParser(NO_PROMPT), chunks) == [Thought("hm"), Text("a", (logprob,)), Refusal("no")]


def test_one_chunk_may_hold_all_of_them() -> None:
    chunk = Chunk(thought="t", text="a", refusal="r", calls=(CallPiece(index=0, name="f", arguments="{}"),))
    assert ChatParser(NO_PROMPT).feed(chunk) == [
        Thought("t"), Text("a"), Refusal("r"), CallStarted(0, "f"), CallDelta(0, "{}"),
    ]  # fmt: skip


@pytest.mark.shows("D3.48")
def test_a_call_starts_once_and_is_done_at_the_end() -> None:
    chunks = [piece(0, name="f"), piece(0, '{"a"', name="f"), piece(0, ": 1}")]
    assert everything(ChatParser(NO_PROMPT), chunks) == [
        CallStarted(0, "f"), CallDelta(0, '{"a"'), CallDelta(0, ": 1}"), CallDone(0),
    ]  # fmt: skip


@pytest.mark.parametrize("follower", [piece(1, "{}", name="g"), Chunk(text="and"), Chunk(thought="and")])
def test_a_complete_call_is_done_when_something_follows(follower: Chunk) -> None:
    parser = ChatParser(NO_PROMPT)
    parser.feed(piece(0, "{}", name="f"))
    assert parser.feed(follower)[0] == CallDone(0)


@pytest.mark.shows("D.15", "D3.48")
def test_parallel_calls_that_come_in_turns_lose_nothing() -> None:
    chunks = [piece(0, '{"a', name="f"), piece(1, '{"b', name="g"), piece(0, '":1}'), piece(1, '":2}'), piece(0, "\n")]
    deltas = everything(ChatParser(NO_PROMPT), chunks)
    assert "".join(d.text for d in deltas if isinstance(d, CallDelta) and d.key == 0) == '{"a":1}\n'
    assert "".join(d.text for d in deltas if isinstance(d, CallDelta) and d.key == 1) == '{"b":2}'
    assert [d for d in deltas if isinstance(d, CallDone)] == [CallDone(0), CallDone(1)]


def test_a_call_without_arguments_is_a_call() -> None:
    assert everything(ChatParser(NO_PROMPT), [piece(0, name="f")]) == [CallStarted(0, "f"), CallDone(0)]


@pytest.mark.parametrize(
    "chunks", [[piece(0, "{}")], [piece(0, "{}", name="f"), piece(1, "{}", name="g"), piece(0, "{}")]]
)
def test_an_engine_that_talks_nonsense_is_told_so(chunks: list[Chunk]) -> None:
    with pytest.raises(EngineFailed):
        everything(ChatParser(NO_PROMPT), chunks)


def test_text_is_read_as_raw_output_where_the_operator_says_so() -> None:
    tools = {"f": {"type": "function", "function": {"name": "f", "parameters": {}}}}
    reading = Reading(thoughts="qwen3", calls="hermes", tools=tools, unseen=True)
    said = ["hm</thi", 'nk>Well.<tool_call>{"name": "f", "argu', 'ments": {}}</tool_call>']
    chunks = [*[Chunk(text=text) for text in said], piece(0, "{}", name="f")]
    assert joined(everything(ChatParser(ChatPrompt(()), reading), chunks)) == [
        ("thought", "hm"),
        ("text", "Well."),
        *[("call", "-1 f"), ("arguments -1", "{}"), ("done", "-1")],
        *[("call", "0 f"), ("arguments 0", "{}"), ("done", "0")],
    ]


def test_an_engine_that_tells_thoughts_apart_is_believed() -> None:
    parser = ChatParser(ChatPrompt(()), Reading(thoughts="qwen3", unseen=True))
    assert joined(everything(parser, [Chunk(thought="hm"), Chunk(text="Yes <think>.")])) == [
        ("thought", "hm"),
        ("text", "Yes <think>."),
    ]
