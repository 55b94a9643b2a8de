"""A completion stream that ends at a stop token of the client, without llama.cpp."""

from antiphon.core.prompt import Chunk, EngineExtras, Sampling, TokenCounts
from antiphon.engines.llamacpp import wire
from antiphon.engines.llamacpp.wire import LlamaCppStreamDecoder

PROGRESS = '{"content":"","tokens":[0],"stop":false,"prompt_progress":{"total":3,"cache":2,"processed":3}}'


def make_events(*pieces: tuple[str, int]) -> list[wire.LlamaCppEvent]:
    return [wire.LlamaCppEvent(content=text, tokens=[token]) for text, token in pieces]


def test_the_stream_ends_at_a_stop_token_and_reports_the_counts() -> None:
    decoder = LlamaCppStreamDecoder(Sampling(stop_token_ids=(7, 8)), [1, 2, 3])
    assert decoder.decode([wire.EVENT_DECODER.decode(PROGRESS), *make_events(("a", 5))]) == [
        Chunk(text="a", tokens=(5,))
    ]
    assert not decoder.stopped
    last = Chunk(
        tokens=(8,),
        finish="stop",
        counts=TokenCounts(input_tokens=3, cached_tokens=2, output_tokens=3),
        extras=EngineExtras(stop_reason=8),
    )
    assert decoder.decode(make_events(("b", 6), ("c", 8), ("d", 9))) == [Chunk(text="b", tokens=(6,)), last]
    assert decoder.stopped


def test_the_stop_token_is_included_on_request() -> None:
    decoder = LlamaCppStreamDecoder(Sampling(stop_token_ids=(8,), include_stop_str_in_output=True), [1])
    assert [chunk.text for chunk in decoder.decode(make_events(("b", 6), ("c", 8)))] == ["b", "c"]


def test_the_end_reported_by_llama_cpp_is_kept() -> None:
    decoder = LlamaCppStreamDecoder(Sampling(stop_token_ids=(8,)), [1])
    ended = wire.LlamaCppEvent(
        content="", tokens=[8], stop=True, stop_type="eos", tokens_predicted=4, tokens_evaluated=1
    )
    [last] = decoder.decode([ended])
    assert (last.finish, last.counts, decoder.stopped) == ("stop", TokenCounts(input_tokens=1, output_tokens=4), False)


def test_prompt_token_ids_are_returned_once_on_request() -> None:
    decoder = LlamaCppStreamDecoder(Sampling(return_token_ids=True), [1, 2])
    first, second = decoder.decode(make_events(("a", 5))) + decoder.decode(make_events(("b", 6)))
    assert (first.extras, second.extras) == (EngineExtras(prompt_token_ids=[1, 2]), None)
