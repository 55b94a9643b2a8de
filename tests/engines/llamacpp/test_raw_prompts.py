"""Raw prompts, grammars and tokens by number, with the default model: what steers an answer beyond sampling."""

import re
from typing import Any

import pytest

from antiphon.core.prompt import Grammar, Segment, StructuralTag, TextPrompt, TokenPrompt
from antiphon.engines.llamacpp.engine import LlamaCpp
from antiphon.errors import InvalidValue, UnsupportedParameter
from tests.engines.llamacpp.generation import ask, chat, child_of, work

pytestmark = [pytest.mark.anyio, pytest.mark.needs("llamacpp"), pytest.mark.real_model, pytest.mark.timeout(400)]

IM_START, IM_END = 1, 2
RAW = TextPrompt((Segment("<|im_start|>Once upon", control=True),))


async def test_what_is_honoured_is_named_and_what_is_not_has_a_reason(engine: LlamaCpp) -> None:
    able = await engine.capabilities("small")
    assert {"logit_bias", "stop_token_ids", "return_token_ids"} <= able.honours
    assert {"grammar.regex", "grammar.lark", "grammar.gbnf"} <= able.honours
    assert {"min_tokens", "prompt_logprobs", "structural_tag"} == able.lacks.keys()
    assert not able.lacks.keys() & able.honours
    assert [*able.takes] == ["tokens"]
    assert sorted(able.does) == ["detokenize", "generate", "tokenize"]


async def test_a_raw_text_and_its_tokens_are_the_same_prompt(engine: LlamaCpp) -> None:
    tokens = await engine.tokenize("small", RAW)
    assert tokens[0] == IM_START
    by_text = await ask(engine, work(RAW, max_tokens=4))
    by_tokens = await ask(engine, work(TokenPrompt(tokens), max_tokens=4))
    assert by_text.text == by_tokens.text
    assert by_text.counts.input_tokens == by_tokens.counts.input_tokens == len(tokens)


@pytest.mark.shows("G.6")
async def test_tokens_become_their_text_again(engine: LlamaCpp) -> None:
    prompt = chat("Hällo 🌍, <|im_end|>!")
    tokens = await engine.tokenize("small", prompt)
    assert await engine.detokenize("small", tokens) == "".join(segment.text for segment in prompt.segments)
    assert len(tokens) == await engine.count("small", prompt)
    assert await engine.detokenize("small", []) == ""


@pytest.mark.parametrize("token", [-1, 49_152, 2**31 - 1])
async def test_a_number_that_is_no_token_is_refused_everywhere(engine: LlamaCpp, token: int) -> None:
    with pytest.raises(InvalidValue) as caught:
        await engine.detokenize("small", [5, token])
    assert caught.value.param == "tokens"
    wishes: dict[str, Any] = {"logit_bias": {str(token): 1.0}, "stop_token_ids": (token,)}
    for field, wish in wishes.items():
        with pytest.raises(InvalidValue) as caught:
            await ask(engine, work("x", **{field: wish}))
        assert caught.value.param == field
    assert child_of(engine).alive


@pytest.mark.parametrize(
    ("grammar", "kept"),
    [
        (Grammar("regex", "[a-c]{3}/[0-9]"), "[a-c]{3}/[0-9]"),
        (Grammar("lark", 'start: greeting " " NAME\ngreeting: "hi" | "bye"\nNAME: /[a-z]{2}/'), "(hi|bye) [a-z]{2}"),
        (Grammar("gbnf", 'root ::= "yes" | "no"'), "yes|no"),
    ],
)
async def test_an_answer_is_a_sentence_of_its_grammar(engine: LlamaCpp, grammar: Grammar, kept: str) -> None:
    said = await ask(engine, work("Well?", grammar, max_tokens=20))
    assert said.last.finish == "stop"
    assert re.fullmatch(kept, said.text), said.text


async def test_a_grammar_that_allows_everything_is_not_taken_for_none(engine: LlamaCpp) -> None:
    for grammar in (Grammar("regex", r"(.|\n)*"), Grammar("gbnf", "root ::= .*")):
        assert (await ask(engine, work("Well?", grammar, max_tokens=2))).counts.output_tokens <= 2


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("regex", "[a-"),
        Grammar("regex", "(?=a)b"),
        Grammar("lark", "start: nobody"),
        Grammar("lark", "nonsense"),
        Grammar("gbnf", "root ::= ("),
        Grammar("gbnf", "root ::= nobody"),
        Grammar("gbnf", 'root ::= root "a" | "b"'),
    ],
)
async def test_a_grammar_that_cannot_be_enforced_is_refused(engine: LlamaCpp, grammar: Grammar) -> None:
    for _ in range(2):  # the second time from memory
        with pytest.raises(InvalidValue, match=r"This grammar cannot be enforced: .") as caught:
            await ask(engine, work("x", grammar))
        assert caught.value.param == "text.format"
    assert child_of(engine).alive


async def test_structural_tags_are_refused(engine: LlamaCpp) -> None:
    with pytest.raises(UnsupportedParameter):
        await ask(engine, work("x", StructuralTag({})))


async def test_a_bias_forbids_and_forces_tokens(engine: LlamaCpp) -> None:
    free = await ask(engine, work(RAW, max_tokens=1))
    [said] = free.chunks[0].tokens
    other = await ask(engine, work(RAW, max_tokens=1, logit_bias={str(said): -100.0}))
    assert other.chunks[0].tokens != (said,)
    [forced] = other.chunks[0].tokens
    assert (await ask(engine, work(RAW, max_tokens=1, logit_bias={str(forced): 100.0}))).chunks[0].tokens == (forced,)


@pytest.mark.parametrize("included", [False, True])
async def test_an_answer_ends_at_a_token_of_the_clients_choosing(engine: LlamaCpp, included: bool) -> None:
    free = await ask(engine, work(RAW, max_tokens=8, ignore_eos=True))
    pieces = [(chunk.tokens[0], chunk.text) for chunk in free.chunks if chunk.tokens]
    stop = next(token for token, _ in pieces[2:] if token not in [pieces[0][0], pieces[1][0]])
    at = [token for token, _ in pieces].index(stop)
    said = await ask(
        engine, work(RAW, max_tokens=8, stop_token_ids=(stop,), include_stop_str_in_output=included, ignore_eos=True)
    )
    assert said.text == "".join(text for _, text in pieces[: at + included])
    assert (said.last.finish, said.last.extras and said.last.extras.stop_reason) == ("stop", stop)
    assert (said.counts.output_tokens, said.counts.input_tokens) == (at + 1, free.counts.input_tokens)
    assert (await ask(engine, work("Hello!", max_tokens=1))).last.finish  # the slot is free


async def test_the_numbers_of_the_prompt_are_told_to_who_wants_them(engine: LlamaCpp) -> None:
    said = await ask(engine, work(RAW, max_tokens=2, return_token_ids=True))
    extras = said.chunks[0].extras
    assert extras is not None
    assert extras.prompt_token_ids == [*await engine.tokenize("small", RAW)]


async def test_a_salted_prompt_is_computed_whole(engine: LlamaCpp) -> None:
    plain = work(chat("Tell me about the sea and its tides and its ships."), max_tokens=1)
    salted = type(plain)(model="small", prompt=plain.prompt, sampling=plain.sampling, salt="s")
    await ask(engine, plain)
    assert (await ask(engine, plain)).counts.cached_tokens > 0
    assert (await ask(engine, salted)).counts.cached_tokens == 0


async def test_control_tokens_are_told_by_their_numbers_and_a_character_by_its_last_token(engine: LlamaCpp) -> None:
    """What parsers that read tokens have to know of llama.cpp."""
    grammar = Grammar("lark", f'start: "ab🙂" <[{IM_START}]> "x" <[{IM_END}]> "y"')
    said = await ask(engine, work("Well?", grammar, max_tokens=20, stop_token_ids=(IM_END,)))
    assert [chunk.text for chunk in said.chunks] == ["ab", "🙂", "", "x", ""]
    assert [len(chunk.tokens) for chunk in said.chunks] == [1, 1, 1, 1, 1]
    assert (said.chunks[2].tokens, said.chunks[4].tokens) == ((IM_START,), (IM_END,))
    assert said.last.finish == "stop"
    (smile,) = said.chunks[1].tokens
    assert await engine.detokenize("small", [smile]) != "🙂"
