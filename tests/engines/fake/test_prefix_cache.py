from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from antiphon.engines.fake.prefix_cache import CHARACTERS, PROMPTS, PrefixCache

prompts = st.lists(st.tuples(st.sampled_from([None, "a"]), st.text(st.sampled_from("ab"), max_size=12)), max_size=30)


def common(one: str, other: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@given(prompts)
def test_it_knows_the_longest_common_beginning_of_its_salt(asked: list[tuple[str | None, str]]) -> None:
    cache = PrefixCache()
    for place, (salt, text) in enumerate(asked):
        before = [earlier for other, earlier in asked[:place] if other == salt]
        best = max((common(text, earlier) for earlier in before), default=0)
        assert cache.match(text, salt) == best


def test_it_forgets_the_oldest_and_keeps_beginnings_only() -> None:
    cache = PrefixCache()
    cache.match("first", None)
    for number in range(PROMPTS):
        cache.match(f"{number:02}", None)
    assert cache.match("first", None) == 0
    long = "x" * (CHARACTERS + 10)
    cache.match(long, None)
    assert cache.match(long, None) == CHARACTERS
