"""Token counts of each turn → the usage of a Response. Totals are sums over the turns."""

from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import replace

from antiphon.core.prompt import TokenCounts
from antiphon.protocol.types.response import InputTokensDetails, OutputTokensDetails, Usage


def set_reasoning_tokens(counts: TokenCounts, reasoning_tokens: int) -> TokenCounts:
    """Set the reasoning tokens that were counted outside the engine; 0 leaves the counts unchanged."""
    if not reasoning_tokens:
        return counts
    return replace(counts, reasoning_tokens=min(reasoning_tokens, counts.output_tokens))


def sum_counts(turns: Sequence[TokenCounts]) -> TokenCounts:
    return TokenCounts(
        input_tokens=sum([turn.input_tokens for turn in turns]),
        cached_tokens=sum([turn.cached_tokens for turn in turns]),
        output_tokens=sum([turn.output_tokens for turn in turns]),
        reasoning_tokens=sum([turn.reasoning_tokens for turn in turns]),
    )


def usage_from_counts(turns: Sequence[TokenCounts]) -> Usage:
    """Build the usage. A single turn has no per-turn lists: they would repeat the totals, and some clients expect every
    detail to be a number.
    """
    if len(turns) != 1:
        return _usage_from_turns(turns)
    turn = turns[0]
    return Usage(
        input_tokens=turn.input_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=turn.cached_tokens),
        output_tokens=turn.output_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=turn.reasoning_tokens),
        total_tokens=turn.input_tokens + turn.output_tokens,
    )


def _usage_from_turns(turns: Sequence[TokenCounts]) -> Usage:
    inputs = [turn.input_tokens for turn in turns]
    cached = [turn.cached_tokens for turn in turns]
    outputs = [turn.output_tokens for turn in turns]
    tools = _tool_output_tokens(turns)
    return Usage(
        input_tokens=sum(inputs),
        input_tokens_details=InputTokensDetails(
            cached_tokens=sum(cached), input_tokens_per_turn=inputs, cached_tokens_per_turn=cached
        ),
        output_tokens=sum(outputs),
        output_tokens_details=OutputTokensDetails(
            reasoning_tokens=sum([turn.reasoning_tokens for turn in turns]),
            tool_output_tokens=sum(tools),
            output_tokens_per_turn=outputs,
            tool_output_tokens_per_turn=tools,
        ),
        total_tokens=sum(inputs) + sum(outputs),
    )


def _tool_output_tokens(turns: Sequence[TokenCounts]) -> list[int]:
    """Estimate the tool output of each turn: the growth of the prompt beyond the previous prompt and its answer."""
    added = [max(0, turn.input_tokens - before.input_tokens - before.output_tokens) for before, turn in pairwise(turns)]
    return [0, *added] if turns else []
