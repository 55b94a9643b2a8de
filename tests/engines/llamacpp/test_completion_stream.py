"""Events of a completion stream, also of one that ends at a stop token of the client, without llama.cpp.

Covers `engines/embedded/wire.py`.
"""

import pytest

from antiphon.core.prompt import Chunk, EngineExtras, Sampling, TokenCounts
from antiphon.engines.embedded import wire
from antiphon.engines.embedded.wire import LlamaCppStreamDecoder
from antiphon.errors import EngineFailed

PROGRESS = '{"content":"","tokens":[0],"stop":false,"prompt_progress":{"total":3,"cache":2,"processed":3}}'
LAST = (
    '{"content":"","tokens":[],"stop":true,"stop_type":"%s","stopping_word":"%s",'
    '"tokens_predicted":3,"tokens_evaluated":9,"timings/cache_n":4}'
)


def make_events(*pieces: tuple[str, int]) -> list[wire.LlamaCppEvent]:
    return [wire.LlamaCppEvent(content=text, tokens=[token]) for text, token in pieces]


def decode_chunks(*events: str, **sampling: object) -> list[Chunk]:
    decoded = [wire.EVENT_DECODER.decode(event) for event in events]
    return LlamaCppStreamDecoder(Sampling(**sampling), ()).decode(decoded)  # type: ignore[arg-type]  # fields are passed by name


def test_progress_events_are_skipped_and_text_becomes_chunks() -> None:
    assert decode_chunks(PROGRESS, '{"content":"a","tokens":[5],"stop":false}') == [Chunk(text="a", tokens=(5,))]


@pytest.mark.parametrize(
    ("type", "finish"), [("eos", "stop"), ("word", "stop"), ("limit", "length"), ("none", "length")]
)
def test_the_last_event_sets_the_finish_reason_and_the_counts(type: str, finish: str) -> None:
    [chunk] = decode_chunks(LAST % (type, ""))
    assert chunk.finish == finish
    assert chunk.counts == TokenCounts(input_tokens=9, cached_tokens=4, output_tokens=3)


def test_the_stop_string_is_included_on_request() -> None:
    [last] = decode_chunks(LAST % ("word", "END"))
    assert (last.text, last.extras) == ("", EngineExtras(stop_reason="END"))
    assert decode_chunks(LAST % ("word", "END"), include_stop_str_in_output=True)[0].text == "END"


def test_an_error_in_the_stream_is_an_engine_failure() -> None:
    with pytest.raises(EngineFailed, match="The engine failed: Compute error"):
        decode_chunks('{"error":{"code":500,"message":"Compute error","type":"server_error"}}')


def test_empty_tokens_have_no_logprobs_and_infinite_logprobs_are_clamped() -> None:
    event = (
        '{"content":"a","tokens":[5],"completion_probabilities":['
        '{"id":5,"token":"a","bytes":[97],"logprob":-3.4e38,'
        '"top_logprobs":[{"id":6,"token":"b","bytes":[98],"logprob":-0.5}]},'
        '{"id":2,"token":"","bytes":[],"logprob":-1.0,"top_logprobs":[]}]}'
    )
    [chunk] = decode_chunks(event, logprobs=1)
    [logprob] = chunk.logprobs
    assert (logprob.token, logprob.logprob) == ("a", -9999.0)
    assert [top.token for top in logprob.top_logprobs] == ["b"]


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
