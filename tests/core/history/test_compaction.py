"""Restoring compactions: the memory replaces all earlier items once, except for instructions and tools, which stay."""

from typing import Any

import msgspec
import pytest

from antiphon.core.history.compaction import (
    CompactionMemory,
    DecryptedCompaction,
    expand_memory,
    is_summary,
    pack,
    restore_compaction,
    unpack,
)
from antiphon.core.history.history import make_history
from antiphon.errors import InvalidValue
from antiphon.protocol.types.items import Compaction, InputItem, Message

_decoder = msgspec.json.Decoder(list[InputItem])


def decode_items(*bodies: dict[str, Any]) -> list[InputItem]:
    return _decoder.decode(msgspec.json.encode([*bodies]))


def make_message(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def make_compaction(
    users: list[str], summary: str = "All went well.", tail: list[InputItem] | None = None
) -> DecryptedCompaction:
    return DecryptedCompaction(
        encrypted_content="x", memory=CompactionMemory(users=users, summary=summary, tail=tail or [])
    )


def get_texts(found: tuple[InputItem, ...] | list[InputItem]) -> list[str]:
    return [item.content[0].text for item in found if isinstance(item, Message)]  # type: ignore[union-attr]


CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "done"}


def test_packing_a_memory_is_lossless_and_compresses_it() -> None:
    memory = CompactionMemory(
        users=["Grüße 😀", "b" * 5000], cut=True, summary="s" * 3000, tail=decode_items(CALL, OUTPUT)
    )
    packed = pack(memory)
    assert unpack(packed) == memory
    assert len(packed) < 500


def test_items_before_a_compaction_are_replaced_by_its_memory() -> None:
    before = decode_items(make_message("user", "old"), make_message("assistant", "answer"))
    after = decode_items(make_message("user", "new"))
    found, positions = restore_compaction((*before, make_compaction(["old"]), *after), range(4))
    assert get_texts(found) == ["old", "[Summary of the conversation so far]\nAll went well.", "new"]
    assert [*positions] == [2, 2, 3], "an error in a restored item names the compaction"
    assert [item.role for item in found if isinstance(item, Message)] == ["user", "assistant", "user"]


def test_instructions_and_tools_before_a_compaction_are_preserved() -> None:
    tools = {"type": "additional_tools", "tools": []}
    listed = {"type": "mcp_list_tools", "server_label": "l", "tools": []}
    before = decode_items(
        make_message("system", "S"), make_message("user", "old"), make_message("developer", "D"), tools, listed
    )
    found, positions = restore_compaction((*before, make_compaction([], "short")), range(-6, 0))
    kinds = [item.__struct_config__.tag for item in found]
    assert kinds == ["message", "message", "additional_tools", "mcp_list_tools", "message"]
    assert get_texts(found) == ["S", "D", "[Summary of the conversation so far]\nshort"]
    assert [*positions] == [-6, -4, -3, -2, -1]


def test_user_messages_are_joined_because_templates_require_alternating_roles() -> None:
    first, second = expand_memory(CompactionMemory(users=["a", "b"], summary="s"))
    assert (get_texts([first]), get_texts([second])) == (["a\n\nb"], ["[Summary of the conversation so far]\ns"])
    assert [item.role for item in (first, second) if isinstance(item, Message)] == ["user", "assistant"]


def test_only_the_last_compaction_counts() -> None:
    found, _ = restore_compaction(
        (make_compaction(["a"]), *decode_items(make_message("user", "b")), make_compaction(["a", "b"], "both")),
        range(3),
    )
    assert get_texts(found) == ["a\n\nb", "[Summary of the conversation so far]\nboth"]


def test_unanswered_items_follow_the_summary_unchanged() -> None:
    tail = decode_items(CALL, OUTPUT)
    history = make_history([make_compaction(["a"], tail=tail)], decode_items(make_message("user", "go on")))
    assert [*history.items[2:4]] == tail


def test_a_call_inside_a_compaction_can_be_answered() -> None:
    compaction = make_compaction(["a"], tail=decode_items(CALL))
    assert len(make_history([compaction], decode_items(OUTPUT)).items) == 4
    with pytest.raises(InvalidValue) as caught:
        make_history([*decode_items(CALL), make_compaction(["a"])], decode_items(OUTPUT))
    assert caught.value.param == "input[0].call_id"


def test_a_compaction_trigger_is_dropped() -> None:
    trigger = {"type": "compaction_trigger"}
    found, positions = restore_compaction(tuple(decode_items(make_message("user", "a"), trigger)), range(2))
    assert (get_texts(found), [*positions]) == (["a"], [0])


def test_a_history_without_compactions_is_unchanged() -> None:
    history = tuple(decode_items(make_message("user", "a"), CALL))
    assert restore_compaction(history, range(2))[0] is history


def test_an_undecrypted_compaction_is_left_for_later_rejection() -> None:
    history = (Compaction(encrypted_content="x"),)
    assert restore_compaction(history, range(1))[0] == history


def test_the_summary_states_that_messages_were_truncated() -> None:
    (*_, summary) = expand_memory(CompactionMemory(users=["a"], cut=True, summary="s"))
    assert "first 200 characters" in get_texts([summary])[0]
    assert is_summary(summary)
    assert not is_summary(decode_items(make_message("user", "[Summary of the conversation so far]"))[0])


def test_an_empty_summary_adds_no_message() -> None:
    assert get_texts(expand_memory(CompactionMemory(users=["a"], summary=""))) == ["a"]
