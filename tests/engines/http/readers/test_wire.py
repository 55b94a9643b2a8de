"""Token counts that engines report."""

import pytest

from antiphon.engines.base import MAX_TOKEN_COUNT
from antiphon.engines.http.readers.wire import WireUsage, counts_from_usage


@pytest.mark.parametrize(
    ("reported", "expected"),
    [(None, 0), (-1, 0), (0, 0), (7, 7), (MAX_TOKEN_COUNT, MAX_TOKEN_COUNT), (2**60, MAX_TOKEN_COUNT)],
)
def test_reported_token_counts_are_clamped_to_a_plausible_range(reported: int | None, expected: int) -> None:
    usage = counts_from_usage(WireUsage(prompt_tokens=reported, completion_tokens=5))
    assert (usage.input_tokens, usage.output_tokens) == (expected, 5)
    usage = counts_from_usage(WireUsage(prompt_tokens=5, completion_tokens=reported))
    assert (usage.input_tokens, usage.output_tokens) == (5, expected)
