import json
from typing import Any

import msgspec
import pytest

from antiphon.core.dialects.anthropic.items import sign
from antiphon.core.dialects.anthropic.request import Asked, read_count, read_message
from antiphon.errors import AntiphonError, BadRequest, InvalidValue, MissingParameter, UnsupportedParameter
from antiphon.limits import Limits
from antiphon.protocol.types.anthropic.events import problem
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import JsonSchemaFormat

HI = [{"role": "user", "content": "hi"}]
USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": "é", "b": [1, None]}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1"}


def asked(**body: Any) -> Asked:
    given = {"model": "m", "max_tokens": 9, "messages": HI, **body}
    return read_message(json.dumps(given).encode(), Limits())


def request(**body: Any) -> CreateResponse:
    return asked(**body).decoded.request


def items(*messages: Any) -> list[Any]:
    """As JSON, without what was not said."""
    found: list[Any] = msgspec.to_builtins(request(messages=[*messages, *HI]).input[:-1])
    return found


def turn(role: str, *blocks: Any) -> dict[str, Any]:
    return {"role": role, "content": [*blocks]}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def test_a_string_and_a_text_block_are_the_same() -> None:
    assert request(messages=HI).input == request(messages=[turn("user", text("hi"))]).input


def test_no_blocks_are_as_good_as_an_empty_text() -> None:
    said = items(turn("user"), turn("assistant"))
    assert [(item["role"], item["content"]) for item in said] == [("user", []), ("assistant", [])]


def test_a_conversation_becomes_items_in_its_order() -> None:
    found = items(
        turn("user", text("a"), text("b")),
        turn("assistant", {"type": "thinking", "thinking": "hm", "signature": "x"}, text("so"), USE),
        turn("user", {**RESULT, "content": "42"}, text("and?")),
        turn("system", text("Be brief.")),
    )
    assert [item["type"] for item in found] == [
        "message", "reasoning", "message", "function_call", "function_call_output", "message", "message",
    ]  # fmt: skip
    assert [part["text"] for part in found[0]["content"]] == ["a", "b"]
    assert found[1]["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert found[2]["content"][0]["type"] == "output_text"
    assert (found[3]["call_id"], json.loads(found[3]["arguments"])) == ("toolu_1", USE["input"])
    assert (found[4]["call_id"], found[4]["output"]) == ("toolu_1", "42")
    assert found[6]["role"] == "system"


def test_system_blocks_become_instructions() -> None:
    assert request(system="Be kind.").instructions == "Be kind."
    assert request(system=[text("A", cache_control={"type": "ephemeral"}), text("B")]).instructions == "A\n\nB"


def test_a_line_for_billing_is_not_said_so_that_prompts_keep_their_prefix() -> None:
    found = asked(system=[text("x-anthropic-billing-header: cc_version=2.1; cch=8f3;"), text("You code.")])
    assert found.decoded.request.instructions == "You code."
    assert found.decoded.ignored == ["system[0]"]


def test_cache_control_is_named_wherever_it_stands() -> None:
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    found = asked(
        system=[text("A", **mark)],
        messages=[turn("user", text("hi", **mark))],
        tools=[{"name": "f", "input_schema": {"type": "object"}, **mark}],
        context_management={"edits": []},
    )
    assert sorted(found.decoded.ignored) == [
        "context_management", "messages[0].content[0].cache_control", "system[0].cache_control",
        "tools[0].cache_control",
    ]  # fmt: skip


def test_images_become_data_urls_or_stay_urls() -> None:
    data = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}
    link = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
    (message,) = items(turn("user", text("see"), data, link))
    assert [part.get("image_url") for part in message["content"]] == [
        None, "data:image/png;base64,QUJD", "https://x/y.png",
    ]  # fmt: skip


def test_documents_become_files_or_their_text() -> None:
    sources = [
        {"type": "base64", "media_type": "application/pdf", "data": "QUJD"},
        {"type": "text", "media_type": "text/plain", "data": "Once."},
        {"type": "content", "content": "Twice."},
        {"type": "content", "content": [text("Thrice.")]},
        {"type": "url", "url": "https://x/y.pdf"},
        {"type": "file", "file_id": "file_1"},
    ]
    blocks = [{"type": "document", "source": source} for source in sources]
    (message,) = items(turn("user", *blocks))
    parts = [
        {name: held for name, held in part.items() if name not in ("type", "detail")} for part in message["content"]
    ]
    assert parts == [
        {"file_data": "data:application/pdf;base64,QUJD"}, {"text": '<file name="document">\nOnce.\n</file>'},
        {"text": '<file name="document">\nTwice.\n</file>'}, {"text": "Thrice."},
        {"file_url": "https://x/y.pdf"}, {"file_id": "file_1"},
    ]  # fmt: skip


def test_a_document_has_its_title_and_its_context_comes_before_it() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "Once."}
    block = {"type": "document", "source": source, "title": "Tale", "context": "Old.", "citations": {"enabled": False}}
    (message,) = items(turn("user", block))
    assert [part["text"] for part in message["content"]] == ["Old.", '<file name="Tale">\nOnce.\n</file>']


def test_a_search_result_is_told_as_text() -> None:
    found = {"type": "search_result", "source": "https://x", "title": "X", "content": [text("a"), text("b")]}
    (message,) = items(turn("user", found))
    assert message["content"][0]["text"] == "X\nhttps://x\na\nb"


def test_a_result_may_be_nothing_a_text_or_blocks_and_says_that_it_failed() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}

    def output(**more: Any) -> Any:
        return items(turn("user", text("x")), turn("assistant", USE), turn("user", {**RESULT, **more}))[-1]["output"]

    assert output() == ""
    assert output(content="42", is_error=False) == "42"
    assert output(content="oh", is_error=True) == "[The tool failed.]\noh"
    assert [part["type"] for part in output(content=[text("a"), image])] == ["input_text", "input_image"]
    assert [part.get("text") for part in output(content=[text("a")], is_error=True)] == ["[The tool failed.]\n", "a"]


def test_a_thought_of_ours_comes_back_as_it_went_out_or_not_at_all() -> None:
    def thinking(thought: str, signature: str) -> list[Any]:
        block = {"type": "thinking", "thinking": thought, "signature": signature}
        return items(turn("user", text("x")), turn("assistant", block, text("y")))

    assert len(thinking("hm", sign("hm"))) == 3
    assert len(thinking("hm", "ErUBCkYIBRgCIkD…")) == 3  # of somebody else
    assert len(thinking("", sign(""))) == 2  # it was not shown
    with pytest.raises(InvalidValue, match=r"messages\[1\].content\[0\]|was changed") as caught:
        thinking("HM", sign("hm"))
    assert caught.value.param == "messages[1].content[0]"


def test_a_redacted_thought_says_nothing_and_is_named() -> None:
    found = asked(messages=[*HI, turn("assistant", {"type": "redacted_thinking", "data": "x"}, text("y")), *HI])
    assert len(found.decoded.request.input) == 3
    assert found.decoded.ignored == ["messages[1].content[0]"]


def test_tools_are_functions() -> None:
    tool = {"name": "f", "description": "F.", "input_schema": {"type": "object"}, "strict": True}
    for kind in ({}, {"type": None}, {"type": "custom"}):
        (found,) = request(tools=[{**tool, **kind}]).tools
        assert msgspec.to_builtins(found) == {
            "type": "function", "name": "f", "description": "F.", "parameters": {"type": "object"}, "strict": True,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("choice", "expected"),
    [({"type": "auto"}, "auto"), ({"type": "any"}, "required"), ({"type": "none"}, "none"), (None, "auto")],
)
def test_tool_choices_have_their_counterparts(choice: Any, expected: str) -> None:
    found = request(tool_choice=choice)
    assert (found.tool_choice, found.parallel_tool_calls) == (expected, True)


def test_a_named_tool_is_chosen_and_parallel_calls_can_be_switched_off() -> None:
    found = request(tool_choice={"type": "tool", "name": "f", "disable_parallel_tool_use": True})
    assert msgspec.to_builtins(found.tool_choice) == {"type": "function", "name": "f"}
    assert found.parallel_tool_calls is False


@pytest.mark.parametrize(
    ("thinking", "effort"),
    [
        (None, None),
        ({"type": "adaptive"}, None),
        ({"type": "disabled"}, "none"),
        ({"type": "enabled", "budget_tokens": 1024}, "low"),
        ({"type": "enabled", "budget_tokens": 10_000}, "medium"),
        ({"type": "enabled", "budget_tokens": 31_999}, "high"),
    ],
)
def test_a_budget_for_thinking_is_an_effort(thinking: Any, effort: str | None) -> None:
    assert request(thinking=thinking).reasoning.effort == effort


def test_an_effort_is_a_hint_unless_thinking_is_switched_on_or_off() -> None:
    wish = {"output_config": {"effort": "xhigh"}}
    assert (asked(**wish).effort, request(**wish).reasoning.effort) == ("xhigh", None)
    assert asked(**wish, thinking={"type": "adaptive"}).effort == "xhigh"
    enabled = asked(**wish, thinking={"type": "enabled", "budget_tokens": 2000})
    assert (enabled.effort, enabled.decoded.request.reasoning.effort) == (None, "xhigh")
    disabled = asked(**wish, thinking={"type": "disabled"})
    assert (disabled.decoded.request.reasoning.effort, disabled.decoded.ignored) == ("none", ["output_config.effort"])


@pytest.mark.parametrize("where", ["output_format", "output_config"])
def test_a_schema_holds_the_answer(where: str) -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    found = request(**{where: form if where == "output_format" else {"format": form}}).text.format
    assert isinstance(found, JsonSchemaFormat)
    assert (found.schema, found.strict) == ({"type": "object"}, True)


def test_sampling_keeps_its_numbers() -> None:
    found = asked(
        temperature=0, top_p=0.5, top_k=3, stop_sequences=["a"], metadata={"user_id": "u"}, service_tier="standard_only"
    )
    made = found.decoded.request
    assert (made.max_output_tokens, made.temperature, made.top_p, made.top_k, made.stop) == (9, 0, 0.5, 3, ["a"])
    assert (made.user, made.service_tier, found.stops) == ("u", "default", ("a",))
    assert {"temperature", "top_p", "top_k", "stop", "max_output_tokens"} <= found.decoded.sent
    assert request(top_k=0, stop_sequences=[]).stop is None


def test_a_count_needs_no_max_tokens_and_may_end_with_an_assistant() -> None:
    body = {"model": "m", "messages": [*HI, turn("assistant", text("yes"))]}
    assert len(read_count(json.dumps(body).encode(), Limits()).decoded.request.input) == 2


BAD: list[tuple[dict[str, Any], str, type[BadRequest]]] = [
    ({"max_tokens": None}, "max_tokens", MissingParameter),
    ({"max_tokens": 0}, "max_tokens", InvalidValue),
    ({"messages": []}, "messages", MissingParameter),
    ({"messages": [*HI, turn("assistant", text("Sure"))]}, "messages[1]", UnsupportedParameter),
    ({"messages": [turn("user", {"type": "server_tool_use"})]}, "messages[0].content[0].type", InvalidValue),
    ({"messages": [turn("user", USE)]}, "messages[0].content[0]", InvalidValue),
    ({"messages": [turn("system", USE)]}, "messages[0].content[0]", InvalidValue),
    ({"messages": [turn("robot", text("x"))]}, "messages[0].role", InvalidValue),
    ({"container": "c_1"}, "container", UnsupportedParameter),
    ({"mcp_servers": [{"type": "url", "url": "https://x"}]}, "mcp_servers", UnsupportedParameter),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type", UnsupportedParameter),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema", MissingParameter),
    ({"tools": [{"name": "f g", "input_schema": {}}]}, "tools[0].name", InvalidValue),
    ({"tools": [{"name": "f", "input_schema": {"$ref": "http://x"}}]}, "tools[0].input_schema", BadRequest),
    ({"tools": [{"name": "f", "input_schema": {"type": "string"}}]}, "tools[0].input_schema.type", InvalidValue),
    ({"tools": [{"name": "f", "input_schema": {"type": ["null"]}}]}, "tools[0].input_schema.type", InvalidValue),
    ({"tool_choice": {"type": "some"}}, "tool_choice.type", InvalidValue),
    ({"thinking": {"type": "between_tools"}}, "thinking.type", InvalidValue),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens", MissingParameter),
    ({"temperature": 3}, "temperature", InvalidValue),
    ({"stop_sequences": ["a", "b", "c", "d", "e"]}, "stop_sequences", InvalidValue),
    ({"metadata": {"user_id": "u" * 600}}, "metadata.user_id", InvalidValue),
    ({"output_config": {"format": {"schema": {"type": 3}}}}, "output_config.format.schema", BadRequest),
    ({"output_format": {"schema": {"type": 3}}}, "output_format.schema", BadRequest),
]  # fmt: skip


@pytest.mark.parametrize(("body", "param", "kind"), BAD)
def test_what_is_wrong_is_named_as_this_api_names_it(body: dict[str, Any], param: str, kind: type[BadRequest]) -> None:
    with pytest.raises(kind) as caught:
        asked(**body)
    assert (caught.value.param or "").startswith(param)
    assert param in problem(caught.value, "").error.message  # there is no other place for it


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("input", "messages"),
        ("input[0]", "messages[0]"),
        ("input[0].content[1]", "messages[0].content[1]"),
        ("input[0].content[1].image_url", "messages[0].content[1].source"),
        ("input[1].call_id", "messages[1].content[0].id"),
        ("input[2].call_id", "messages[2].content[0].tool_use_id"),
        ("input[2].output[1]", "messages[2].content[0].content[1]"),
        ("input[3]", "messages[2]"),
        ("input[99]", "messages"),
        ("max_output_tokens", "max_tokens"),
        ("text.format.schema.properties", "output_config.format.schema.properties"),
        ("tools[2].parameters.properties.x", "tools[2].input_schema.properties.x"),
        ("reasoning.effort", "output_config.effort"),
        ("temperature", "temperature"),
    ],
)
def test_errors_of_the_shared_path_get_the_names_of_this_api(ours: str, theirs: str) -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
    names = asked(
        messages=[
            turn("user", text("a"), image),
            turn("assistant", USE),
            turn("user", {**RESULT, "content": [text("x"), image]}, text("b")),
        ]
    ).names
    error = InvalidValue(f"Invalid value for '{ours}'.", param=ours)
    told = names.told(error)
    assert (told.param, told.message) == (theirs, f"Invalid value for '{theirs}'.")
    assert names.told(AntiphonError("No.")).message == "No."
    assert (error.param, type(told)) == (ours, InvalidValue)  # others may share it


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("This server keeps no files yet: send what it holds as image_url.", "send what it holds as base64."),
        ("This server keeps no files yet: send what it holds as file_data.", "send what it holds as base64."),
        ("The call_id 'toolu_1' is used twice.", "The id 'toolu_1' is used twice."),
    ],
)
def test_sentences_have_the_words_of_this_api(ours: str, theirs: str) -> None:
    told = asked().names.told(InvalidValue(ours, param="input[0]"))
    assert told.message.endswith(theirs)


def test_an_error_that_does_not_name_its_field_begins_with_it() -> None:
    told = asked().names.told(
        UnsupportedParameter("The model takes no input_image parts.", param="input[0].content[0]")
    )
    assert problem(told, "").error.message == "messages[0].content[0]: The model takes no image blocks."
