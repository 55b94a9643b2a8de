"""What is kept of a history: what nobody has answered, and what the user said, the newest whole."""

import pytest

from antiphon.core.history.compaction import FIRST, Memory, told
from antiphon.core.history.compaction_plan import excess, filled, newest, part, text_of
from antiphon.protocol.types.items import InputItem, Message
from tests.core.history.test_compaction import CALL, OUTPUT, items, said

OLD = [said("user", "one"), said("assistant", "two")]
THOUGHT = {"type": "reasoning", "summary": [], "encrypted_content": "antiphon-sealed-1.x"}


def kinds(found: list[InputItem]) -> list[str]:
    return [str(item.__struct_config__.tag) for item in found]


def test_everything_is_summed_up_if_nothing_is_to_be_answered() -> None:
    parting = part(items(*OLD, said("user", "three")), answering=False)
    assert (len(parting.summed), parting.tail, parting.users) == (3, [], ["one", "three"])


def test_the_last_question_stays_as_it_is_if_it_is_to_be_answered() -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    asked = {"type": "message", "role": "user", "content": [picture]}
    parting = part(items(*OLD, said("user", "see"), asked), answering=True)
    assert parting.tail == items(said("user", "see"), asked)
    assert parting.users == ["one"]


def test_the_last_calls_stay_with_their_outputs_if_they_are_to_be_answered() -> None:
    parting = part(items(*OLD, said("user", "three"), THOUGHT, CALL, OUTPUT), answering=True)
    assert kinds(parting.tail) == ["reasoning", "function_call", "function_call_output"]
    assert parting.users == ["one", "three"]
    assert "encrypted" not in str(parting.tail[0]).replace("encrypted_content=UNSET", "")


@pytest.mark.parametrize("answering", [True, False])
def test_a_call_without_an_output_stays(answering: bool) -> None:
    parting = part(items(*OLD, CALL), answering)
    assert kinds(parting.tail) == ["function_call"]
    asked = {"type": "mcp_approval_request", "id": "m", "server_label": "l", "name": "n", "arguments": "{}"}
    assert kinds(part(items(*OLD, asked), answering).tail) == ["mcp_approval_request"]


def test_a_call_that_the_user_has_passed_over_does_not_stay() -> None:
    assert part(items(CALL, said("user", "never mind"), said("assistant", "ok")), answering=True).tail == []


def test_what_an_earlier_compaction_told_is_still_known_message_by_message() -> None:
    before = told(Memory(users=["a" * 200, "b" * 200], summary="s"))
    assert part([*before, *items(said("user", "c"))], answering=False).users == ["a" * 200, "b" * 200, "c"]


def test_nothing_stays_after_an_answer() -> None:
    assert part(items(*OLD, CALL, OUTPUT, said("assistant", "so")), answering=True).tail == []


def test_a_history_that_is_nothing_but_its_last_question_is_idle() -> None:
    assert part(items(said("system", "S"), said("user", "one")), answering=True).is_idle
    assert not part(items(said("user", "one")), answering=False).is_idle


def test_tools_are_not_summed_up() -> None:
    parting = part(items({"type": "additional_tools", "tools": []}, said("developer", "D"), *OLD), answering=False)
    assert kinds(parting.summed) == ["message"] * 3
    assert kinds(parting.stays) == ["message"]


def test_the_newest_messages_are_whole_as_long_as_there_is_room() -> None:
    texts = ["a" * 300, "b" * 150, "c" * 1000, "d" * 250]
    parting = part(items(*[said("user", text) for text in texts]), answering=False)
    assert excess(parting) == 100 + 800 + 50
    for room, whole in ((0, "b"), (50, "bd"), (150, "abd"), (850, "bcd"), (950, "abcd")):
        memory = filled(parting, "s", room)
        assert "".join([kept[0] for kept, text in zip(memory.users, texts, strict=True) if kept == text]) == whole, room
        assert all(text.startswith(kept) for kept, text in zip(memory.users, texts, strict=True))
        assert all(len(kept) >= min(FIRST, len(text)) for kept, text in zip(memory.users, texts, strict=True))
        assert memory.cut is (whole != "abcd")


def test_what_cannot_be_said_in_words_is_named() -> None:
    parts = [
        {"type": "input_text", "text": "See:"},
        {"type": "input_image", "image_url": "data:,"},
        {"type": "input_file", "file_data": "data:,", "filename": "a.pdf"},
    ]
    (message,) = items({"type": "message", "role": "user", "content": parts})
    assert isinstance(message, Message)
    assert text_of(message) == "See:\n[image]\n[file a.pdf]"


def test_the_oldest_are_left_out_but_not_what_governs_nor_a_summary() -> None:
    summary = told(Memory(users=[], summary="before"))
    given = [*items(said("system", "S"), *OLD), *summary, *items(*OLD * 3)]
    kept = newest(given, 0.3)
    assert kept[0] == given[0]
    assert summary[0] in kept
    assert kept[-1] == given[-1]
    assert len(kept) < 6
