"""The balancer as a pure function: bounded skew, little movement, and no engine that is never chosen."""

import math
import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.prompt import ChatPrompt, GenerationRequest, Prompt, Sampling, Segment, TextPrompt, TokenPrompt
from antiphon.engines.pool.selection import SKEW, LoadCandidate, affinity_key, choose, choose_least_loaded

locations = st.lists(st.text(st.characters(codec="ascii"), min_size=1, max_size=8), min_size=1, max_size=9, unique=True)
keys = st.binary(min_size=16, max_size=16)


def idle_candidates(names: list[str]) -> list[LoadCandidate]:
    return [LoadCandidate(name, 0) for name in names]


@given(locations, st.lists(keys, min_size=1, max_size=100), st.data())
def test_no_engine_exceeds_its_share_by_more_than_the_skew(
    names: list[str], request_keys: list[bytes], data: st.DataObject
) -> None:
    """For any keys and any order in which requests end; also if all keys are equal."""
    if data.draw(st.booleans()):
        request_keys = [request_keys[0]] * len(request_keys)
    loads = Counter[str]()
    for key in request_keys:
        chosen = names[choose([LoadCandidate(name, loads[name]) for name in names], key)]
        loads[chosen] += 1
        assert loads[chosen] <= SKEW * loads.total() / len(names) + 1
        busy = [name for name in names if loads[name]]
        if data.draw(st.booleans()):
            loads[data.draw(st.sampled_from(busy))] -= 1


@given(
    locations, keys, st.lists(st.integers(0, 1000), min_size=9, max_size=9), st.lists(st.integers(1, 2000), min_size=9)
)
def test_an_engine_is_chosen_for_any_load_and_slots(
    names: list[str], key: bytes, loads: list[int], slots: list[int]
) -> None:
    candidates = [LoadCandidate(*one) for one in zip(names, loads, slots, strict=False)]
    chosen = candidates[choose(candidates, key)]
    share = chosen.slots or 0
    total, all_slots = sum(one.running for one in candidates) + 1, sum(one.slots or 0 for one in candidates)
    assert len(candidates) == 1 or chosen.running + 1 <= SKEW * total * share / all_slots + 1


@given(locations, st.lists(keys, min_size=1, max_size=50, unique=True), st.data())
def test_a_removed_engine_moves_only_its_own_keys(
    names: list[str], request_keys: list[bytes], data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(names))
    remaining = [name for name in names if name != gone]
    for key in request_keys if remaining else []:
        before, after = names[choose(idle_candidates(names), key)], remaining[choose(idle_candidates(remaining), key)]
        assert before in (after, gone)


@given(locations, keys, st.randoms(use_true_random=False))
def test_the_choice_does_not_depend_on_the_order_of_the_engines(
    names: list[str], key: bytes, chance: random.Random
) -> None:
    shuffled = chance.sample(names, len(names))
    assert names[choose(idle_candidates(names), key)] == shuffled[choose(idle_candidates(shuffled), key)]


def test_keys_spread_evenly() -> None:
    names = [f"vllm://gpu-{number}:8000" for number in range(4)]
    chosen = Counter(choose(idle_candidates(names), number.to_bytes(16, "big")) for number in range(4000))
    deviation = math.sqrt(4000 * 0.25 * 0.75)
    assert all(abs(count - 1000) < 5 * deviation for count in chosen.values())


def test_an_engine_with_more_slots_gets_more_requests() -> None:
    loads, slots = [0, 0], [10, 30]
    for number in range(40):
        key = number.to_bytes(16, "big")
        chosen = choose([LoadCandidate(*one) for one in zip("ab", loads, slots, strict=True)], key)
        loads[chosen] += 1
    assert loads[0] <= SKEW * 40 / 4 + 1
    assert loads[1] <= SKEW * 40 * 3 / 4 + 1


def test_requests_without_a_cache_go_to_the_least_loaded_engine() -> None:
    assert choose_least_loaded([LoadCandidate("a", 3, 10), LoadCandidate("b", 10, 100), LoadCandidate("c", 4, 10)]) == 1
    assert choose_least_loaded([LoadCandidate("b", 0), LoadCandidate("a", 0)]) == 1, "every server breaks ties alike"


def compute_key(prompt: Prompt, **fields: str) -> bytes:
    return affinity_key(GenerationRequest(model=fields.pop("model", "m"), prompt=prompt, sampling=Sampling(), **fields))  # type: ignore[arg-type]  # the fields have different types


def chat_prompt(*texts: str) -> ChatPrompt:
    roles = ("system", "user", "assistant", "user", "assistant")
    return ChatPrompt(tuple({"role": role, "content": text} for role, text in zip(roles, texts, strict=False)))


def test_a_conversation_keeps_its_key_as_it_grows() -> None:
    assert compute_key(chat_prompt("Be kind.", "hi")) == compute_key(chat_prompt("Be kind.", "hi", "hello", "and now?"))
    assert compute_key(chat_prompt("Be kind.", "hi")) != compute_key(chat_prompt("Be kind.", "ho"))
    assert compute_key(chat_prompt("Be kind.", "hi")) != compute_key(chat_prompt("Be rude.", "hi"))
    begun = (Segment("<user>", True), Segment("hi", False))
    grown = (*begun, Segment("<assistant>", True), Segment("hello", False))
    assert compute_key(TextPrompt(begun)) == compute_key(TextPrompt(grown))
    assert compute_key(TokenPrompt(tuple(range(100)))) == compute_key(TokenPrompt(tuple(range(200))))


def test_the_affinity_of_the_client_overrides_the_prompt() -> None:
    assert compute_key(chat_prompt("a", "b"), affinity="mine") == compute_key(chat_prompt("c", "d"), affinity="mine")
    assert compute_key(chat_prompt("a", "b"), affinity="mine") != compute_key(chat_prompt("a", "b"), affinity="yours")


def test_models_and_tenants_have_separate_keys() -> None:
    keys = {
        compute_key(chat_prompt("a", "b")),
        compute_key(chat_prompt("a", "b"), model="n"),
        compute_key(chat_prompt("a", "b"), salt="t"),
    }
    assert len(keys) == 3


def test_only_the_beginning_of_a_large_image_is_hashed() -> None:
    def image_prompt(url: str) -> ChatPrompt:
        content = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": url}}]
        return ChatPrompt(({"role": "user", "content": content},))

    assert compute_key(image_prompt("data:image/png;base64," + "A" * 10**7)) != compute_key(
        image_prompt("data:image/png;base64,B")
    )
    assert compute_key(image_prompt("x" * 10_000 + "a")) == compute_key(image_prompt("x" * 10_000 + "b"))


def test_text_with_lone_surrogates_has_a_key() -> None:
    assert compute_key(chat_prompt("\ud800", "\x00")) != compute_key(chat_prompt("\ud801", "\x00"))
