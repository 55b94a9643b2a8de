"""Chunks of engines that parse their output become deltas, and every call is ended."""

import pytest

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, ReasoningDelta, Refusal, Text
from antiphon.core.prompt import CallPiece, ChatPrompt, Chunk
from antiphon.errors import EngineFailed
from antiphon.parsers.base import ParserOptions
from antiphon.parsers.chat import ChatParser
from antiphon.protocol.types.parts import Logprob
from tests.parsers.joined_deltas import NO_PROMPT, join_deltas, run_parser


def make_call_chunk(index: int, arguments: str = "", name: str = "") -> Chunk:
    return Chunk(calls=(CallPiece(index=index, name=name, arguments=arguments),))


@pytest.mark.shows("D4.11")
def test_text_reasoning_and_refusals_become_deltas() -> None:
    logprob = Logprob(token="a", bytes=[97], logprob=-0.5)
    chunks = [Chunk(reasoning="hm"), Chunk(text="a", logprobs=(logprob,)), Chunk(refusal="no"), Chunk(finish="stop")]
    assert run_parser(ChatParser(NO_PROMPT), chunks) == [ReasoningDelta("hm"), Text("a", (logprob,)), Refusal("no")]


def test_one_chunk_may_hold_every_kind_of_output() -> None:
    chunk = Chunk(reasoning="t", text="a", refusal="r", calls=(CallPiece(index=0, name="f", arguments="{}"),))
    assert ChatParser(NO_PROMPT).feed(chunk) == [
        ReasoningDelta("t"), Text("a"), Refusal("r"), CallStarted(0, "f"), CallDelta(0, "{}"),
    ]  # fmt: skip


@pytest.mark.shows("D3.48")
def test_a_call_starts_once_and_is_done_at_the_end() -> None:
    chunks = [make_call_chunk(0, name="f"), make_call_chunk(0, '{"a"', name="f"), make_call_chunk(0, ": 1}")]
    assert run_parser(ChatParser(NO_PROMPT), chunks) == [
        CallStarted(0, "f"), CallDelta(0, '{"a"'), CallDelta(0, ": 1}"), CallDone(0),
    ]  # fmt: skip


@pytest.mark.parametrize("follower", [make_call_chunk(1, "{}", name="g"), Chunk(text="and"), Chunk(reasoning="and")])
def test_a_complete_call_is_done_when_other_output_follows(follower: Chunk) -> None:
    parser = ChatParser(NO_PROMPT)
    parser.feed(make_call_chunk(0, "{}", name="f"))
    assert parser.feed(follower)[0] == CallDone(0)


@pytest.mark.shows("D.15", "D3.48")
def test_interleaved_parallel_calls_lose_nothing() -> None:
    chunks = [
        make_call_chunk(0, '{"a', name="f"),
        make_call_chunk(1, '{"b', name="g"),
        make_call_chunk(0, '":1}'),
        make_call_chunk(1, '":2}'),
        make_call_chunk(0, "\n"),
    ]
    deltas = run_parser(ChatParser(NO_PROMPT), chunks)
    assert "".join(d.text for d in deltas if isinstance(d, CallDelta) and d.key == 0) == '{"a":1}\n'
    assert "".join(d.text for d in deltas if isinstance(d, CallDelta) and d.key == 1) == '{"b":2}'
    assert [d for d in deltas if isinstance(d, CallDone)] == [CallDone(0), CallDone(1)]


def test_a_call_without_arguments_is_a_call() -> None:
    assert run_parser(ChatParser(NO_PROMPT), [make_call_chunk(0, name="f")]) == [CallStarted(0, "f"), CallDone(0)]


@pytest.mark.parametrize(
    "chunks",
    [
        [make_call_chunk(0, "{}")],
        [make_call_chunk(0, "{}", name="f"), make_call_chunk(1, "{}", name="g"), make_call_chunk(0, "{}")],
    ],
)
def test_inconsistent_call_chunks_are_an_engine_failure(chunks: list[Chunk]) -> None:
    with pytest.raises(EngineFailed):
        run_parser(ChatParser(NO_PROMPT), chunks)


def test_text_is_parsed_as_raw_output_if_so_configured() -> None:
    tools = {"f": {"type": "function", "function": {"name": "f", "parameters": {}}}}
    reading = ParserOptions(reasoning="qwen3", calls="hermes", tools=tools, prompt_hidden=True)
    texts = ["hm</thi", 'nk>Well.<tool_call>{"name": "f", "argu', 'ments": {}}</tool_call>']
    chunks = [*[Chunk(text=text) for text in texts], make_call_chunk(0, "{}", name="f")]
    assert join_deltas(run_parser(ChatParser(ChatPrompt(()), reading), chunks)) == [
        ("thought", "hm"),
        ("text", "Well."),
        *[("call", "-1 f"), ("arguments -1", "{}"), ("done", "-1")],
        *[("call", "0 f"), ("arguments 0", "{}"), ("done", "0")],
    ]


def test_text_is_not_parsed_for_reasoning_after_the_engine_has_sent_reasoning() -> None:
    parser = ChatParser(ChatPrompt(()), ParserOptions(reasoning="qwen3", prompt_hidden=True))
    assert join_deltas(run_parser(parser, [Chunk(reasoning="hm"), Chunk(text="Yes <think>.")])) == [
        ("thought", "hm"),
        ("text", "Yes <think>."),
    ]
