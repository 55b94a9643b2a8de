"""`ChainCache`: shared histories, eviction and the bound on its bytes, also for random chains."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.protocol.types.items import InputItem, Message
from antiphon.protocol.types.parts import InputText, OutputText
from antiphon.protocol.types.response import Response, ResponseStatus
from antiphon.service.persistence.history_cache import ChainCache, ChainNode, ConnectionCache

TENANT = "t"


def make_message(text: str) -> InputItem:
    return Message(role="user", content=[InputText(text=text)])


def add_node(
    chains: ChainCache, name: str, parent: ChainNode | None = None, size: int = 100, tenant: str = TENANT
) -> ChainNode:
    node = chains.add(ChainNode(tenant, name, (make_message(name),), size, parent))
    chains.trim()
    return node


def join_texts(items: Sequence[InputItem]) -> str:
    return "".join(
        part.text for item in items if isinstance(item, Message) for part in item.content if hasattr(part, "text")
    )


def test_branches_share_their_common_history() -> None:
    chains = ChainCache(10_000)
    a = add_node(chains, "a")
    b = add_node(chains, "b", a)
    c, d = add_node(chains, "c", b), add_node(chains, "d", b)
    assert [join_texts(chains.build_history(node)) for node in (c, d, b, c, a, d)] == [
        "abc",
        "abd",
        "ab",
        "abc",
        "a",
        "abd",
    ]


def test_the_least_recently_used_chain_is_evicted_from_its_end() -> None:
    chains = ChainCache(500)
    old = add_node(chains, "b", add_node(chains, "a"))
    new = add_node(chains, "d", add_node(chains, "c"))
    assert chains.find(TENANT, "b") is old  # marks it as used, so the other chain is now the oldest
    add_node(chains, "e")
    add_node(chains, "f")
    assert chains.find(TENANT, "d") is None
    assert chains.find(TENANT, "c") is new.parent
    assert chains.ids(TENANT) == {"a", "b", "c", "e", "f"}


def test_an_oversized_node_is_not_cached() -> None:
    chains = ChainCache(500)
    node = add_node(chains, "a", size=501)
    assert chains.find(TENANT, "a") is None
    assert join_texts(chains.build_history(node)) == "a"
    assert chains.bytes == 0


def test_tenants_do_not_see_each_other() -> None:
    chains = ChainCache(10_000)
    add_node(chains, "a")
    assert chains.find("other", "a") is None
    assert chains.ids("other") == frozenset()


def test_a_node_with_children_is_not_forgotten() -> None:
    chains = ChainCache(10_000)
    add_node(chains, "b", add_node(chains, "a"))
    chains.forget(TENANT, "a")
    assert chains.ids(TENANT) == {"a", "b"}
    chains.forget(TENANT, "b")
    chains.forget(TENANT, "b")
    chains.forget(TENANT, "a")
    assert (chains.ids(TENANT), chains.bytes) == (frozenset(), 0)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 300), st.booleans()), max_size=60))
def test_any_growth_respects_the_bound_and_yields_complete_histories(steps: list[tuple[int, int, bool]]) -> None:
    chains = ChainCache(1_000)
    histories: dict[str, str] = {}
    for number, (index, size, reads) in enumerate(steps):
        cached_ids = sorted(chains.ids(TENANT))
        parent = chains.find(TENANT, cached_ids[index]) if index < len(cached_ids) else None
        name = f"<{number}>"
        node = chains.add(ChainNode(TENANT, name, (make_message(name),), size, parent))
        histories[name] = histories["" if parent is None else parent.id] + name if parent else name
        if reads:
            assert join_texts(chains.build_history(node)) == histories[name]
        chains.trim()
        assert chains.bytes <= 1_000
    for name in chains.ids(TENANT):
        found = chains.find(TENANT, name)
        assert found is not None
        assert join_texts(chains.build_history(found)) == histories[name]
        assert found.parent is None or chains.find(TENANT, found.parent.id) is found.parent
    for name in sorted(chains.ids(TENANT), key=lambda name: int(name[1:-1]), reverse=True):
        chains.forget(TENANT, name)
    assert chains.bytes == 0


def make_answer(text: str) -> Message:
    return Message(role="assistant", content=[OutputText(text=text)])


def make_response(name: str, previous: str | None = None, status: ResponseStatus = "completed") -> Response:
    output = [make_answer(name)]
    return Response(
        id=name, created_at=0, model="m", store=False, status=status, output=[*output], previous_response_id=previous
    )


def find_texts(cache: ConnectionCache, name: str) -> list[str] | None:
    items = cache.find_items(name)
    return None if items is None else [item.content[0].text for item in items]  # type: ignore[union-attr,index]  # built by make_answer


@pytest.mark.shows("F.4")
def test_a_response_is_cached_with_its_history() -> None:
    cache = ConnectionCache()
    cache.remember(None, make_response("one"), [make_answer("asked")], 10)
    first = cache.find_items("one")
    assert first is not None
    cache.remember(None, make_response("two", "one"), [*first, make_answer("asked again")], 10)
    assert find_texts(cache, "two") == ["asked", "one", "asked again", "two"]
    assert find_texts(cache, "one") == ["asked", "one"]
    assert cache.find_items("three") is None


@pytest.mark.parametrize("status", ["failed", "cancelled", "in_progress"])
def test_failed_cancelled_and_running_responses_cannot_be_continued(status: ResponseStatus) -> None:
    cache = ConnectionCache()
    cache.remember(None, make_response("one", status=status), [], 10)
    assert cache.find_items("one") is None


@pytest.mark.shows("F3.2")
def test_the_last_response_of_each_lane_and_some_others_are_retained() -> None:
    cache = ConnectionCache(max_others=2)
    cache.remember("a", make_response("a"), [], 1)
    for number in range(5):
        cache.remember("b", make_response(f"b{number}"), [], 1)
    assert [name for name in ("a", "b0", "b1", "b2", "b3", "b4") if name in cache] == ["a", "b2", "b3", "b4"]


@pytest.mark.shows("F3.2")
def test_bytes_are_bounded_and_a_history_counts_for_each_response() -> None:
    cache = ConnectionCache(max_bytes=3_600)
    cache.remember(None, make_response("one"), [], 1_000)
    cache.remember(None, make_response("two", "one"), [], 200)
    assert "one" in cache
    cache.remember(None, make_response("three", "two"), [], 200)  # about 1,100 + 1,450 + 1,800 bytes
    assert "one" not in cache
    assert "three" in cache
    cache.remember("other", make_response("huge"), [], 5_000)
    assert [name for name in ("two", "three", "huge") if name in cache] == ["two", "three"]


@pytest.mark.shows("F.5")
def test_a_failed_continuation_drops_its_parent_only_on_its_own_lane() -> None:
    cache = ConnectionCache()
    cache.remember("a", make_response("one"), [], 1)
    cache.drop_failed_parent("b", "one")
    cache.drop_failed_parent(None, "one")
    cache.drop_failed_parent("a", None)
    cache.drop_failed_parent("a", "unknown")
    assert "one" in cache
    cache.drop_failed_parent("a", "one")
    assert "one" not in cache


def test_a_dropped_response_frees_its_bytes() -> None:
    cache = ConnectionCache(max_bytes=1_500, max_others=0)
    cache.remember(None, make_response("one"), [], 1_000)
    cache.drop_failed_parent(None, "one")
    cache.remember(None, make_response("two"), [], 1_000)
    cache.remember(None, make_response("three"), [], 100)
    assert [name for name in ("one", "two", "three") if name in cache] == ["three"]
