"""The prefix cache of the fake engine, against a brute-force search of the longest common prefix."""

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from antiphon.engines.fake.prompt_reader import MAX_PROMPT_CHARS, MAX_PROMPTS, PrefixCache

prompts = st.lists(st.tuples(st.sampled_from([None, "a"]), st.text(st.sampled_from("ab"), max_size=12)), max_size=30)


def common_prefix_length(one: str, other: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@given(prompts)
def test_the_longest_common_prefix_with_the_same_salt_is_found(history: list[tuple[str | None, str]]) -> None:
    cache = PrefixCache()
    for index, (salt, text) in enumerate(history):
        before = [earlier for other, earlier in history[:index] if other == salt]
        best = max((common_prefix_length(text, earlier) for earlier in before), default=0)
        assert cache.match(text, salt) == best


def test_the_oldest_prompt_is_evicted_and_long_prompts_are_truncated() -> None:
    cache = PrefixCache()
    cache.match("first", None)
    for number in range(MAX_PROMPTS):
        cache.match(f"{number:02}", None)
    assert cache.match("first", None) == 0
    long = "x" * (MAX_PROMPT_CHARS + 10)
    cache.match(long, None)
    assert cache.match(long, None) == MAX_PROMPT_CHARS
