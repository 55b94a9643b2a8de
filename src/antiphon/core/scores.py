"""How likely an answer is: what the answers to one prompt are compared by."""

from collections.abc import Sequence


def mean(logprobs: Sequence[float]) -> float:
    """Of its tokens, so that a short answer is not likelier for being short. One that said nothing is the last."""
    return sum(logprobs) / len(logprobs) if logprobs else float("-inf")
