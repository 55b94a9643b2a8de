"""Score by which several answers to one prompt are ranked."""

from collections.abc import Sequence


def mean_logprob(logprobs: Sequence[float]) -> float:
    """Return the mean log probability per token, so that short answers are not favoured. Empty answers rank last."""
    return sum(logprobs) / len(logprobs) if logprobs else float("-inf")
