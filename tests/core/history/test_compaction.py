"""What a compaction stands for is told in its place, once, and nothing that governs is lost."""

from typing import Any

import msgspec
import pytest

from antiphon.core.history.compaction import Memory, OpenCompaction, is_summary, pack, restored, told, unpack
from antiphon.core.history.history import make_history
from antiphon.errors import InvalidValue
from antiphon.protocol.types.items import Compaction, InputItem, Message

_items = msgspec.json.Decoder(list[InputItem])


def items(*given: dict[str, Any]) -> list[InputItem]:
    return _items.decode(msgspec.json.encode([*given]))


def said(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def opened(users: list[str], summary: str = "All went well.", tail: list[InputItem] | None = None) -> OpenCompaction:
    return OpenCompaction(encrypted_content="x", memory=Memory(users=users, summary=summary, tail=tail or []))


def words(found: tuple[InputItem, ...] | list[InputItem]) -> list[str]:
    return [item.content[0].text for item in found if isinstance(item, Message)]  # type: ignore[union-attr]


CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "done"}


def test_a_memory_comes_out_as_it_went_in_and_smaller() -> None:
    memory = Memory(users=["Grüße 😀", "b" * 5000], cut=True, summary="s" * 3000, tail=items(CALL, OUTPUT))
    packed = pack(memory)
    assert unpack(packed) == memory
    assert len(packed) < 500


def test_what_was_before_a_compaction_is_told_by_its_memory_and_not_again() -> None:
    before = items(said("user", "old"), said("assistant", "answer"))
    after = items(said("user", "new"))
    found, places = restored((*before, opened(["old"]), *after), range(4))
    assert words(found) == ["old", "[Summary of the conversation so far]\nAll went well.", "new"]
    assert [*places] == [2, 2, 3], "an error in what is restored names the compaction"
    assert [item.role for item in found if isinstance(item, Message)] == ["user", "assistant", "user"]


def test_instructions_and_tools_before_a_compaction_are_still_told() -> None:
    tools = {"type": "additional_tools", "tools": []}
    listed = {"type": "mcp_list_tools", "server_label": "l", "tools": []}
    before = items(said("system", "S"), said("user", "old"), said("developer", "D"), tools, listed)
    found, places = restored((*before, opened([], "short")), range(-6, 0))
    kinds = [item.__struct_config__.tag for item in found]
    assert kinds == ["message", "message", "additional_tools", "mcp_list_tools", "message"]
    assert words(found) == ["S", "D", "[Summary of the conversation so far]\nshort"]
    assert [*places] == [-6, -4, -3, -2, -1]


def test_the_user_s_messages_are_told_as_one_since_templates_want_roles_to_alternate() -> None:
    first, second = told(Memory(users=["a", "b"], summary="s"))
    assert (words([first]), words([second])) == (["a\n\nb"], ["[Summary of the conversation so far]\ns"])
    assert [item.role for item in (first, second) if isinstance(item, Message)] == ["user", "assistant"]


def test_only_the_last_of_several_compactions_counts() -> None:
    found, _ = restored((opened(["a"]), *items(said("user", "b")), opened(["a", "b"], "both")), range(3))
    assert words(found) == ["a\n\nb", "[Summary of the conversation so far]\nboth"]


def test_what_nobody_had_answered_comes_last_as_it_was() -> None:
    tail = items(CALL, OUTPUT)
    history = make_history([opened(["a"], tail=tail)], items(said("user", "go on")))
    assert [*history.items[2:4]] == tail


def test_a_call_that_is_sealed_in_a_compaction_can_be_answered() -> None:
    compaction = opened(["a"], tail=items(CALL))
    assert len(make_history([compaction], items(OUTPUT)).items) == 4
    with pytest.raises(InvalidValue) as caught:
        make_history([*items(CALL), opened(["a"])], items(OUTPUT))
    assert caught.value.param == "input[0].call_id"


def test_a_trigger_says_nothing_to_a_model() -> None:
    trigger = {"type": "compaction_trigger"}
    found, places = restored(tuple(items(said("user", "a"), trigger)), range(2))
    assert (words(found), [*places]) == (["a"], [0])


def test_a_history_without_any_is_the_same() -> None:
    given = tuple(items(said("user", "a"), CALL))
    assert restored(given, range(2))[0] is given


def test_a_compaction_that_nobody_opened_stays_for_others_to_refuse() -> None:
    given = (Compaction(encrypted_content="x"),)
    assert restored(given, range(1))[0] == given


def test_the_model_is_told_that_messages_were_cut() -> None:
    (*_, summary) = told(Memory(users=["a"], cut=True, summary="s"))
    assert "first 200 characters" in words([summary])[0]
    assert is_summary(summary)
    assert not is_summary(items(said("user", "[Summary of the conversation so far]"))[0])


def test_without_a_summary_there_is_no_message_of_one() -> None:
    assert words(told(Memory(users=["a"], summary=""))) == ["a"]
