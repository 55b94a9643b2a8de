"""The usage of a Response is the sum of what its turns took."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from antiphon.core.prompt import Counts
from antiphon.core.usage import _of_all, sum_of, usage
from antiphon.protocol.types.response import Response
from tests.oracles.responses import check_response

TOKENS = st.integers(0, 10**9)
TURNS = st.lists(
    st.builds(Counts, input_tokens=TOKENS, cached_tokens=TOKENS, output_tokens=TOKENS, reasoning_tokens=TOKENS)
)


@pytest.mark.shows("A7.6", "A7.7")
def test_totals_are_sums_over_turns_and_tools_are_what_a_prompt_grew_by() -> None:
    told = usage(
        [
            Counts(input_tokens=100, cached_tokens=10, output_tokens=20, reasoning_tokens=5),
            Counts(input_tokens=150, cached_tokens=110, output_tokens=30, reasoning_tokens=7),
            Counts(input_tokens=160, cached_tokens=150, output_tokens=1),
        ]
    )
    assert (told.input_tokens, told.output_tokens, told.total_tokens) == (410, 51, 461)
    assert told.input_tokens_details.cached_tokens == 270
    assert told.input_tokens_details.input_tokens_per_turn == [100, 150, 160]
    assert told.input_tokens_details.cached_tokens_per_turn == [10, 110, 150]
    assert told.output_tokens_details.reasoning_tokens == 12
    assert told.output_tokens_details.output_tokens_per_turn == [20, 30, 1]
    assert told.output_tokens_details.tool_output_tokens_per_turn == [0, 30, 0]
    assert told.output_tokens_details.tool_output_tokens == 30


def test_without_a_turn_everything_is_nought() -> None:
    assert usage([]).total_tokens == 0


@given(turns=TURNS.filter(lambda turns: len(turns) != 1))
@pytest.mark.shows("A7.3", "A7.5", "A7.6", "A7.7")
def test_of_any_turns_the_totals_are_the_sums_and_every_list_has_an_entry_for_each(turns: list[Counts]) -> None:
    told = usage(turns)
    given, said = told.input_tokens_details, told.output_tokens_details
    lists = [
        given.input_tokens_per_turn or [],
        given.cached_tokens_per_turn or [],
        said.output_tokens_per_turn or [],
        said.tool_output_tokens_per_turn or [],
    ]
    sums = [told.input_tokens, given.cached_tokens, told.output_tokens, said.tool_output_tokens]
    assert [*map(sum, lists)] == sums
    assert {*map(len, lists)} == {len(turns)}
    assert told.total_tokens == told.input_tokens + told.output_tokens
    whole = sum_of(turns)
    assert (whole.cached_tokens, whole.reasoning_tokens) == (given.cached_tokens, said.reasoning_tokens)
    check_response(json.loads(msgspec.json.encode(Response(id="r", created_at=1, model="m", usage=told))))


@given(turns=TURNS.filter(lambda turns: len(turns) != 1))
@pytest.mark.shows("A7.7")
def test_tool_tokens_are_never_negative_and_none_in_the_first_turn(turns: list[Counts]) -> None:
    tools = usage(turns).output_tokens_details.tool_output_tokens_per_turn or []
    assert tools[:1] in ([], [0])
    for number in range(1, len(turns)):
        before, turn = turns[number - 1], turns[number]
        assert tools[number] == max(0, turn.input_tokens - before.input_tokens - before.output_tokens)


@given(turn=TURNS.filter(bool))
def test_one_turn_is_counted_like_many_and_not_listed(turn: list[Counts]) -> None:
    like = _of_all(turn[:1])
    for details in (like.input_tokens_details, like.output_tokens_details):
        for name in details.__struct_fields__:
            if name.endswith("_per_turn"):
                setattr(details, name, UNSET)
    assert usage(turn[:1]) == like
