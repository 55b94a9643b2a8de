"""Items become chat messages; none gets lost."""

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.history.history import make_history
from antiphon.core.prompt import Json
from antiphon.errors import BadRequest, UnsupportedParameter
from antiphon.protocol.types.items import InputItem
from antiphon.render.attachments import Attached, FileSource, ImageSource
from antiphon.render.messages import render_chat
from tests.render.requests import (
    ALL,
    chat_call,
    function_call,
    function_output,
    messages,
    rendered,
    request,
    tool_message,
    user,
)
from tests.support.cpu import cpu_time


@pytest.mark.shows("A.24")
def test_instructions_come_first_and_roles_stay() -> None:
    talk = [user("a"), {"role": "assistant", "content": "b"}, {"role": "system", "content": "c"}, user("d")]
    assert messages(*talk, instructions="Be kind.") == [{"role": "system", "content": "Be kind."}, *talk]


def test_a_developer_is_the_system_where_the_role_is_not_known() -> None:
    talk = [user("a"), {"role": "developer", "content": "b"}]
    assert messages(*talk)[1]["role"] == "developer"
    assert messages(*talk, honours=ALL - {"developer"})[1]["role"] == "system"


def test_instructions_that_stand_together_at_the_top_are_one_message() -> None:
    talk = [
        {"role": "developer", "content": "b"},
        {"role": "system", "content": "c"},
        user(),
        {"role": "system", "content": "d"},
    ]
    assert messages(*talk, instructions="a", honours=frozenset()) == [
        {"role": "system", "content": "a\n\nb\n\nc"},
        user(),
        {"role": "system", "content": "d"},
    ]


def test_ten_thousand_instructions_take_linear_time() -> None:
    with cpu_time() as spent:
        made = messages(*[{"role": "system", "content": "x" * 1000}] * 10_000)
        assert len(made[0]["content"]) == 10_000 * 1002 - 2
    assert spent.seconds < 3  # by quadratic means it copies fifty gigabytes


@pytest.mark.parametrize(("verbosity", "word"), [("low", "short"), ("high", "detail")])
def test_verbosity_is_one_sentence_more(verbosity: str, word: str) -> None:
    text = {"verbosity": verbosity}
    told = messages(user(), instructions="Be kind.", text=text)[0]["content"]
    assert told.startswith("Be kind.\n\n")
    assert word in told
    assert word in messages(user(), text=text)[0]["content"]
    assert messages(user(), text={"verbosity": "medium"}) == [user()]


def test_text_parts_are_one_text() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    said = [{"type": "output_text", "text": "c"}, {"type": "refusal", "refusal": "d"}]
    assert messages({"role": "user", "content": parts}, {"role": "assistant", "content": said}) == [
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "cd"},
    ]


def test_calls_of_a_turn_and_the_text_before_them_are_one_message() -> None:
    talk = [
        user(),
        {"role": "assistant", "content": "I look."},
        function_call("a"),
        function_call("b", "g", '{"x": 1}'),
        function_output("b"),
        function_output("a"),
        {"role": "assistant", "content": "So."},
    ]
    assert messages(*talk) == [
        user(),
        {"role": "assistant", "content": "I look.", "tool_calls": [chat_call("a"), chat_call("b", "g", '{"x": 1}')]},
        tool_message("a"),
        tool_message("b", "g"),
        {"role": "assistant", "content": "So."},
    ]


def test_a_call_after_an_output_is_another_turn() -> None:
    talk = [function_call("a"), function_output("a"), function_call("b"), function_output("b")]
    assert [message["role"] for message in messages(*talk)] == ["assistant", "tool", "assistant", "tool"]


def test_an_output_follows_its_call_even_if_something_came_between() -> None:
    talk = [function_call("a"), user("hurry"), function_output("a")]
    assert [message["role"] for message in messages(*talk)] == ["assistant", "tool", "user"]


def test_a_call_that_nobody_answered_has_an_output_that_says_so() -> None:
    assert messages(function_call("a"), user())[1] == tool_message("a", content="[no output]")


def test_an_output_of_parts_is_one_text() -> None:
    parts = [{"type": "input_text", "text": "a\n"}, {"type": "input_text", "text": "b"}]
    assert messages(function_call("a"), function_output("a", parts))[1]["content"] == "a\nb"


def test_a_custom_call_is_a_call_with_one_text() -> None:
    talk = [
        {"type": "custom_tool_call", "call_id": "a", "name": "sql", "input": 'SELECT "é"', "namespace": "db"},
        {"type": "custom_tool_call_output", "call_id": "a", "output": "1"},
    ]
    assert messages(*talk) == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [chat_call("a", "db__sql", '{"input": "SELECT \\"é\\""}')],
        },
        tool_message("a", "db__sql", "1"),
    ]


def reasoning(text: str, **more: Any) -> Json:
    return {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
        **more,
    }


TURNS = [
    user("a"), reasoning("old"), {"role": "assistant", "content": "b"}, user("c"),
    reasoning("new"), function_call("x"), function_output("x"),
]  # fmt: skip


def thoughts(*items: Json, **fields: Any) -> list[str | None]:
    return [m.get("reasoning_content") for m in messages(*items, **fields) if m["role"] == "assistant"]


def test_reasoning_is_kept_within_the_turn_that_it_belongs_to() -> None:
    assert thoughts(*TURNS) == [None, "new"]
    assert thoughts(*TURNS, reasoning={"context": "all_turns"}) == ["old", "new"]
    assert thoughts(*TURNS, honours=ALL - {"reasoning.effort"}) == [None, None]


def test_a_thought_after_a_text_begins_another_message() -> None:
    talk = [user(), {"role": "assistant", "content": "I look."}, reasoning("how?"), function_call("x")]
    assert thoughts(*talk) == [None, "how?"]


def test_a_thought_that_led_to_nothing_is_not_put_into_another_mouth() -> None:
    talk = [reasoning("lost"), user(), {"role": "assistant", "content": "b"}]
    assert thoughts(*talk, reasoning={"context": "all_turns"}) == [None]


def test_reasoning_that_is_only_summed_up_is_told_by_its_summary() -> None:
    summary = [{"type": "summary_text", "text": "one"}, {"type": "summary_text", "text": "two"}]
    sealed = {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "gAAAA"}
    assert thoughts(user(), sealed, function_call("x")) == ["one\n\ntwo"]
    assert thoughts(user(), {**sealed, "summary": []}, function_call("x")) == [None]


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "original"}
FILE = {"type": "input_file", "filename": "a.txt", "file_data": "QQ=="}
AUDIO = {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}


@pytest.mark.shows("C.26")
def test_what_is_no_text_is_shown_in_the_shape_of_chat() -> None:
    parts = [{"type": "input_text", "text": "look"}, IMAGE, FILE, AUDIO]
    assert messages({"role": "user", "content": parts})[0]["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "seen:data:image/png;base64,AA", "detail": "high"}},
        {"type": "text", "text": "[a.txt] QQ=="},
        {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
    ]


def test_a_file_is_text_for_every_engine() -> None:
    parts = [{"type": "input_text", "text": "read"}, FILE, {"type": "input_file", "file_url": "https://x/b"}]
    told = messages({"role": "user", "content": parts}, honours=frozenset())
    assert told[0]["content"] == "read\n[a.txt] QQ==\n[] https://x/b"
    told = messages(user(), function_call("a"), function_output("a", [FILE]))
    assert told[-1]["content"] == "[a.txt] QQ=="


def test_what_is_not_there_yet_is_noted_with_its_field_and_how_often_it_is_shown() -> None:
    shot = {"type": "computer_screenshot", "image_url": "https://x/shot"}
    items: list[Json] = [
        {"role": "user", "content": [IMAGE, FILE, IMAGE]},
        function_call("a"),
        function_output("a", [{"type": "input_image", "image_url": "https://x/a"}]),
        {"type": "computer_call", "call_id": "c", "action": {"type": "screenshot"}, "pending_safety_checks": []},
        {"type": "computer_call_output", "call_id": "c", "output": shot},
    ]
    asked = request(input=items)
    attached = Attached()
    render_chat(make_history((), asked.input), asked, ALL, attached)
    assert {source: (wish.param, wish.times) for source, wish in attached.wanted.items()} == {
        ImageSource("data:image/png;base64,AA"): ("input[0].content[0].image_url", 2),
        FileSource("a.txt", "QQ=="): ("input[0].content[1].file_data", 1),
        ImageSource("https://x/a"): ("input[2].output[0].image_url", 1),
        ImageSource("https://x/shot"): ("input[4].output.image_url", 1),
    }


@pytest.mark.parametrize(
    ("items", "missing", "param"),
    [
        (
            [user(), {"role": "user", "content": [{"type": "input_text", "text": "a"}, IMAGE]}],
            "input_image",
            "input[1].content[1]",
        ),
        ([{"role": "user", "content": [AUDIO]}], "input_audio", "input[0].content[0]"),
        ([{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}], "", "input[0].content[0].file_id"),
        ([{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}], "", "input[0].content[0].file_id"),
        ([{"type": "item_reference", "id": "msg_1"}], "", "input[0]"),
        ([user(), {"type": "compaction", "encrypted_content": "x"}], "", "input[1]"),
        ([user(), {"type": "configuration_update", "reasoning": {"effort": "low"}}], "", "input[1]"),
    ],
)
@pytest.mark.shows("A.19", "C.26")
def test_what_cannot_be_taken_is_refused_by_name(items: list[Json], missing: str, param: str) -> None:
    with pytest.raises(UnsupportedParameter) as refused:
        messages(*items, honours=ALL - {missing})
    assert refused.value.param == param


SHELL_OUTPUT = [{"stdout": "out", "stderr": "err", "outcome": {"type": "exit", "exit_code": 1}}]
PAIRS: list[tuple[list[Json], tuple[str, ...]]] = [
    (
        [
            {"type": "shell_call", "call_id": "a", "action": {"commands": ["ls -l"]}},
            {"type": "shell_call_output", "call_id": "a", "output": SHELL_OUTPUT},
        ],
        ("shell", "ls -l", "out", "err", "exit code 1"),
    ),
    (
        [
            {"type": "local_shell_call", "id": "l", "call_id": "a", "action": {"command": ["ls"], "env": {}}},
            {"type": "local_shell_call_output", "id": "l", "output": "files"},
        ],
        ("local_shell", "ls", "files"),
    ),
    (
        [
            {
                "type": "apply_patch_call", "call_id": "a", "status": "completed",
                "operation": {"type": "update_file", "path": "p.py", "diff": "+new"},
            },
            {"type": "apply_patch_call_output", "call_id": "a", "status": "failed", "output": "no such line"},
        ],
        ("apply_patch", "p.py", "+new", "failed", "no such line"),
    ),
    (
        [
            {"type": "computer_call", "call_id": "a", "action": {"type": "click", "x": 7, "y": 9}},
            {
                "type": "computer_call_output", "call_id": "a",
                "output": {"type": "computer_screenshot", "image_url": "data:image/png;base64,SHOT"},
            },
        ],
        ("computer", "click", "SHOT"),
    ),
    (
        [
            {"type": "tool_search_call", "arguments": {"query": "maps"}},
            {"type": "tool_search_output", "tools": [{"type": "function", "name": "map_of"}]},
        ],
        ("tool_search", "maps", "map_of"),
    ),
    (
        [
            {"type": "program", "call_id": "a", "code": "run()", "fingerprint": "f"},
            {"type": "program_output", "call_id": "a", "result": "ran", "status": "completed"},
        ],
        ("program", "run()", "ran"),
    ),
    (
        [{"type": "mcp_call", "server_label": "s", "name": "echo", "arguments": '{"m": 1}', "output": "Echo: 1"}],
        ("s__echo", '{"m": 1}', "Echo: 1"),
    ),
    (
        [
            {
                "type": "mcp_call", "server_label": "s", "name": "echo", "arguments": "{}",
                "error": {"type": "http_error", "code": 502, "message": "bad gateway"},
            }
        ],
        ("s__echo", "bad gateway"),
    ),
    (
        [
            {
                "type": "web_search_call", "status": "completed",
                "action": {"type": "search", "query": "rome", "sources": [{"type": "url", "url": "https://a.example"}]},
            }
        ],
        ("web_search", "rome", "https://a.example"),
    ),
    (
        [
            {
                "type": "file_search_call", "status": "completed", "queries": ["tax"],
                "results": [{"filename": "law.txt", "text": "pay"}],
            }
        ],
        ("file_search", "tax", "law.txt", "pay"),
    ),
    (
        [
            {
                "type": "code_interpreter_call", "container_id": "c", "code": "1+1", "status": "completed",
                "outputs": [{"type": "logs", "logs": "2"}, {"type": "image", "url": "https://i.example"}],
            }
        ],
        ("code_interpreter", "1+1", "2", "https://i.example"),
    ),
    (
        [{"type": "image_generation_call", "id": "ig", "result": "AA", "revised_prompt": "a cat"}],
        ("image_generation", "a cat", "An image was made"),
    ),
    (
        [
            {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "s", "name": "rm", "arguments": "{}"},
            {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": False, "reason": "too risky"},
        ],
        ("s__rm", "{}", "not allow", "too risky"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("items", "words"), PAIRS, ids=[items[0]["type"] for items, _ in PAIRS])
@pytest.mark.parametrize("honours", [ALL, ALL - {"tools"}], ids=["with tools", "without tools"])
def test_whatever_was_run_is_told_to_the_model(
    items: list[Json], words: tuple[str, ...], honours: frozenset[str]
) -> None:
    told = messages(user("ask"), *items, user("go on"), honours=honours)
    text = str(
        [(m["content"], [call["function"] for call in m.get("tool_calls", [])], m.get("name")) for m in told[1:-1]]
    )
    assert [word for word in words if word not in text] == []
    if "tools" not in honours:
        assert {message["role"] for message in told} == {"user", "assistant"}


def test_calls_are_told_in_words_to_a_model_without_tools() -> None:
    talk = [
        user(),
        {"role": "assistant", "content": "I look."},
        function_call("a", arguments='{"x": 1}'),
        function_output("a"),
    ]
    assert messages(*talk, honours=frozenset()) == [
        user(),
        {"role": "assistant", "content": 'I look.\n[called f with {"x": 1}]'},
        {"role": "user", "content": "[f returned]\ndone"},
    ]


def test_an_approval_that_was_followed_is_history() -> None:
    talk: list[Json] = [
        {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "s", "name": "rm", "arguments": "{}"},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
        {"type": "mcp_call", "server_label": "s", "name": "rm", "arguments": "{}", "approval_request_id": "mcpr_1"},
    ]
    assert [message["role"] for message in messages(*talk)] == ["assistant", "tool"]


def test_declarations_among_the_items_say_nothing_themselves() -> None:
    tools = [{"type": "function", "name": "late"}]
    listed = {"type": "mcp_list_tools", "server_label": "s", "tools": []}
    made = rendered(input=[{"type": "additional_tools", "role": "developer", "tools": tools}, listed, user()])
    assert list(made.prompt.messages) == [user()]
    assert list(made.offered.offers) == ["late"]
    assert made.offered.ignored == ("mcp_list_tools",)


NO_TOOLS: list[Json] = []
KINDS: list[Json] = [
    *[item for items, _ in PAIRS for item in items],
    user(),
    {"role": "assistant", "content": "b"},
    reasoning("t"),
    function_call("f1"),
    function_output("f1"),
    {"type": "custom_tool_call", "call_id": "c1", "name": "g", "input": "x"},
    {"type": "custom_tool_call_output", "call_id": "c1", "output": "y"},
    {"type": "additional_tools", "role": "developer", "tools": NO_TOOLS},
    {"type": "mcp_list_tools", "server_label": "s", "tools": NO_TOOLS},
    {"type": "item_reference", "id": "x"},
    {"type": "compaction", "encrypted_content": "x"},
    {"type": "compaction_trigger"},
    {"type": "configuration_update"},
]


def test_every_type_of_item_is_among_these_tests() -> None:
    known = {str(kind.__struct_config__.tag) for kind in get_args(InputItem)}
    assert {str(item.get("type", "message")) for item in KINDS} == known


@given(
    chosen=st.lists(st.sampled_from(KINDS), max_size=8, unique_by=lambda item: KINDS.index(item)), tools=st.booleans()
)
def test_items_in_any_order_are_rendered_or_refused_and_never_break(chosen: list[Json], tools: bool) -> None:
    try:
        made = messages(*chosen, honours=ALL if tools else ALL - {"tools"})
    except BadRequest as refused:
        if refused.param is None:
            raise
        return
    called = [call["id"] for message in made for call in message.get("tool_calls", [])]
    assert [message["tool_call_id"] for message in made if message["role"] == "tool"] == called


@pytest.mark.parametrize("honours", [ALL, frozenset[str]()])
@pytest.mark.parametrize("instructions", [None, "Be kind."])
@pytest.mark.parametrize("roles", [["user"], ["developer", "user"], ["system", "user", "assistant", "user"]])
def test_a_conversation_in_texts_is_the_same_beside_an_item_that_says_nothing(
    honours: frozenset[str], instructions: str | None, roles: list[str]
) -> None:
    said = [{"role": role, "content": f"{role} {number}"} for number, role in enumerate(roles)]
    mute = {"type": "additional_tools", "role": "developer", "tools": []}
    alone = messages(*said, honours=honours, instructions=instructions)
    assert alone == messages(*said, mute, honours=honours, instructions=instructions)
