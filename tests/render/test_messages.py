"""Rendering of items as chat messages; no item is lost.

Covers `render/content.py`, `render/tools/tool_choice.py` and `render/transcript.py`.
"""

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.history.history import make_history
from antiphon.core.prompt import ChatPrompt, Json
from antiphon.core.skills import OfferedSkill
from antiphon.errors import BadRequest, UnsupportedParameter
from antiphon.protocol.types.items import InputItem
from antiphon.render.content import AttachmentLookup, FileAttachment, ImageAttachment
from antiphon.render.messages import RenderedChat, render_chat, show_skills
from antiphon.render.tools.offered_tools import OfferedTools
from tests.render.requests import (
    ALL_FEATURES,
    chat_call,
    function_call,
    function_output,
    make_request,
    render_messages,
    render_request,
    tool_message,
    user_message,
)
from tests.support.cpu import cpu_timer


@pytest.mark.shows("A.24")
def test_instructions_come_first_and_roles_are_preserved() -> None:
    items = [
        user_message("a"),
        {"role": "assistant", "content": "b"},
        {"role": "system", "content": "c"},
        user_message("d"),
    ]
    assert render_messages(*items, instructions="Be kind.") == [{"role": "system", "content": "Be kind."}, *items]


def test_developer_becomes_system_where_the_role_is_unsupported() -> None:
    items = [user_message("a"), {"role": "developer", "content": "b"}]
    assert render_messages(*items)[1]["role"] == "developer"
    assert render_messages(*items, features=ALL_FEATURES - {"developer"})[1]["role"] == "system"


def test_leading_instructions_are_merged_into_one_message() -> None:
    items = [
        {"role": "developer", "content": "b"},
        {"role": "system", "content": "c"},
        user_message(),
        {"role": "system", "content": "d"},
    ]
    assert render_messages(*items, instructions="a", features=frozenset()) == [
        {"role": "system", "content": "a\n\nb\n\nc"},
        user_message(),
        {"role": "system", "content": "d"},
    ]


def test_ten_thousand_instructions_take_linear_time() -> None:
    with cpu_timer() as spent:
        made = render_messages(*[{"role": "system", "content": "x" * 1000}] * 10_000)
        assert len(made[0]["content"]) == 10_000 * 1002 - 2
    assert spent.seconds < 3  # quadratic time would copy fifty gigabytes


@pytest.mark.parametrize(("verbosity", "fragment"), [("low", "short"), ("high", "detail")])
def test_verbosity_adds_a_sentence_to_the_instructions(verbosity: str, fragment: str) -> None:
    text = {"verbosity": verbosity}
    result = render_messages(user_message(), instructions="Be kind.", text=text)[0]["content"]
    assert result.startswith("Be kind.\n\n")
    assert fragment in result
    assert fragment in render_messages(user_message(), text=text)[0]["content"]
    assert render_messages(user_message(), text={"verbosity": "medium"}) == [user_message()]


def test_the_description_of_a_format_is_part_of_the_instructions() -> None:
    text_format = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "description": "Names of otters."}
    messages = render_messages(user_message(), instructions="Be brief.", text={"format": text_format})
    assert messages[0] == {"role": "system", "content": "Be brief.\n\nAbout the JSON of the answer: Names of otters."}
    both = render_messages(user_message(), text={"format": text_format, "verbosity": "low"})
    assert both[0]["content"] == "Keep your answers short.\n\nAbout the JSON of the answer: Names of otters."
    del text_format["description"]
    assert render_messages(user_message(), text={"format": text_format}) == [user_message()]


def test_text_parts_are_joined() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    answer_parts = [{"type": "output_text", "text": "c"}, {"type": "refusal", "refusal": "d"}]
    assert render_messages({"role": "user", "content": parts}, {"role": "assistant", "content": answer_parts}) == [
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "cd"},
    ]


def test_calls_of_a_turn_and_the_text_before_them_are_one_message() -> None:
    items = [
        user_message(),
        {"role": "assistant", "content": "I look."},
        function_call("a"),
        function_call("b", "g", '{"x": 1}'),
        function_output("b"),
        function_output("a"),
        {"role": "assistant", "content": "So."},
    ]
    assert render_messages(*items) == [
        user_message(),
        {"role": "assistant", "content": "I look.", "tool_calls": [chat_call("a"), chat_call("b", "g", '{"x": 1}')]},
        tool_message("a"),
        tool_message("b", "g"),
        {"role": "assistant", "content": "So."},
    ]


def test_a_call_after_an_output_starts_another_turn() -> None:
    items = [function_call("a"), function_output("a"), function_call("b"), function_output("b")]
    assert [message["role"] for message in render_messages(*items)] == ["assistant", "tool", "assistant", "tool"]


def test_an_output_is_moved_directly_behind_its_call() -> None:
    items = [function_call("a"), user_message("hurry"), function_output("a")]
    assert [message["role"] for message in render_messages(*items)] == ["assistant", "tool", "user"]


def test_an_unanswered_call_gets_a_placeholder_output() -> None:
    assert render_messages(function_call("a"), user_message())[1] == tool_message("a", content="[no output]")


def test_output_parts_are_joined() -> None:
    parts = [{"type": "input_text", "text": "a\n"}, {"type": "input_text", "text": "b"}]
    assert render_messages(function_call("a"), function_output("a", parts))[1]["content"] == "a\nb"


def test_a_custom_call_becomes_a_call_with_one_text_argument() -> None:
    items = [
        {"type": "custom_tool_call", "call_id": "a", "name": "sql", "input": 'SELECT "é"', "namespace": "db"},
        {"type": "custom_tool_call_output", "call_id": "a", "output": "1"},
    ]
    assert render_messages(*items) == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [chat_call("a", "db__sql", '{"input": "SELECT \\"é\\""}')],
        },
        tool_message("a", "db__sql", "1"),
    ]


def reasoning_item(text: str, **more: Any) -> Json:
    return {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
        **more,
    }


TURNS = [
    user_message("a"), reasoning_item("old"), {"role": "assistant", "content": "b"}, user_message("c"),
    reasoning_item("new"), function_call("x"), function_output("x"),
]  # fmt: skip


def list_reasoning(*items: Json, **fields: Any) -> list[str | None]:
    return [m.get("reasoning_content") for m in render_messages(*items, **fields) if m["role"] == "assistant"]


def test_reasoning_is_rendered_only_in_its_own_turn() -> None:
    assert list_reasoning(*TURNS) == [None, "new"]
    assert list_reasoning(*TURNS, reasoning={"context": "all_turns"}) == ["old", "new"]
    assert list_reasoning(*TURNS, features=ALL_FEATURES - {"reasoning.effort"}) == [None, None]


def test_reasoning_after_text_starts_another_message() -> None:
    items = [user_message(), {"role": "assistant", "content": "I look."}, reasoning_item("how?"), function_call("x")]
    assert list_reasoning(*items) == [None, "how?"]


def test_reasoning_without_a_result_is_not_attached_to_a_later_answer() -> None:
    items = [reasoning_item("lost"), user_message(), {"role": "assistant", "content": "b"}]
    assert list_reasoning(*items, reasoning={"context": "all_turns"}) == [None]


def test_reasoning_without_content_is_rendered_as_its_summary() -> None:
    summary = [{"type": "summary_text", "text": "one"}, {"type": "summary_text", "text": "two"}]
    encrypted = {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "gAAAA"}
    assert list_reasoning(user_message(), encrypted, function_call("x")) == ["one\n\ntwo"]
    assert list_reasoning(user_message(), {**encrypted, "summary": []}, function_call("x")) == [None]


IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "original"}
FILE = {"type": "input_file", "filename": "a.txt", "file_data": "QQ=="}
AUDIO = {"type": "input_audio", "input_audio": {"data": "UklGRgAAAABXQVZF", "format": "wav"}}


@pytest.mark.shows("C.26")
def test_parts_other_than_text_are_rendered_in_chat_format() -> None:
    parts = [{"type": "input_text", "text": "look"}, IMAGE, FILE, AUDIO]
    assert render_messages({"role": "user", "content": parts})[0]["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "seen:data:image/png;base64,AA", "detail": "high"}},
        {"type": "text", "text": "[a.txt] QQ=="},
        AUDIO,
    ]


def test_a_file_is_rendered_as_text_for_every_engine() -> None:
    parts = [{"type": "input_text", "text": "read"}, FILE, {"type": "input_file", "file_url": "https://x/b"}]
    result = render_messages({"role": "user", "content": parts}, features=frozenset())
    assert result[0]["content"] == "read\n[a.txt] QQ==\n[] https://x/b"
    result = render_messages(user_message(), function_call("a"), function_output("a", [FILE]))
    assert result[-1]["content"] == "[a.txt] QQ=="


def test_missing_attachments_are_recorded_with_parameter_and_number_of_uses() -> None:
    shot = {"type": "computer_screenshot", "image_url": "https://x/shot"}
    items: list[Json] = [
        {"role": "user", "content": [IMAGE, FILE, IMAGE]},
        function_call("a"),
        function_output("a", [{"type": "input_image", "image_url": "https://x/a"}]),
        {"type": "computer_call", "call_id": "c", "action": {"type": "screenshot"}, "pending_safety_checks": []},
        {"type": "computer_call_output", "call_id": "c", "output": shot},
        {"role": "user", "content": [{"type": kind, "file_id": "f"} for kind in ("input_image", "input_file")]},
    ]
    create_request = make_request(input=items)
    attachments = AttachmentLookup()
    render_chat(make_history((), create_request.input), create_request, ALL_FEATURES, attachments)
    assert {source: (entry.param, entry.uses) for source, entry in attachments.missing.items()} == {
        ImageAttachment("data:image/png;base64,AA"): ("input[0].content[0].image_url", 2),
        FileAttachment("a.txt", "QQ=="): ("input[0].content[1].file_data", 1),
        ImageAttachment("https://x/a"): ("input[2].output[0].image_url", 1),
        ImageAttachment("https://x/shot"): ("input[4].output.image_url", 1),
        ImageAttachment(file_id="f"): ("input[5].content[0].file_id", 1),
        FileAttachment(file_id="f"): ("input[5].content[1].file_id", 1),
    }


@pytest.mark.parametrize(
    ("items", "missing", "param"),
    [
        (
            [user_message(), {"role": "user", "content": [{"type": "input_text", "text": "a"}, IMAGE]}],
            "input_image",
            "input[1].content[1]",
        ),
        ([{"role": "user", "content": [AUDIO]}], "input_audio", "input[0].content[0]"),
        ([{"type": "item_reference", "id": "msg_1"}], "", "input[0]"),
        ([user_message(), {"type": "compaction", "encrypted_content": "x"}], "", "input[1]"),
        ([user_message(), {"type": "configuration_update", "reasoning": {"effort": "low"}}], "", "input[1]"),
    ],
)
@pytest.mark.shows("A.19", "C.26")
def test_unsupported_items_and_parts_are_rejected_with_their_parameter(
    items: list[Json], missing: str, param: str
) -> None:
    with pytest.raises(UnsupportedParameter) as refused:
        render_messages(*items, features=ALL_FEATURES - {missing})
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
            {"type": "computer_call", "call_id": "a", "action": {"type": "click", "button": "left", "x": 7, "y": 9}},
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


@pytest.mark.parametrize(("items", "fragments"), PAIRS, ids=[items[0]["type"] for items, _ in PAIRS])
@pytest.mark.parametrize("features", [ALL_FEATURES, ALL_FEATURES - {"tools"}], ids=["with tools", "without tools"])
def test_every_tool_run_is_rendered_for_the_model(
    items: list[Json], fragments: tuple[str, ...], features: frozenset[str]
) -> None:
    result = render_messages(user_message("ask"), *items, user_message("go on"), features=features)
    text = str(
        [(m["content"], [call["function"] for call in m.get("tool_calls", [])], m.get("name")) for m in result[1:-1]]
    )
    assert [fragment for fragment in fragments if fragment not in text] == []
    if "tools" not in features:
        assert {message["role"] for message in result} == {"user", "assistant"}


def test_calls_are_rendered_as_text_for_a_model_without_tools() -> None:
    items = [
        user_message(),
        {"role": "assistant", "content": "I look."},
        function_call("a", arguments='{"x": 1}'),
        function_output("a"),
    ]
    assert render_messages(*items, features=frozenset()) == [
        user_message(),
        {"role": "assistant", "content": 'I look.\n[called f with {"x": 1}]'},
        {"role": "user", "content": "[f returned]\ndone"},
    ]


def test_an_approval_followed_by_its_call_is_not_rendered() -> None:
    items: list[Json] = [
        {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "s", "name": "rm", "arguments": "{}"},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
        {"type": "mcp_call", "server_label": "s", "name": "rm", "arguments": "{}", "approval_request_id": "mcpr_1"},
    ]
    assert [message["role"] for message in render_messages(*items)] == ["assistant", "tool"]


def test_tool_declarations_among_the_items_render_no_message() -> None:
    tools = [{"type": "function", "name": "late"}]
    listed = {"type": "mcp_list_tools", "server_label": "s", "tools": []}
    made = render_request(
        input=[{"type": "additional_tools", "role": "developer", "tools": tools}, listed, user_message()]
    )
    assert list(made.prompt.messages) == [user_message()]
    assert list(made.offered.offers) == ["late"]
    assert made.offered.ignored == ("mcp_list_tools",)


NO_TOOLS: list[Json] = []
KINDS: list[Json] = [
    *[item for items, _ in PAIRS for item in items],
    user_message(),
    {"role": "assistant", "content": "b"},
    reasoning_item("t"),
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


def test_every_item_type_is_covered() -> None:
    declared = {str(kind.__struct_config__.tag) for kind in get_args(InputItem)}
    assert {str(item.get("type", "message")) for item in KINDS} == declared


@given(
    chosen=st.lists(st.sampled_from(KINDS), max_size=8, unique_by=lambda item: KINDS.index(item)), tools=st.booleans()
)
def test_items_in_any_order_are_rendered_or_rejected(chosen: list[Json], tools: bool) -> None:
    try:
        made = render_messages(*chosen, features=ALL_FEATURES if tools else ALL_FEATURES - {"tools"})
    except BadRequest as refused:
        if refused.param is None:
            raise
        return
    called = [call["id"] for message in made for call in message.get("tool_calls", [])]
    assert [message["tool_call_id"] for message in made if message["role"] == "tool"] == called


@pytest.mark.parametrize("features", [ALL_FEATURES, frozenset[str]()])
@pytest.mark.parametrize("instructions", [None, "Be kind."])
@pytest.mark.parametrize("roles", [["user"], ["developer", "user"], ["system", "user", "assistant", "user"]])
def test_an_item_without_messages_does_not_change_a_text_conversation(
    features: frozenset[str], instructions: str | None, roles: list[str]
) -> None:
    items = [{"role": role, "content": f"{role} {number}"} for number, role in enumerate(roles)]
    declaration = {"type": "additional_tools", "role": "developer", "tools": []}
    alone = render_messages(*items, features=features, instructions=instructions)
    assert alone == render_messages(*items, declaration, features=features, instructions=instructions)


def test_skills_are_put_before_the_first_text_of_the_user_and_into_a_message_of_their_own_without_one() -> None:
    skills = [OfferedSkill("pdf", "Fills in forms.", "/s/pdf-1"), OfferedSkill("csv", "Reads <|im_end|>.", "/s/csv-2")]
    note = (
        "Read the file SKILL.md in a skill's folder before you do what the skill is for. Skills:\n"
        "- pdf (/s/pdf-1): Fills in forms.\n- csv (/s/csv-2): Reads <|im_end|>."
    )
    image = {"type": "image_url", "image_url": {"url": "data:", "detail": "auto"}}
    cases: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = [
        (
            [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Hi"},
                {"role": "user", "content": "x"},
            ],
            [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": f"{note}\n\nHi"},
                {"role": "user", "content": "x"},
            ],
        ),
        (
            [{"role": "user", "content": [image]}],
            [{"role": "user", "content": [{"type": "text", "text": note}, image]}],
        ),
        (
            [{"role": "system", "content": "Be brief."}, {"role": "assistant", "content": "Hi"}],
            [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": note},
                {"role": "assistant", "content": "Hi"},
            ],
        ),
    ]
    for messages, expected in cases:
        chat = RenderedChat(ChatPrompt(messages=tuple(messages)), OfferedTools())
        assert [*show_skills(chat, skills).prompt.messages] == expected
