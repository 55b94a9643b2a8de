"""Random cuts of a text, for tests whose result must not depend on chunk boundaries."""

from itertools import pairwise

from hypothesis import strategies as st


def split_at(text: str, cuts: list[int]) -> list[str]:
    """Split `text` at the positions `cuts`, taken modulo its length plus one."""
    positions = sorted({cut % (len(text) + 1) for cut in cuts})
    edges = [0, *positions, len(text)]
    return [text[begin:end] for begin, end in pairwise(edges)]


CUTS = st.lists(st.integers(min_value=0, max_value=10_000), max_size=12)
