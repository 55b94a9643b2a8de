"""Token counts of each turn → the usage of a Response."""

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
    return TokenCounts(**{name: sum(_list_counts(turns, name)) for name in TokenCounts.__struct_fields__})


def usage_from_counts(turns: Sequence[TokenCounts], others: Sequence[TokenCounts] = ()) -> Usage:
    """Build the usage. A single turn has no per-turn lists: they would repeat the totals, and some clients expect every
    detail to be a number. `others`: calls beside the turns, such as summaries, which are part of the totals.
    """
    total = turns[0] if len(turns) == 1 and not others else sum_counts([*turns, *others])
    inputs = InputTokensDetails(cached_tokens=total.cached_tokens)
    outputs = OutputTokensDetails(reasoning_tokens=total.reasoning_tokens)
    if len(turns) != 1:
        inputs.input_tokens_per_turn = _list_counts(turns, "input_tokens")
        inputs.cached_tokens_per_turn = _list_counts(turns, "cached_tokens")
        outputs.output_tokens_per_turn = _list_counts(turns, "output_tokens")
        outputs.tool_output_tokens_per_turn = tools = _tool_output_tokens(turns)
        outputs.tool_output_tokens = sum(tools)
    return Usage(
        input_tokens=total.input_tokens,
        input_tokens_details=inputs,
        output_tokens=total.output_tokens,
        output_tokens_details=outputs,
        total_tokens=total.input_tokens + total.output_tokens,
    )


def _list_counts(turns: Sequence[TokenCounts], name: str) -> list[int]:
    return [getattr(turn, name) for turn in turns]


def _tool_output_tokens(turns: Sequence[TokenCounts]) -> list[int]:
    """Estimate the tool output of each turn: the growth of the prompt beyond the previous prompt and its answer."""
    added = [max(0, turn.input_tokens - before.input_tokens - before.output_tokens) for before, turn in pairwise(turns)]
    return [0, *added] if turns else []
