"""Who gets a work, as a function by itself: bounded skew, little movement, and nobody is left out for ever."""

import math
import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.prompt import ChatPrompt, Prompt, Sampling, Segment, TextPrompt, TokenPrompt, Work
from antiphon.engines.pool.balancer import SKEW, Candidate, affinity, choose, least

places = st.lists(st.text(st.characters(codec="ascii"), min_size=1, max_size=8), min_size=1, max_size=9, unique=True)
keys = st.binary(min_size=16, max_size=16)


def idle(names: list[str]) -> list[Candidate]:
    return [Candidate(name, 0) for name in names]


@given(places, st.lists(keys, min_size=1, max_size=100), st.data())
def test_nobody_has_more_than_its_share_and_a_little(names: list[str], asked: list[bytes], data: st.DataObject) -> None:
    """However keys are made, and whoever ends its works when; also if all keys are one."""
    if data.draw(st.booleans()):
        asked = [asked[0]] * len(asked)
    loads = Counter[str]()
    for key in asked:
        chosen = names[choose([Candidate(name, loads[name]) for name in names], key)]
        loads[chosen] += 1
        assert loads[chosen] <= SKEW * loads.total() / len(names) + 1
        busy = [name for name in names if loads[name]]
        if data.draw(st.booleans()):
            loads[data.draw(st.sampled_from(busy))] -= 1


@given(places, keys, st.lists(st.integers(0, 1000), min_size=9, max_size=9), st.lists(st.integers(1, 2000), min_size=9))
def test_somebody_is_chosen_whatever_they_have_to_do(
    names: list[str], key: bytes, loads: list[int], slots: list[int]
) -> None:
    candidates = [Candidate(*one) for one in zip(names, loads, slots, strict=False)]
    chosen = candidates[choose(candidates, key)]
    share = chosen.slots or 0
    total, all_slots = sum(one.running for one in candidates) + 1, sum(one.slots or 0 for one in candidates)
    assert len(candidates) == 1 or chosen.running + 1 <= SKEW * total * share / all_slots + 1


@given(places, st.lists(keys, min_size=1, max_size=50, unique=True), st.data())
def test_when_one_goes_only_its_own_move_and_when_it_comes_back_so_do_they(
    names: list[str], asked: list[bytes], data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(names))
    left = [name for name in names if name != gone]
    for key in asked if left else []:
        before, after = names[choose(idle(names), key)], left[choose(idle(left), key)]
        assert before in (after, gone)


@given(places, keys, st.randoms(use_true_random=False))
def test_every_server_chooses_alike_in_whichever_order_it_has_them(
    names: list[str], key: bytes, chance: random.Random
) -> None:
    shuffled = chance.sample(names, len(names))
    assert names[choose(idle(names), key)] == shuffled[choose(idle(shuffled), key)]


def test_keys_spread_evenly() -> None:
    names = [f"vllm://gpu-{number}:8000" for number in range(4)]
    chosen = Counter(choose(idle(names), number.to_bytes(16, "big")) for number in range(4000))
    deviation = math.sqrt(4000 * 0.25 * 0.75)
    assert all(abs(count - 1000) < 5 * deviation for count in chosen.values())


def test_an_engine_with_more_slots_gets_more() -> None:
    loads, slots = [0, 0], [10, 30]
    for number in range(40):
        key = number.to_bytes(16, "big")
        chosen = choose([Candidate(*one) for one in zip("ab", loads, slots, strict=True)], key)
        loads[chosen] += 1
    assert loads[0] <= SKEW * 40 / 4 + 1
    assert loads[1] <= SKEW * 40 * 3 / 4 + 1


def test_what_no_cache_helps_goes_to_who_has_least_to_do() -> None:
    assert least([Candidate("a", 3, 10), Candidate("b", 10, 100), Candidate("c", 4, 10)]) == 1
    assert least([Candidate("b", 0), Candidate("a", 0)]) == 1, "the same one everywhere"


def asked(prompt: Prompt, **wishes: str) -> bytes:
    return affinity(Work(model=wishes.pop("model", "m"), prompt=prompt, sampling=Sampling(), **wishes))  # type: ignore[arg-type]  # of several fields


def chat(*texts: str) -> ChatPrompt:
    roles = ("system", "user", "assistant", "user", "assistant")
    return ChatPrompt(tuple({"role": role, "content": text} for role, text in zip(roles, texts, strict=False)))


def test_a_conversation_keeps_its_key_as_it_grows() -> None:
    assert asked(chat("Be kind.", "hi")) == asked(chat("Be kind.", "hi", "hello", "and now?"))
    assert asked(chat("Be kind.", "hi")) != asked(chat("Be kind.", "ho"))
    assert asked(chat("Be kind.", "hi")) != asked(chat("Be rude.", "hi"))
    begun = (Segment("<user>", True), Segment("hi", False))
    grown = (*begun, Segment("<assistant>", True), Segment("hello", False))
    assert asked(TextPrompt(begun)) == asked(TextPrompt(grown))
    assert asked(TokenPrompt(tuple(range(100)))) == asked(TokenPrompt(tuple(range(200))))


def test_what_the_client_says_comes_before_what_its_prompt_says() -> None:
    assert asked(chat("a", "b"), affinity="mine") == asked(chat("c", "d"), affinity="mine")
    assert asked(chat("a", "b"), affinity="mine") != asked(chat("a", "b"), affinity="yours")


def test_models_and_tenants_have_keys_of_their_own() -> None:
    keys = {asked(chat("a", "b")), asked(chat("a", "b"), model="n"), asked(chat("a", "b"), salt="t")}
    assert len(keys) == 3


def test_a_picture_of_megabytes_costs_no_more_than_its_beginning() -> None:
    def seen(picture: str) -> ChatPrompt:
        content = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": picture}}]
        return ChatPrompt(({"role": "user", "content": content},))

    assert asked(seen("data:image/png;base64," + "A" * 10**7)) != asked(seen("data:image/png;base64,B"))
    assert asked(seen("x" * 10_000 + "a")) == asked(seen("x" * 10_000 + "b"))


def test_text_that_no_encoding_takes_has_a_key_too() -> None:
    assert asked(chat("\ud800", "\x00")) != asked(chat("\ud801", "\x00"))
