"""What engines say of their own work."""

import pytest

from antiphon.engines.base import MOST_TOKENS
from antiphon.engines.http.readers.wire import Usage, counts


@pytest.mark.parametrize(
    ("said", "believed"), [(None, 0), (-1, 0), (0, 0), (7, 7), (MOST_TOKENS, MOST_TOKENS), (2**60, MOST_TOKENS)]
)
def test_tokens_are_counted_as_far_as_that_can_be_believed(said: int | None, believed: int) -> None:
    usage = counts(Usage(prompt_tokens=said, completion_tokens=5))
    assert (usage.input_tokens, usage.output_tokens) == (believed, 5)
    usage = counts(Usage(prompt_tokens=5, completion_tokens=said))
    assert (usage.input_tokens, usage.output_tokens) == (5, believed)
