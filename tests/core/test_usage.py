"""The usage of a Response is the sum of what its turns took."""

import pytest

from antiphon.core.prompt import Counts
from antiphon.core.usage import usage


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
