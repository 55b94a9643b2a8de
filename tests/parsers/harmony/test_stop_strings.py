"""A client's stop strings in a Harmony answer: found in the answer alone, wherever the tokens are cut."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.core.deltas import Delta, Text, Thought
from antiphon.core.prompt import Chunk, Counts, TokenPrompt
from antiphon.core.stop_strings import StopCut
from antiphon.parsers.base import Enough, Reading
from antiphon.parsers.harmony.parser import HarmonyParser
from antiphon.protocol.types.response import Logprob
from tests.golden.harmony.cases import tokens

PROMPT = TokenPrompt(tokens("<|start|>assistant"))
FINAL = "<|channel|>final<|message|>"
WORDS = st.lists(st.sampled_from(["one", " two", " th", "ree", ", ", "\n\n", "stop", " 🙂", "한글", "A:"]), max_size=25)
STOPS = st.lists(st.sampled_from(["stop", "three", "\n\n", "🙂", "two th", "글A", ", o"]), min_size=1, max_size=4)


def heard(parser: HarmonyParser, said: str, size: int = 1) -> tuple[list[Delta], Chunk | None]:
    """All that was told, and the end that the parser told, if it did."""
    ids, deltas = tokens(said), list[Delta]()
    for at in range(0, len(ids), size):
        try:
            deltas += parser.feed(Chunk(tokens=ids[at : at + size]))
        except Enough as enough:
            return deltas, enough.last
    return [*deltas, *parser.finish()], None


def text_of(deltas: list[Delta]) -> str:
    return "".join([delta.text for delta in deltas if isinstance(delta, Text)])


@settings(max_examples=60)
@given(words=WORDS, stops=STOPS, size=st.integers(1, 9), keeps=st.booleans())
def test_an_answer_ends_where_its_text_would_be_cut(words: list[str], stops: list[str], size: int, keeps: bool) -> None:
    text, cut = "".join(words), StopCut(stops)
    wanted = cut.feed(text) + (cut.found if keeps else "") + cut.finish()
    reading = Reading(stop=tuple(stops), keeps_stop=keeps)
    deltas, _ = heard(HarmonyParser(PROMPT, reading), f"{FINAL}{text}<|return|>", size)
    assert text_of(deltas) == wanted


def test_thoughts_and_preambles_may_say_the_string() -> None:
    said = (
        "<|channel|>analysis<|message|>stop?<|end|><|start|>assistant<|channel|>commentary<|message|>No stop.<|end|>"
        f"<|start|>assistant{FINAL}Now stop it.<|return|>"
    )
    parser = HarmonyParser(PROMPT, Reading(stop=("stop",)))
    deltas, last = heard(parser, said)
    assert [delta.text for delta in deltas if isinstance(delta, Thought)] == ["stop", "?"]
    assert text_of(deltas) == "No stop.Now "
    assert last is not None
    assert (last.finish, last.extras and last.extras.stop_reason) == ("stop", "stop")
    assert last.counts == Counts(input_tokens=2, output_tokens=len(tokens(said.partition(" it.")[0])))


def test_whoever_is_done_says_so_again_and_has_nothing_to_add() -> None:
    parser = HarmonyParser(PROMPT, Reading(stop=("stop",)))
    heard(parser, f"{FINAL}Now stop it. And more.")
    with pytest.raises(Enough) as enough:
        parser.feed(Chunk(tokens=tokens("more"), finish="length", counts=Counts(input_tokens=7, output_tokens=9)))
    assert enough.value.last.counts == Counts(input_tokens=7, output_tokens=9)  # the engine knows better
    assert not parser.finish()


def test_an_answer_without_any_header_is_stopped_too() -> None:
    deltas, _ = heard(HarmonyParser(PROMPT, Reading(stop=("stop",))), "Words that stop here.<|return|>")
    assert text_of(deltas) == "Words that "


@pytest.mark.parametrize("size", [1, 100])
def test_log_probabilities_end_with_the_text(size: int) -> None:
    parser, ids = HarmonyParser(PROMPT, Reading(stop=(" three",))), tokens(f"{FINAL}one two three four")
    words = ["<|channel|>", "final", "<|message|>", "one", " two", " three", " four"]
    likely = [Logprob(token=word, bytes=[*word.encode()], logprob=-1.0, top_logprobs=[]) for word in words]
    deltas: list[Delta] = []
    for at in range(0, 6, size):
        deltas += parser.feed(Chunk(tokens=ids[at : at + size], logprobs=tuple(likely[at : at + size])))
    told = [one.token for delta in deltas if isinstance(delta, Text) for one in delta.logprobs]
    assert (text_of(deltas), told) == ("one two", ["one", " two"])
