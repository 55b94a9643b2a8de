"""Counts of each turn → the usage of a Response. Totals are sums over turns."""

from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import replace

from antiphon.core.prompt import Counts
from antiphon.protocol.types.response import InputTokensDetails, OutputTokensDetails, Usage


def counted(counts: Counts, reasoning_tokens: int) -> Counts:
    """With the tokens of reasoning, where somebody else than the engine counted them."""
    if not reasoning_tokens:
        return counts
    return replace(counts, reasoning_tokens=min(reasoning_tokens, counts.output_tokens))


def sum_of(turns: Sequence[Counts]) -> Counts:
    return Counts(
        input_tokens=sum([turn.input_tokens for turn in turns]),
        cached_tokens=sum([turn.cached_tokens for turn in turns]),
        output_tokens=sum([turn.output_tokens for turn in turns]),
        reasoning_tokens=sum([turn.reasoning_tokens for turn in turns]),
    )


def usage(turns: Sequence[Counts]) -> Usage:
    """Of a single turn, the counts of each turn would say the same once more, and there are clients that take every
    detail for a number."""
    if len(turns) != 1:
        return _of_all(turns)
    turn = turns[0]
    return Usage(
        input_tokens=turn.input_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=turn.cached_tokens),
        output_tokens=turn.output_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=turn.reasoning_tokens),
        total_tokens=turn.input_tokens + turn.output_tokens,
    )


def _of_all(turns: Sequence[Counts]) -> Usage:
    given = [turn.input_tokens for turn in turns]
    cached = [turn.cached_tokens for turn in turns]
    said = [turn.output_tokens for turn in turns]
    tools = _tool_tokens(turns)
    return Usage(
        input_tokens=sum(given),
        input_tokens_details=InputTokensDetails(
            cached_tokens=sum(cached), input_tokens_per_turn=given, cached_tokens_per_turn=cached
        ),
        output_tokens=sum(said),
        output_tokens_details=OutputTokensDetails(
            reasoning_tokens=sum([turn.reasoning_tokens for turn in turns]),
            tool_output_tokens=sum(tools),
            output_tokens_per_turn=said,
            tool_output_tokens_per_turn=tools,
        ),
        total_tokens=sum(given) + sum(said),
    )


def _tool_tokens(turns: Sequence[Counts]) -> list[int]:
    """What a prompt holds beyond the one before it and the answer to that came from tools."""
    added = [max(0, turn.input_tokens - before.input_tokens - before.output_tokens) for before, turn in pairwise(turns)]
    return [0, *added] if turns else []
