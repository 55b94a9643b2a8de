"""An answer that ends at a token of the client's choosing, without llama.cpp."""

from antiphon.core.prompt import Chunk, Counts, Extras, Sampling
from antiphon.engines.llamacpp import wire
from antiphon.engines.llamacpp.wire import Answer

PROGRESS = '{"content":"","tokens":[0],"stop":false,"prompt_progress":{"total":3,"cache":2,"processed":3}}'


def events(*said: tuple[str, int]) -> list[wire.Event]:
    return [wire.Event(content=text, tokens=[token]) for text, token in said]


def test_it_ends_there_and_tells_what_it_came_to() -> None:
    answer = Answer(Sampling(stop_token_ids=(7, 8)), [1, 2, 3])
    assert answer.take([wire.EVENT.decode(PROGRESS), *events(("a", 5))]) == [Chunk(text="a", tokens=(5,))]
    assert not answer.cut
    last = Chunk(
        tokens=(8,),
        finish="stop",
        counts=Counts(input_tokens=3, cached_tokens=2, output_tokens=3),
        extras=Extras(stop_reason=8),
    )
    assert answer.take(events(("b", 6), ("c", 8), ("d", 9))) == [Chunk(text="b", tokens=(6,)), last]
    assert answer.cut


def test_the_token_is_said_if_asked_for() -> None:
    answer = Answer(Sampling(stop_token_ids=(8,), include_stop_str_in_output=True), [1])
    assert [chunk.text for chunk in answer.take(events(("b", 6), ("c", 8)))] == ["b", "c"]


def test_the_engines_own_end_stays_its_own() -> None:
    answer = Answer(Sampling(stop_token_ids=(8,)), [1])
    ended = wire.Event(content="", tokens=[8], stop=True, stop_type="eos", tokens_predicted=4, tokens_evaluated=1)
    [last] = answer.take([ended])
    assert (last.finish, last.counts, answer.cut) == ("stop", Counts(input_tokens=1, output_tokens=4), False)


def test_the_prompt_is_told_once_to_who_wants_it() -> None:
    answer = Answer(Sampling(return_token_ids=True), [1, 2])
    first, second = answer.take(events(("a", 5))) + answer.take(events(("b", 6)))
    assert (first.extras, second.extras) == (Extras(prompt_token_ids=[1, 2]), None)
