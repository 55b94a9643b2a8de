"""A client's stop strings in Harmony output: found only in the answer, at every cut between tokens."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.deltas import Delta, ReasoningDelta, Text
from antiphon.core.prompt import Chunk, TokenCounts, TokenPrompt
from antiphon.core.stop_strings import StopStringCutter
from antiphon.parsers.base import AnswerEnded, ParserOptions
from antiphon.parsers.harmony import HarmonyParser
from antiphon.protocol.types.parts import Logprob
from tests.golden.harmony.cases import encode_tokens

PROMPT = TokenPrompt(encode_tokens("<|start|>assistant"))
FINAL = "<|channel|>final<|message|>"
TEXTS = st.lists(st.sampled_from(["one", " two", " th", "ree", ", ", "\n\n", "stop", " 🙂", "한글", "A:"]), max_size=25)
STOPS = st.lists(st.sampled_from(["stop", "three", "\n\n", "🙂", "two th", "글A", ", o"]), min_size=1, max_size=4)


def feed_output(parser: HarmonyParser, output: str, size: int = 1) -> tuple[list[Delta], Chunk | None]:
    """Return all deltas, and the last chunk if the parser ended the answer."""
    ids, deltas = encode_tokens(output), list[Delta]()
    for at in range(0, len(ids), size):
        try:
            deltas += parser.feed(Chunk(tokens=ids[at : at + size]))
        except AnswerEnded as enough:
            return deltas, enough.final_chunk
    return [*deltas, *parser.finish()], None


def join_text(deltas: list[Delta]) -> str:
    return "".join([delta.text for delta in deltas if isinstance(delta, Text)])


@settings(max_examples=60)
@given(words=TEXTS, stops=STOPS, size=st.integers(1, 9), keeps=st.booleans())
def test_an_answer_ends_at_its_first_stop_string(words: list[str], stops: list[str], size: int, keeps: bool) -> None:
    text, cut = "".join(words), StopStringCutter(stops)
    wanted = cut.feed(text) + (cut.stop if keeps else "") + cut.finish()
    reading = ParserOptions(stop=tuple(stops), include_stop=keeps)
    deltas, _ = feed_output(HarmonyParser(PROMPT, reading), f"{FINAL}{text}<|return|>", size)
    assert join_text(deltas) == wanted


def test_reasoning_and_preambles_may_contain_the_stop_string() -> None:
    output = (
        "<|channel|>analysis<|message|>stop?<|end|><|start|>assistant<|channel|>commentary<|message|>No stop.<|end|>"
        f"<|start|>assistant{FINAL}Now stop it.<|return|>"
    )
    parser = HarmonyParser(PROMPT, ParserOptions(stop=("stop",)))
    deltas, last = feed_output(parser, output)
    assert [delta.text for delta in deltas if isinstance(delta, ReasoningDelta)] == ["stop", "?"]
    assert join_text(deltas) == "No stop.Now "
    assert last is not None
    assert (last.finish, last.extras and last.extras.stop_reason) == ("stop", "stop")
    assert last.counts == TokenCounts(input_tokens=2, output_tokens=len(encode_tokens(output.partition(" it.")[0])))


def test_a_parser_that_ended_the_answer_raises_again_and_emits_nothing() -> None:
    parser = HarmonyParser(PROMPT, ParserOptions(stop=("stop",)))
    feed_output(parser, f"{FINAL}Now stop it. And more.")
    with pytest.raises(AnswerEnded) as enough:
        parser.feed(
            Chunk(tokens=encode_tokens("more"), finish="length", counts=TokenCounts(input_tokens=7, output_tokens=9))
        )
    # the counts of the engine take precedence
    assert enough.value.final_chunk.counts == TokenCounts(input_tokens=7, output_tokens=9)
    assert not parser.finish()


def test_stop_strings_apply_to_an_answer_without_a_header() -> None:
    deltas, _ = feed_output(HarmonyParser(PROMPT, ParserOptions(stop=("stop",))), "Words that stop here.<|return|>")
    assert join_text(deltas) == "Words that "


@pytest.mark.parametrize("size", [1, 100])
def test_log_probabilities_end_with_the_text(size: int) -> None:
    parser, ids = HarmonyParser(PROMPT, ParserOptions(stop=(" three",))), encode_tokens(f"{FINAL}one two three four")
    texts = ["<|channel|>", "final", "<|message|>", "one", " two", " three", " four"]
    logprobs = [Logprob(token=text, bytes=[*text.encode()], logprob=-1.0, top_logprobs=[]) for text in texts]
    deltas: list[Delta] = []
    for at in range(0, 6, size):
        deltas += parser.feed(Chunk(tokens=ids[at : at + size], logprobs=tuple(logprobs[at : at + size])))
    received = [one.token for delta in deltas if isinstance(delta, Text) for one in delta.logprobs]
    assert (join_text(deltas), received) == ("one two", ["one", " two"])
