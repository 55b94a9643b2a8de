"""Raw prompts, grammars and token ids with the default model."""

import re
from typing import Any

import pytest

from antiphon.core.prompt import Grammar, Segment, StructuralTag, TextPrompt, TokenPrompt
from antiphon.engines.llamacpp.engine import LlamaCpp
from antiphon.errors import InvalidValue, UnsupportedParameter
from tests.engines.llamacpp.generation import chat_prompt, get_child, make_request, run_generation

pytestmark = [pytest.mark.anyio, pytest.mark.needs("llamacpp"), pytest.mark.real_model, pytest.mark.timeout(400)]

IM_START, IM_END = 1, 2
RAW = TextPrompt((Segment("<|im_start|>Once upon", control=True),))


async def test_capabilities_list_supported_fields_and_the_reasons_for_others(engine: LlamaCpp) -> None:
    capabilities = await engine.capabilities("small")
    assert {"logit_bias", "stop_token_ids", "return_token_ids"} <= capabilities.supported_fields
    assert {"grammar.regex", "grammar.lark", "grammar.gbnf"} <= capabilities.supported_fields
    assert {"min_tokens", "prompt_logprobs", "structural_tag"} == capabilities.unsupported_reasons.keys()
    assert not capabilities.unsupported_reasons.keys() & capabilities.supported_fields
    assert [*capabilities.other_levels] == ["tokens"]
    assert sorted(capabilities.tasks) == ["detokenize", "generate", "tokenize"]


async def test_a_raw_text_and_its_tokens_are_the_same_prompt(engine: LlamaCpp) -> None:
    tokens = await engine.tokenize("small", RAW)
    assert tokens[0] == IM_START
    by_text = await run_generation(engine, make_request(RAW, max_tokens=4))
    by_tokens = await run_generation(engine, make_request(TokenPrompt(tokens), max_tokens=4))
    assert by_text.text == by_tokens.text
    assert by_text.counts.input_tokens == by_tokens.counts.input_tokens == len(tokens)


@pytest.mark.shows("G.6")
async def test_tokens_are_decoded_to_their_text(engine: LlamaCpp) -> None:
    prompt = chat_prompt("Hällo 🌍, <|im_end|>!")
    tokens = await engine.tokenize("small", prompt)
    assert await engine.detokenize("small", tokens) == "".join(segment.text for segment in prompt.segments)
    assert len(tokens) == await engine.count_tokens("small", prompt)
    assert await engine.detokenize("small", []) == ""


@pytest.mark.parametrize("token", [-1, 49_152, 2**31 - 1])
async def test_an_invalid_token_id_is_rejected_in_every_field(engine: LlamaCpp, token: int) -> None:
    with pytest.raises(InvalidValue) as caught:
        await engine.detokenize("small", [5, token])
    assert caught.value.param == "tokens"
    options: dict[str, Any] = {"logit_bias": {str(token): 1.0}, "stop_token_ids": (token,)}
    for field, value in options.items():
        with pytest.raises(InvalidValue) as caught:
            await run_generation(engine, make_request("x", **{field: value}))
        assert caught.value.param == field
    assert get_child(engine).is_alive


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        (Grammar("regex", "[a-c]{3}/[0-9]"), "[a-c]{3}/[0-9]"),
        (Grammar("lark", 'start: greeting " " NAME\ngreeting: "hi" | "bye"\nNAME: /[a-z]{2}/'), "(hi|bye) [a-z]{2}"),
        (Grammar("gbnf", 'root ::= "yes" | "no"'), "yes|no"),
    ],
)
async def test_the_answer_matches_its_grammar(engine: LlamaCpp, grammar: Grammar, pattern: str) -> None:
    result = await run_generation(engine, make_request("Well?", grammar, max_tokens=20))
    assert result.last.finish == "stop"
    assert re.fullmatch(pattern, result.text), result.text


async def test_a_grammar_that_allows_everything_is_accepted(engine: LlamaCpp) -> None:
    for grammar in (Grammar("regex", r"(.|\n)*"), Grammar("gbnf", "root ::= .*")):
        assert (await run_generation(engine, make_request("Well?", grammar, max_tokens=2))).counts.output_tokens <= 2


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
        Grammar("gbnf", 'root ::= a "x"\na ::= b\nb ::= "y"? root'),
        Grammar("gbnf", 'other ::= "a"'),
        Grammar("gbnf", 'root ::= "a'),
        Grammar("gbnf", "root ::= *"),
        Grammar("gbnf", 'root ::= "a"{99999999}'),
    ],
)
async def test_a_grammar_that_cannot_be_enforced_is_rejected(engine: LlamaCpp, grammar: Grammar) -> None:
    for _ in range(2):  # the second error comes from the cache
        with pytest.raises(InvalidValue, match=r"This grammar cannot be enforced: .") as caught:
            await run_generation(engine, make_request("x", grammar))
        assert caught.value.param == "text.format"
    assert get_child(engine).is_alive


async def test_structural_tags_are_rejected(engine: LlamaCpp) -> None:
    with pytest.raises(UnsupportedParameter):
        await run_generation(engine, make_request("x", StructuralTag({})))


async def test_a_bias_forbids_and_forces_tokens(engine: LlamaCpp) -> None:
    free = await run_generation(engine, make_request(RAW, max_tokens=1))
    [token] = free.chunks[0].tokens
    other = await run_generation(engine, make_request(RAW, max_tokens=1, logit_bias={str(token): -100.0}))
    assert other.chunks[0].tokens != (token,)
    [forced] = other.chunks[0].tokens
    assert (await run_generation(engine, make_request(RAW, max_tokens=1, logit_bias={str(forced): 100.0}))).chunks[
        0
    ].tokens == (forced,)


@pytest.mark.parametrize("included", [False, True])
async def test_a_stop_token_ends_the_answer(engine: LlamaCpp, included: bool) -> None:
    free = await run_generation(engine, make_request(RAW, max_tokens=8, ignore_eos=True))
    pieces = [(chunk.tokens[0], chunk.text) for chunk in free.chunks if chunk.tokens]
    stop = next(token for token, _ in pieces[2:] if token not in [pieces[0][0], pieces[1][0]])
    at = [token for token, _ in pieces].index(stop)
    result = await run_generation(
        engine,
        make_request(RAW, max_tokens=8, stop_token_ids=(stop,), include_stop_str_in_output=included, ignore_eos=True),
    )
    assert result.text == "".join(text for _, text in pieces[: at + included])
    assert (result.last.finish, result.last.extras and result.last.extras.stop_reason) == ("stop", stop)
    assert (result.counts.output_tokens, result.counts.input_tokens) == (at + 1, free.counts.input_tokens)
    assert (await run_generation(engine, make_request("Hello!", max_tokens=1))).last.finish  # the slot is free again


async def test_prompt_token_ids_are_returned_on_request(engine: LlamaCpp) -> None:
    result = await run_generation(engine, make_request(RAW, max_tokens=2, return_token_ids=True))
    extras = result.chunks[0].extras
    assert extras is not None
    assert extras.prompt_token_ids == [*await engine.tokenize("small", RAW)]


async def test_a_salted_prompt_does_not_use_the_cache(engine: LlamaCpp) -> None:
    plain = make_request(chat_prompt("Tell me about the sea and its tides and its ships."), max_tokens=1)
    salted = type(plain)(model="small", prompt=plain.prompt, sampling=plain.sampling, salt="s")
    await run_generation(engine, plain)
    assert (await run_generation(engine, plain)).counts.cached_tokens > 0
    assert (await run_generation(engine, salted)).counts.cached_tokens == 0


async def test_control_tokens_have_ids_and_a_character_comes_with_its_last_token(engine: LlamaCpp) -> None:
    """Parsers that read tokens rely on this behaviour of llama.cpp."""
    grammar = Grammar("lark", f'start: "ab🙂" <[{IM_START}]> "x" <[{IM_END}]> "y"')
    result = await run_generation(engine, make_request("Well?", grammar, max_tokens=20, stop_token_ids=(IM_END,)))
    assert [chunk.text for chunk in result.chunks] == ["ab", "🙂", "", "x", ""]
    assert [len(chunk.tokens) for chunk in result.chunks] == [1, 1, 1, 1, 1]
    assert (result.chunks[2].tokens, result.chunks[4].tokens) == ((IM_START,), (IM_END,))
    assert result.last.finish == "stop"
    (smile,) = result.chunks[1].tokens
    assert await engine.detokenize("small", [smile]) != "🙂"
