"""`ConnectionCache`, which retains unstored responses of one connection, bounded in number and bytes."""

import pytest

from antiphon.protocol.types.items import Message, OutputText
from antiphon.protocol.types.response import Response, ResponseStatus
from antiphon.service.persistence.connection_cache import ConnectionCache


def make_message(text: str) -> Message:
    return Message(role="assistant", content=[OutputText(text=text)])


def make_response(name: str, previous: str | None = None, status: ResponseStatus = "completed") -> Response:
    output = [make_message(name)]
    return Response(
        id=name, created_at=0, model="m", store=False, status=status, output=[*output], previous_response_id=previous
    )


def find_texts(cache: ConnectionCache, name: str) -> list[str] | None:
    items = cache.find_items(name)
    return None if items is None else [item.content[0].text for item in items]  # type: ignore[union-attr,index]  # built by make_message


@pytest.mark.shows("F.4")
def test_a_response_is_cached_with_its_history() -> None:
    cache = ConnectionCache()
    cache.remember(None, make_response("one"), [make_message("asked")], 10)
    first = cache.find_items("one")
    assert first is not None
    cache.remember(None, make_response("two", "one"), [*first, make_message("asked again")], 10)
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
