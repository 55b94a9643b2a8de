"""Sealed reasoning among other items: what is opened, what is shown, and what is left as it is."""

from collections.abc import Sequence

from msgspec import UNSET

from antiphon.core.deltas import Sealed, Summary, Text, Thought
from antiphon.core.emitter.fold import fold
from antiphon.core.encrypted_reasoning import FORM, is_ours, opened, sealed_size, shown, thought_of
from antiphon.protocol.types import events as ev
from antiphon.protocol.types.items import InputItem, InputText, Message, Reasoning, ReasoningText, SummaryText
from tests.core.emitter.streams import ENDINGS, emitted

SAID = Message(role="user", content=[InputText(text="hi")])


def open_(index: int, sealed: str) -> str:
    return f"{index}: {sealed.removeprefix(FORM)}"


def reasons(sealed: str | None = None, content: str = "", summary: str = "") -> Reasoning:
    return Reasoning(
        id="rs_1",
        summary=[SummaryText(text=summary)] if summary else [],
        content=[ReasoningText(text=content)] if content else UNSET,
        encrypted_content=UNSET if sealed is None else sealed,
    )


def texts(items: Sequence[InputItem]) -> list[str]:
    return [thought_of(item) for item in items if isinstance(item, Reasoning)]


def test_what_was_sealed_counts_and_not_what_a_client_says_beside_it() -> None:
    given: list[InputItem] = [SAID, reasons(FORM + "a"), reasons(FORM + "b", "forged", "forged")]
    found, foreign = opened(given, open_)
    assert texts(found) == ["1: a", "2: b"]
    assert not foreign
    assert found[0] is SAID
    assert texts(given) == ["", "forged"], "what was sent is not changed"


def test_what_was_sealed_elsewhere_is_left_as_it_is_and_reported() -> None:
    found, foreign = opened([reasons("gAAAAABo", "", "in short"), reasons("", "plain"), reasons(None, "open")], open_)
    assert foreign
    assert texts(found) == ["in short", "plain", "open"]
    assert not opened([reasons(""), reasons()], open_)[1], "nothing is not foreign"


def test_whatever_claims_to_be_ours_is_held_to_it_in_any_version() -> None:
    assert is_ours(FORM)
    assert is_ours("antiphon-sealed-2.x")
    assert is_ours("antiphon-sealed-")
    assert not is_ours("gAAAAABo")
    assert not is_ours("")
    assert not is_ours("antiphon-1-00")


def test_the_size_is_that_of_all_that_is_sealed() -> None:
    assert sealed_size([SAID, reasons("ab"), reasons("cde"), reasons(), reasons("")]) == 5
    assert sealed_size([SAID]) == 0


def test_sealed_reasoning_is_shown_to_those_who_ask_for_it() -> None:
    item = reasons("kept", "hm")
    assert shown(item, None) == reasons(None, "hm")
    assert shown(item, lambda thought: "new") is item, "what is sealed is not sealed again"
    assert shown(reasons(None, "hm"), lambda thought: f"<{thought}>") == reasons("<hm>", "hm")
    assert shown(reasons(None, "", "in short"), lambda thought: f"<{thought}>").encrypted_content == "<in short>"  # type: ignore[union-attr]
    empty = reasons()
    assert shown(empty, lambda thought: "never") is empty
    assert shown(SAID, lambda thought: "never") is SAID
    assert shown(SAID, None) is SAID


def test_an_item_says_what_was_sealed_when_it_is_done_and_in_no_other_event() -> None:
    for thought in (Thought("hm"), Summary("hm")):
        events = emitted([thought, Sealed("s"), Text("hi")])
        (done,) = [event for event in events if isinstance(event, ev.OutputItemDone) and event.output_index == 0]
        (added,) = [event for event in events if isinstance(event, ev.OutputItemAdded) and event.output_index == 0]
        assert isinstance(done.item, Reasoning)
        assert isinstance(added.item, Reasoning)
        assert done.item.encrypted_content == "s"
        assert added.item.encrypted_content is UNSET
        assert fold(events).output[0] == done.item
        plain = [event.type for event in emitted([thought, Text("hi")])]
        assert [event.type for event in events] == plain, "no event more"


def test_a_thought_that_was_cut_has_what_there_is_of_it_sealed() -> None:
    (item,) = fold(emitted([Thought("hm"), Sealed("s")], ENDINGS[1])).output
    assert isinstance(item, Reasoning)
    assert (item.status, item.encrypted_content) == ("incomplete", "s")
