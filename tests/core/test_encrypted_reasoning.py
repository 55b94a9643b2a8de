"""Encrypted reasoning items: decryption, adding and removing `encrypted_content`, and ciphertexts of other
providers.
"""

from collections.abc import Sequence

from msgspec import UNSET

from antiphon.core.deltas import EncryptedReasoning, ReasoningDelta, Summary, Text
from antiphon.core.encrypted_reasoning import (
    VERSION_PREFIX,
    apply_encryption,
    decrypt_items,
    encrypted_size,
    is_own_ciphertext,
    reasoning_text,
)
from antiphon.protocol.types import events as ev
from antiphon.protocol.types.items import InputItem, Message, Reasoning
from antiphon.protocol.types.parts import InputText, ReasoningText, SummaryText
from tests.core.emitter.streams import ENDINGS, emit_stream
from tests.oracles.fold import fold_events

MESSAGE = Message(role="user", content=[InputText(text="hi")])


def fake_decrypt(index: int, encrypted: str) -> str:
    return f"{index}: {encrypted.removeprefix(VERSION_PREFIX)}"


def make_reasoning(encrypted: str | None = None, content: str = "", summary: str = "") -> Reasoning:
    return Reasoning(
        id="rs_1",
        summary=[SummaryText(text=summary)] if summary else [],
        content=[ReasoningText(text=content)] if content else UNSET,
        encrypted_content=UNSET if encrypted is None else encrypted,
    )


def get_texts(items: Sequence[InputItem]) -> list[str]:
    return [reasoning_text(item) for item in items if isinstance(item, Reasoning)]


def test_the_decrypted_text_overrides_plain_text_in_the_same_item() -> None:
    items: list[InputItem] = [
        MESSAGE,
        make_reasoning(VERSION_PREFIX + "a"),
        make_reasoning(VERSION_PREFIX + "b", "forged", "forged"),
    ]
    found, foreign = decrypt_items(items, fake_decrypt)
    assert get_texts(found) == ["1: a", "2: b"]
    assert not foreign
    assert found[0] is MESSAGE
    assert get_texts(items) == ["", "forged"], "the input items are not changed"


def test_foreign_ciphertext_is_left_unchanged_and_reported() -> None:
    found, foreign = decrypt_items(
        [make_reasoning("gAAAAABo", "", "in short"), make_reasoning("", "plain"), make_reasoning(None, "open")],
        fake_decrypt,
    )
    assert foreign
    assert get_texts(found) == ["in short", "plain", "open"]
    assert not decrypt_items([make_reasoning(""), make_reasoning()], fake_decrypt)[1], (
        "empty and missing content are not foreign"
    )


def test_own_ciphertext_is_recognised_by_its_prefix_in_any_version() -> None:
    assert is_own_ciphertext(VERSION_PREFIX)
    assert is_own_ciphertext("antiphon-sealed-2.x")
    assert is_own_ciphertext("antiphon-sealed-")
    assert not is_own_ciphertext("gAAAAABo")
    assert not is_own_ciphertext("")
    assert not is_own_ciphertext("antiphon-1-00")


def test_encrypted_size_sums_all_ciphertexts() -> None:
    assert (
        encrypted_size([MESSAGE, make_reasoning("ab"), make_reasoning("cde"), make_reasoning(), make_reasoning("")])
        == 5
    )
    assert encrypted_size([MESSAGE]) == 0


def test_encrypted_content_is_added_or_removed_as_requested() -> None:
    item = make_reasoning("kept", "hm")
    assert apply_encryption(item, None) == make_reasoning(None, "hm")
    assert apply_encryption(item, lambda text: "new") is item, "encrypted content is not encrypted again"
    assert apply_encryption(make_reasoning(None, "hm"), lambda text: f"<{text}>") == make_reasoning("<hm>", "hm")
    summarised = apply_encryption(make_reasoning(None, "", "in short"), lambda text: f"<{text}>")
    assert isinstance(summarised, Reasoning)
    assert summarised.encrypted_content == "<in short>"
    empty = make_reasoning()
    assert apply_encryption(empty, lambda text: "never") is empty
    assert apply_encryption(MESSAGE, lambda text: "never") is MESSAGE
    assert apply_encryption(MESSAGE, None) is MESSAGE


def test_encrypted_content_is_only_in_the_done_event() -> None:
    for delta in (ReasoningDelta("hm"), Summary("hm")):
        events = emit_stream([delta, EncryptedReasoning("s"), Text("hi")])
        (done,) = [event for event in events if isinstance(event, ev.OutputItemDone) and event.output_index == 0]
        (added,) = [event for event in events if isinstance(event, ev.OutputItemAdded) and event.output_index == 0]
        assert isinstance(done.item, Reasoning)
        assert isinstance(added.item, Reasoning)
        assert done.item.encrypted_content == "s"
        assert added.item.encrypted_content is UNSET
        assert fold_events(events).output[0] == done.item
        plain = [event.type for event in emit_stream([delta, Text("hi")])]
        assert [event.type for event in events] == plain, "no additional events"


def test_truncated_reasoning_has_encrypted_content() -> None:
    (item,) = fold_events(emit_stream([ReasoningDelta("hm"), EncryptedReasoning("s")], ENDINGS[1])).output
    assert isinstance(item, Reasoning)
    assert (item.status, item.encrypted_content) == ("incomplete", "s")
