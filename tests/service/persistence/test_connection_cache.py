import pytest

from antiphon.protocol.types.items import Message, OutputText
from antiphon.protocol.types.response import Response, ResponseStatus
from antiphon.service.persistence.connection_cache import Recent


def said(text: str) -> Message:
    return Message(role="assistant", content=[OutputText(text=text)])


def ended(name: str, previous: str | None = None, status: ResponseStatus = "completed") -> Response:
    output = [said(name)]
    return Response(
        id=name, created_at=0, model="m", store=False, status=status, output=[*output], previous_response_id=previous
    )


def texts(recent: Recent, name: str) -> list[str] | None:
    items = recent.items(name)
    return None if items is None else [item.content[0].text for item in items]  # type: ignore[union-attr,index]  # as said


@pytest.mark.shows("F.4")
def test_a_response_is_remembered_with_all_that_came_before_it() -> None:
    recent = Recent()
    recent.remember(None, ended("one"), [said("asked")], 10)
    first = recent.items("one")
    assert first is not None
    recent.remember(None, ended("two", "one"), [*first, said("asked again")], 10)
    assert texts(recent, "two") == ["asked", "one", "asked again", "two"]
    assert texts(recent, "one") == ["asked", "one"]
    assert recent.items("three") is None


@pytest.mark.parametrize("status", ["failed", "cancelled", "in_progress"])
def test_what_did_not_come_to_an_end_cannot_be_continued(status: ResponseStatus) -> None:
    recent = Recent()
    recent.remember(None, ended("one", status=status), [], 10)
    assert recent.items("one") is None


@pytest.mark.shows("F3.2")
def test_the_last_one_of_each_lane_stays_and_some_others() -> None:
    recent = Recent(others=2)
    recent.remember("a", ended("a"), [], 1)
    for number in range(5):
        recent.remember("b", ended(f"b{number}"), [], 1)
    assert [name for name in ("a", "b0", "b1", "b2", "b3", "b4") if name in recent] == ["a", "b2", "b3", "b4"]


@pytest.mark.shows("F3.2")
def test_bytes_are_bounded_and_a_history_counts_for_each_that_has_it() -> None:
    recent = Recent(most_bytes=3_600)
    recent.remember(None, ended("one"), [], 1_000)
    recent.remember(None, ended("two", "one"), [], 200)
    assert "one" in recent
    recent.remember(None, ended("three", "two"), [], 200)  # some 1,100 + 1,450 + 1,800 bytes
    assert "one" not in recent
    assert "three" in recent
    recent.remember("other", ended("huge"), [], 5_000)
    assert [name for name in ("two", "three", "huge") if name in recent] == ["two", "three"]


@pytest.mark.shows("F.5")
def test_a_failed_continuation_forgets_its_parent_on_its_own_lane_alone() -> None:
    recent = Recent()
    recent.remember("a", ended("one"), [], 1)
    recent.failed("b", "one")
    recent.failed(None, "one")
    recent.failed("a", None)
    recent.failed("a", "never heard of")
    assert "one" in recent
    recent.failed("a", "one")
    assert "one" not in recent


def test_what_was_forgotten_leaves_room_and_no_trace() -> None:
    recent = Recent(most_bytes=1_500, others=0)
    recent.remember(None, ended("one"), [], 1_000)
    recent.failed(None, "one")
    recent.remember(None, ended("two"), [], 1_000)
    recent.remember(None, ended("three"), [], 100)
    assert [name for name in ("one", "two", "three") if name in recent] == ["three"]
