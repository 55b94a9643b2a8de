"""The usage of a Response is the sum over its turns."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.prompt import TokenCounts
from antiphon.core.usage import sum_counts, usage_from_counts
from antiphon.protocol.types.response import InputTokensDetails, OutputTokensDetails, Response
from tests.oracles.responses import check_response

TOKENS = st.integers(0, 10**9)
TURNS = st.lists(
    st.builds(TokenCounts, input_tokens=TOKENS, cached_tokens=TOKENS, output_tokens=TOKENS, reasoning_tokens=TOKENS)
)


@pytest.mark.shows("A7.6", "A7.7")
def test_totals_sum_over_turns_and_tool_tokens_are_the_prompt_growth() -> None:
    totals = usage_from_counts(
        [
            TokenCounts(input_tokens=100, cached_tokens=10, output_tokens=20, reasoning_tokens=5),
            TokenCounts(input_tokens=150, cached_tokens=110, output_tokens=30, reasoning_tokens=7),
            TokenCounts(input_tokens=160, cached_tokens=150, output_tokens=1),
        ]
    )
    assert (totals.input_tokens, totals.output_tokens, totals.total_tokens) == (410, 51, 461)
    assert totals.input_tokens_details.cached_tokens == 270
    assert totals.input_tokens_details.input_tokens_per_turn == [100, 150, 160]
    assert totals.input_tokens_details.cached_tokens_per_turn == [10, 110, 150]
    assert totals.output_tokens_details.reasoning_tokens == 12
    assert totals.output_tokens_details.output_tokens_per_turn == [20, 30, 1]
    assert totals.output_tokens_details.tool_output_tokens_per_turn == [0, 30, 0]
    assert totals.output_tokens_details.tool_output_tokens == 30


def test_no_turns_give_zero_usage() -> None:
    assert usage_from_counts([]).total_tokens == 0


@given(turns=TURNS.filter(lambda turns: len(turns) != 1))
@pytest.mark.shows("A7.3", "A7.5", "A7.6", "A7.7")
def test_totals_are_the_sums_of_lists_with_one_entry_per_turn(turns: list[TokenCounts]) -> None:
    totals = usage_from_counts(turns)
    input_details, output_details = totals.input_tokens_details, totals.output_tokens_details
    lists = [
        input_details.input_tokens_per_turn or [],
        input_details.cached_tokens_per_turn or [],
        output_details.output_tokens_per_turn or [],
        output_details.tool_output_tokens_per_turn or [],
    ]
    sums = [totals.input_tokens, input_details.cached_tokens, totals.output_tokens, output_details.tool_output_tokens]
    assert [*map(sum, lists)] == sums
    assert {*map(len, lists)} == {len(turns)}
    assert totals.total_tokens == totals.input_tokens + totals.output_tokens
    counts = sum_counts(turns)
    assert (counts.cached_tokens, counts.reasoning_tokens) == (
        input_details.cached_tokens,
        output_details.reasoning_tokens,
    )
    check_response(json.loads(msgspec.json.encode(Response(id="r", created_at=1, model="m", usage=totals))))


@given(turns=TURNS.filter(lambda turns: len(turns) != 1))
@pytest.mark.shows("A7.7")
def test_tool_tokens_are_never_negative_and_zero_in_the_first_turn(turns: list[TokenCounts]) -> None:
    tools = usage_from_counts(turns).output_tokens_details.tool_output_tokens_per_turn or []
    assert tools[:1] in ([], [0])
    for number in range(1, len(turns)):
        before, turn = turns[number - 1], turns[number]
        assert tools[number] == max(0, turn.input_tokens - before.input_tokens - before.output_tokens)


@given(turns=TURNS.filter(bool))
def test_a_single_turn_has_its_totals_without_per_turn_lists(turns: list[TokenCounts]) -> None:
    turn, usage = turns[0], usage_from_counts(turns[:1])
    assert (usage.input_tokens, usage.output_tokens) == (turn.input_tokens, turn.output_tokens)
    assert usage.total_tokens == turn.input_tokens + turn.output_tokens
    assert usage.input_tokens_details == InputTokensDetails(cached_tokens=turn.cached_tokens)
    assert usage.output_tokens_details == OutputTokensDetails(reasoning_tokens=turn.reasoning_tokens)
