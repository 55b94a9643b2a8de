"""Compaction plans: unanswered items stay as they are, and user messages are stored, the newest ones in full."""

import pytest

from antiphon.core.history.compaction import USER_PREFIX_CHARS, CompactionMemory, expand_memory
from antiphon.core.history.compaction_plan import (
    build_memory,
    excess_chars,
    message_text,
    plan_compaction,
    select_newest,
)
from antiphon.protocol.types.items import InputItem, Message
from tests.core.history.test_compaction import CALL, OUTPUT, decode_items, make_message

OLD = [make_message("user", "one"), make_message("assistant", "two")]
REASONING = {"type": "reasoning", "summary": [], "encrypted_content": "antiphon-sealed-1.x"}


def get_types(found: list[InputItem]) -> list[str]:
    return [str(item.__struct_config__.tag) for item in found]


def test_all_items_are_summarised_if_nothing_is_to_be_answered() -> None:
    plan = plan_compaction(decode_items(*OLD, make_message("user", "three")), answering=False)
    assert (len(plan.to_summarise), plan.tail, plan.users) == (3, [], ["one", "three"])


def test_the_last_question_stays_unchanged_if_it_is_to_be_answered() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    question = {"type": "message", "role": "user", "content": [image]}
    plan = plan_compaction(decode_items(*OLD, make_message("user", "see"), question), answering=True)
    assert plan.tail == decode_items(make_message("user", "see"), question)
    assert plan.users == ["one"]


def test_the_last_calls_and_outputs_stay_if_they_are_to_be_answered() -> None:
    plan = plan_compaction(decode_items(*OLD, make_message("user", "three"), REASONING, CALL, OUTPUT), answering=True)
    assert get_types(plan.tail) == ["reasoning", "function_call", "function_call_output"]
    assert plan.users == ["one", "three"]
    assert "encrypted" not in str(plan.tail[0]).replace("encrypted_content=UNSET", "")


@pytest.mark.parametrize("answering", [True, False])
def test_a_call_or_approval_request_without_an_answer_stays(answering: bool) -> None:
    plan = plan_compaction(decode_items(*OLD, CALL), answering)
    assert get_types(plan.tail) == ["function_call"]
    request = {"type": "mcp_approval_request", "id": "m", "server_label": "l", "name": "n", "arguments": "{}"}
    assert get_types(plan_compaction(decode_items(*OLD, request), answering).tail) == ["mcp_approval_request"]


def test_a_call_that_the_user_skipped_does_not_stay() -> None:
    assert (
        plan_compaction(
            decode_items(CALL, make_message("user", "never mind"), make_message("assistant", "ok")), answering=True
        ).tail
        == []
    )


def test_user_messages_of_an_earlier_compaction_remain_separate() -> None:
    before = expand_memory(CompactionMemory(users=["a" * 200, "b" * 200], summary="s"))
    assert plan_compaction([*before, *decode_items(make_message("user", "c"))], answering=False).users == [
        "a" * 200,
        "b" * 200,
        "c",
    ]


def test_no_items_stay_after_an_answer() -> None:
    assert plan_compaction(decode_items(*OLD, CALL, OUTPUT, make_message("assistant", "so")), answering=True).tail == []


def test_the_plan_for_a_single_open_question_is_empty() -> None:
    assert plan_compaction(
        decode_items(make_message("system", "S"), make_message("user", "one")), answering=True
    ).is_empty
    assert not plan_compaction(decode_items(make_message("user", "one")), answering=False).is_empty


def test_tools_are_not_summarised() -> None:
    plan = plan_compaction(
        decode_items({"type": "additional_tools", "tools": []}, make_message("developer", "D"), *OLD), answering=False
    )
    assert get_types(plan.to_summarise) == ["message"] * 3
    assert get_types(plan.directives) == ["message"]


def test_the_newest_messages_are_stored_in_full_within_the_budget() -> None:
    texts = ["a" * 300, "b" * 150, "c" * 1000, "d" * 250]
    plan = plan_compaction(decode_items(*[make_message("user", text) for text in texts]), answering=False)
    assert excess_chars(plan) == 100 + 800 + 50
    for budget, complete in ((0, "b"), (50, "bd"), (150, "abd"), (850, "bcd"), (950, "abcd")):
        memory = build_memory(plan, "s", budget)
        assert (
            "".join([stored[0] for stored, text in zip(memory.users, texts, strict=True) if stored == text]) == complete
        ), budget
        assert all(text.startswith(stored) for stored, text in zip(memory.users, texts, strict=True))
        assert all(
            len(stored) >= min(USER_PREFIX_CHARS, len(text)) for stored, text in zip(memory.users, texts, strict=True)
        )
        assert memory.cut is (complete != "abcd")


def test_images_and_files_are_replaced_by_placeholders() -> None:
    parts = [
        {"type": "input_text", "text": "See:"},
        {"type": "input_image", "image_url": "data:,"},
        {"type": "input_file", "file_data": "data:,", "filename": "a.pdf"},
    ]
    (message,) = decode_items({"type": "message", "role": "user", "content": parts})
    assert isinstance(message, Message)
    assert message_text(message) == "See:\n[image]\n[file a.pdf]"


def test_the_oldest_items_are_dropped_except_instructions_and_summaries() -> None:
    summary = expand_memory(CompactionMemory(users=[], summary="before"))
    history = [*decode_items(make_message("system", "S"), *OLD), *summary, *decode_items(*OLD * 3)]
    selected = select_newest(history, 0.3)
    assert selected[0] == history[0]
    assert summary[0] in selected
    assert selected[-1] == history[-1]
    assert len(selected) < 6
