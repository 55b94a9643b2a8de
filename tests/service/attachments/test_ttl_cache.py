"""What was fetched lately is known for a while, and never to somebody else."""

from antiphon.service.attachments.ttl_cache import Lately


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_is_kept_is_the_tenants_alone() -> None:
    lately = Lately()
    lately.put(("a", "picture", "u"), "seen")
    assert lately.get(("a", "picture", "u")) == "seen"
    assert lately.get(("b", "picture", "u")) is None
    assert lately.get(("a", "file", "u")) is None


def test_it_is_forgotten_after_a_while() -> None:
    clock = Clock()
    lately = Lately(life=10.0, clock=clock)
    lately.put(("a", "picture", "u"), "seen")
    clock.now = 9.0
    assert lately.get(("a", "picture", "u")) == "seen"
    clock.now = 11.0  # using it does not make it younger
    assert lately.get(("a", "picture", "u")) is None
    assert lately.bytes == 0


def test_what_was_used_longest_ago_makes_room() -> None:
    lately = Lately(most=100)
    for name in "abcd":
        lately.put(("t", "file", name), name * 25)
    assert lately.get(("t", "file", "a"))
    lately.put(("t", "file", "e"), "e" * 25)
    assert [name for name in "abcde" if lately.get(("t", "file", name))] == ["a", "c", "d", "e"]
    assert lately.bytes == 100
    lately.put(("t", "file", "f"), "f" * 26)  # more than its share
    assert lately.get(("t", "file", "f")) is None
    lately.put(("t", "file", "e"), "new")
    assert lately.get(("t", "file", "e")) == "new"
    assert lately.bytes == 78
