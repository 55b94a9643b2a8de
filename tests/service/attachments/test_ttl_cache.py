"""Texts are cached for a limited time, and evicted when the cache is full."""

from antiphon.service.attachments.ttl_cache import TtlCache


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_entries_are_separate_per_tenant_and_kind() -> None:
    cache = TtlCache()
    cache.put(("a", "picture", "u"), "seen")
    assert cache.get(("a", "picture", "u")) == "seen"
    assert cache.get(("b", "picture", "u")) is None
    assert cache.get(("a", "file", "u")) is None


def test_an_entry_expires_after_its_ttl() -> None:
    clock = Clock()
    cache = TtlCache(ttl=10.0, clock=clock)
    cache.put(("a", "picture", "u"), "seen")
    clock.now = 9.0
    assert cache.get(("a", "picture", "u")) == "seen"
    clock.now = 11.0  # a read does not extend the lifetime
    assert cache.get(("a", "picture", "u")) is None
    assert cache.bytes == 0


def test_the_least_recently_used_entry_is_evicted() -> None:
    cache = TtlCache(max_bytes=100)
    for name in "abcd":
        cache.put(("t", "file", name), name * 25)
    assert cache.get(("t", "file", "a"))
    cache.put(("t", "file", "e"), "e" * 25)
    assert [name for name in "abcde" if cache.get(("t", "file", name))] == ["a", "c", "d", "e"]
    assert cache.bytes == 100
    cache.put(("t", "file", "f"), "f" * 26)  # more than a quarter of the cache
    assert cache.get(("t", "file", "f")) is None
    cache.put(("t", "file", "e"), "new")
    assert cache.get(("t", "file", "e")) == "new"
    assert cache.bytes == 78
