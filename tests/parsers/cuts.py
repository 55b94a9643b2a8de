"""Ways to cut a text, for tests that must not depend on where it was cut."""

from itertools import pairwise

from hypothesis import strategies as st


def pieces(text: str, cuts: list[int]) -> list[str]:
    """The text, cut at these places (taken modulo its length)."""
    places = sorted({cut % (len(text) + 1) for cut in cuts})
    edges = [0, *places, len(text)]
    return [text[begin:end] for begin, end in pairwise(edges)]


CUTS = st.lists(st.integers(min_value=0, max_value=10_000), max_size=12)
