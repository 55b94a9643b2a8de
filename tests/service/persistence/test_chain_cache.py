from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from antiphon.protocol.types.items import InputItem, InputText, Message
from antiphon.service.persistence.chain_cache import Chains, Node

TENANT = "t"


def said(text: str) -> InputItem:
    return Message(role="user", content=[InputText(text=text)])


def grow(chains: Chains, name: str, parent: Node | None = None, size: int = 100, tenant: str = TENANT) -> Node:
    node = chains.add(Node(tenant, name, (said(name),), size, parent))
    chains.trim()
    return node


def words(items: Sequence[InputItem]) -> str:
    return "".join(
        part.text for item in items if isinstance(item, Message) for part in item.content if hasattr(part, "text")
    )


def test_branches_share_what_is_before_them() -> None:
    chains = Chains(10_000)
    a = grow(chains, "a")
    b = grow(chains, "b", a)
    c, d = grow(chains, "c", b), grow(chains, "d", b)
    assert [words(chains.whole(node)) for node in (c, d, b, c, a, d)] == ["abc", "abd", "ab", "abc", "a", "abd"]


def test_what_was_used_longest_ago_is_forgotten_from_its_end() -> None:
    chains = Chains(500)
    old = grow(chains, "b", grow(chains, "a"))
    new = grow(chains, "d", grow(chains, "c"))
    assert chains.find(TENANT, "b") is old  # so the other one has not been used for longer
    grow(chains, "e")
    grow(chains, "f")
    assert chains.find(TENANT, "d") is None
    assert chains.find(TENANT, "c") is new.parent
    assert chains.ids(TENANT) == {"a", "b", "c", "e", "f"}


def test_one_that_is_too_large_is_not_kept() -> None:
    chains = Chains(500)
    node = grow(chains, "a", size=501)
    assert chains.find(TENANT, "a") is None
    assert words(chains.whole(node)) == "a"
    assert chains.bytes == 0


def test_tenants_do_not_see_each_other() -> None:
    chains = Chains(10_000)
    grow(chains, "a")
    assert chains.find("other", "a") is None
    assert chains.ids("other") == frozenset()


def test_what_others_continue_is_not_forgotten_with_a_word() -> None:
    chains = Chains(10_000)
    grow(chains, "b", grow(chains, "a"))
    chains.forget(TENANT, "a")
    assert chains.ids(TENANT) == {"a", "b"}
    chains.forget(TENANT, "b")
    chains.forget(TENANT, "b")
    chains.forget(TENANT, "a")
    assert (chains.ids(TENANT), chains.bytes) == (frozenset(), 0)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 300), st.booleans()), max_size=60))
def test_however_it_grows_it_keeps_its_bound_and_tells_whole_histories(steps: list[tuple[int, int, bool]]) -> None:
    chains = Chains(1_000)
    wholes: dict[str, str] = {}
    for number, (place, size, reads) in enumerate(steps):
        known = sorted(chains.ids(TENANT))
        parent = chains.find(TENANT, known[place]) if place < len(known) else None
        name = f"<{number}>"
        node = chains.add(Node(TENANT, name, (said(name),), size, parent))
        wholes[name] = wholes["" if parent is None else parent.id] + name if parent else name
        if reads:
            assert words(chains.whole(node)) == wholes[name]
        chains.trim()
        assert chains.bytes <= 1_000
    for name in chains.ids(TENANT):
        found = chains.find(TENANT, name)
        assert found is not None
        assert words(chains.whole(found)) == wholes[name]
        assert found.parent is None or chains.find(TENANT, found.parent.id) is found.parent
    for name in sorted(chains.ids(TENANT), key=lambda name: int(name[1:-1]), reverse=True):
        chains.forget(TENANT, name)
    assert chains.bytes == 0
