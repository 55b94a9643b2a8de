"""`ChainCache`: shared histories, eviction and the bound on its bytes, also for random chains."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from antiphon.protocol.types.items import InputItem, InputText, Message
from antiphon.service.persistence.chain_cache import ChainCache, ChainNode

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
