"""Translation of Anthropic Messages requests to Responses requests, and of errors back to Anthropic's parameter
names.

Covers `core/dialects/anthropic_items.py`, `core/dialects/translation.py` and `protocol/decoding/dialect_codecs.py`.
"""

import json
import tracemalloc
from typing import Any

import msgspec
import pytest

from antiphon.core.dialects.anthropic_items import sign_thinking
from antiphon.core.dialects.anthropic_request import AnthropicRequest, read_count, read_message
from antiphon.errors import AntiphonError, BadRequest, InvalidValue, MissingParameter, UnsupportedParameter
from antiphon.limits import Limits
from antiphon.protocol.types.anthropic.events import to_problem
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import JsonSchemaFormat

HI = [{"role": "user", "content": "hi"}]
USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": "é", "b": [1, None]}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1"}


def make_request(**body: Any) -> AnthropicRequest:
    full_body = {"model": "m", "max_tokens": 9, "messages": HI, **body}
    return read_message(json.dumps(full_body).encode(), Limits())


def translate(**body: Any) -> CreateResponse:
    return make_request(**body).decoded.request


def translate_items(*messages: Any) -> list[Any]:
    """Translate the messages and return their items as JSON, without unset fields."""
    found: list[Any] = msgspec.to_builtins(translate(messages=[*messages, *HI]).input[:-1])
    return found


def make_turn(role: str, *blocks: Any) -> dict[str, Any]:
    return {"role": role, "content": [*blocks]}


def make_text(content: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": content, **more}


def test_a_string_and_a_text_block_are_equivalent() -> None:
    assert translate(messages=HI).input == translate(messages=[make_turn("user", make_text("hi"))]).input


def test_an_empty_list_of_blocks_is_an_empty_message() -> None:
    found = translate_items(make_turn("user"), make_turn("assistant"))
    assert [(item["role"], item["content"]) for item in found] == [("user", []), ("assistant", [])]


def test_a_conversation_becomes_items_in_order() -> None:
    found = translate_items(
        make_turn("user", make_text("a"), make_text("b")),
        make_turn("assistant", {"type": "thinking", "thinking": "hm", "signature": "x"}, make_text("so"), USE),
        make_turn("user", {**RESULT, "content": "42"}, make_text("and?")),
        make_turn("system", make_text("Be brief.")),
    )
    assert [item["type"] for item in found] == [
        "message", "reasoning", "message", "function_call", "function_call_output", "message", "message",
    ]  # fmt: skip
    assert [part["text"] for part in found[0]["content"]] == ["a", "b"]
    assert found[1]["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert found[2]["content"][0]["type"] == "output_text"
    assert (found[3]["call_id"], found[3]["arguments"]) == ("toolu_1", '{"a": "é", "b": [1, null]}')
    assert (found[4]["call_id"], found[4]["output"]) == ("toolu_1", "42")
    assert found[6]["role"] == "system"


def test_system_blocks_become_instructions() -> None:
    assert translate(system="Be kind.").instructions == "Be kind."
    assert (
        translate(system=[make_text("A", cache_control={"type": "ephemeral"}), make_text("B")]).instructions == "A\n\nB"
    )


def test_the_billing_header_is_dropped_so_that_prompt_prefixes_stay_equal() -> None:
    found = make_request(
        system=[make_text("x-anthropic-billing-header: cc_version=2.1; cch=8f3;"), make_text("You code.")]
    )
    assert found.decoded.request.instructions == "You code."
    assert found.decoded.ignored == ["system[0]"]


def test_cache_control_is_reported_as_ignored_wherever_it_appears() -> None:
    cached = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    found = make_request(
        system=[make_text("A", **cached)],
        messages=[make_turn("user", make_text("hi", **cached))],
        tools=[{"name": "f", "input_schema": {"type": "object"}, **cached}],
        context_management={"edits": []},
    )
    assert sorted(found.decoded.ignored) == [
        "context_management", "messages[0].content[0].cache_control", "system[0].cache_control",
        "tools[0].cache_control",
    ]  # fmt: skip


def test_images_become_data_urls_or_stay_urls() -> None:
    data = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}
    link = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
    (message,) = translate_items(make_turn("user", make_text("see"), data, link))
    assert [part.get("image_url") for part in message["content"]] == [
        None, "data:image/png;base64,QUJD", "https://x/y.png",
    ]  # fmt: skip


def test_documents_become_files_or_text() -> None:
    sources = [
        {"type": "base64", "media_type": "application/pdf", "data": "QUJD"},
        {"type": "text", "media_type": "text/plain", "data": "Once."},
        {"type": "content", "content": "Twice."},
        {"type": "content", "content": [make_text("Thrice.")]},
        {"type": "url", "url": "https://x/y.pdf"},
        {"type": "file", "file_id": "file_1"},
    ]
    blocks = [{"type": "document", "source": source} for source in sources]
    (message,) = translate_items(make_turn("user", *blocks))
    parts = [
        {name: value for name, value in part.items() if name not in ("type", "detail")} for part in message["content"]
    ]
    assert parts == [
        {"file_data": "data:application/pdf;base64,QUJD"}, {"text": '<file name="document">\nOnce.\n</file>'},
        {"text": '<file name="document">\nTwice.\n</file>'}, {"text": "Thrice."},
        {"file_url": "https://x/y.pdf"}, {"file_id": "file_1"},
    ]  # fmt: skip


def test_a_document_has_its_title_and_follows_its_context() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "Once."}
    block = {"type": "document", "source": source, "title": "Tale", "context": "Old.", "citations": {"enabled": False}}
    (message,) = translate_items(make_turn("user", block))
    assert [part["text"] for part in message["content"]] == ["Old.", '<file name="Tale">\nOnce.\n</file>']


def test_a_search_result_becomes_text() -> None:
    found = {"type": "search_result", "source": "https://x", "title": "X", "content": [make_text("a"), make_text("b")]}
    (message,) = translate_items(make_turn("user", found))
    assert message["content"][0]["text"] == "X\nhttps://x\na\nb"


def test_a_tool_result_may_be_empty_text_or_blocks_and_states_a_failure() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}

    def output(**more: Any) -> Any:
        return translate_items(
            make_turn("user", make_text("x")), make_turn("assistant", USE), make_turn("user", {**RESULT, **more})
        )[-1]["output"]

    assert output() == ""
    assert output(content="42", is_error=False) == "42"
    assert output(content="oh", is_error=True) == "[The tool failed.]\noh"
    assert [part["type"] for part in output(content=[make_text("a"), image])] == ["input_text", "input_image"]
    assert [part.get("text") for part in output(content=[make_text("a")], is_error=True)] == [
        "[The tool failed.]\n",
        "a",
    ]


def test_signed_thinking_is_accepted_unmodified_and_rejected_modified() -> None:
    def thinking(thinking_text: str, signature: str) -> list[Any]:
        block = {"type": "thinking", "thinking": thinking_text, "signature": signature}
        return translate_items(make_turn("user", make_text("x")), make_turn("assistant", block, make_text("y")))

    assert len(thinking("hm", sign_thinking("hm"))) == 3
    assert len(thinking("hm", "ErUBCkYIBRgCIkD…")) == 3  # signature of another provider
    assert len(thinking("", sign_thinking(""))) == 2  # thinking that was omitted from the response
    with pytest.raises(InvalidValue, match=r"messages\[1\].content\[0\]|was modified") as caught:
        thinking("HM", sign_thinking("hm"))
    assert caught.value.param == "messages[1].content[0]"


def test_redacted_thinking_is_dropped_and_reported_as_ignored() -> None:
    found = make_request(
        messages=[*HI, make_turn("assistant", {"type": "redacted_thinking", "data": "x"}, make_text("y")), *HI]
    )
    assert len(found.decoded.request.input) == 3
    assert found.decoded.ignored == ["messages[1].content[0]"]


def test_tools_become_functions() -> None:
    tool = {"name": "f", "description": "F.", "input_schema": {"type": "object"}, "strict": True}
    for kind in ({}, {"type": None}, {"type": "custom"}):
        (found,) = translate(tools=[{**tool, **kind}]).tools
        assert msgspec.to_builtins(found) == {
            "type": "function", "name": "f", "description": "F.", "parameters": {"type": "object"}, "strict": True,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("choice", "expected"),
    [({"type": "auto"}, "auto"), ({"type": "any"}, "required"), ({"type": "none"}, "none"), (None, "auto")],
)
def test_tool_choices_are_translated(choice: Any, expected: str) -> None:
    found = translate(tool_choice=choice)
    assert (found.tool_choice, found.parallel_tool_calls) == (expected, True)


def test_a_tool_can_be_named_and_parallel_calls_can_be_disabled() -> None:
    found = translate(tool_choice={"type": "tool", "name": "f", "disable_parallel_tool_use": True})
    assert msgspec.to_builtins(found.tool_choice) == {"type": "function", "name": "f"}
    assert found.parallel_tool_calls is False


@pytest.mark.parametrize(
    ("thinking", "effort"),
    [
        (None, None),
        ({"type": "adaptive"}, None),
        ({"type": "disabled"}, "none"),
        ({"type": "enabled", "budget_tokens": 1024}, "low"),
        ({"type": "enabled", "budget_tokens": 4096}, "low"),
        ({"type": "enabled", "budget_tokens": 4097}, "medium"),
        ({"type": "enabled", "budget_tokens": 16_384}, "medium"),
        ({"type": "enabled", "budget_tokens": 31_999}, "high"),
    ],
)
def test_a_thinking_budget_becomes_an_effort(thinking: Any, effort: str | None) -> None:
    assert translate(thinking=thinking).reasoning.effort == effort


def test_an_effort_is_a_hint_unless_thinking_is_switched_on_or_off() -> None:
    fields = {"output_config": {"effort": "xhigh"}}
    assert (make_request(**fields).effort, translate(**fields).reasoning.effort) == ("xhigh", None)
    assert make_request(**fields, thinking={"type": "adaptive"}).effort == "xhigh"
    enabled = make_request(**fields, thinking={"type": "enabled", "budget_tokens": 2000})
    assert (enabled.effort, enabled.decoded.request.reasoning.effort) == (None, "xhigh")
    disabled = make_request(**fields, thinking={"type": "disabled"})
    assert (disabled.decoded.request.reasoning.effort, disabled.decoded.ignored) == ("none", ["output_config.effort"])


@pytest.mark.parametrize("where", ["output_format", "output_config"])
def test_a_schema_becomes_a_strict_output_format(where: str) -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    found = translate(**{where: form if where == "output_format" else {"format": form}}).text.format
    assert isinstance(found, JsonSchemaFormat)
    assert (found.schema, found.strict) == ({"type": "object"}, True)


def test_sampling_parameters_are_carried_over() -> None:
    found = make_request(
        temperature=0, top_p=0.5, top_k=3, stop_sequences=["a"], metadata={"user_id": "u"}, service_tier="standard_only"
    )
    made = found.decoded.request
    assert (made.max_output_tokens, made.temperature, made.top_p, made.top_k, made.stop) == (9, 0, 0.5, 3, ["a"])
    assert (made.user, made.service_tier, found.stop_sequences) == ("u", "default", ("a",))
    assert {"temperature", "top_p", "top_k", "stop", "max_output_tokens"} <= found.decoded.sent
    assert translate(top_k=0, stop_sequences=[]).stop is None


def test_a_count_request_needs_no_max_tokens_and_may_end_with_an_assistant_turn() -> None:
    body = {"model": "m", "messages": [*HI, make_turn("assistant", make_text("yes"))]}
    assert len(read_count(json.dumps(body).encode(), Limits()).decoded.request.input) == 2


CITING = {"citations": {"enabled": True}}
DOCUMENT = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}, **CITING}
FOUND = {"type": "search_result", "source": "https://x", "title": "X", "content": [make_text("a")], **CITING}
INVALID: list[tuple[dict[str, Any], str, type[BadRequest]]] = [
    ({"max_tokens": None}, "max_tokens", MissingParameter),
    ({"max_tokens": 0}, "max_tokens", InvalidValue),
    ({"messages": []}, "messages", MissingParameter),
    ({"messages": [*HI, make_turn("assistant", make_text("Sure"))]}, "messages[1]", UnsupportedParameter),
    ({"messages": [make_turn("user", {"type": "server_tool_use"})]}, "messages[0].content[0].type", InvalidValue),
    ({"messages": [make_turn("user", USE)]}, "messages[0].content[0]", InvalidValue),
    ({"messages": [make_turn("system", USE)]}, "messages[0].content[0]", InvalidValue),
    ({"messages": [make_turn("robot", make_text("x"))]}, "messages[0].role", InvalidValue),
    ({"messages": [make_turn("user", DOCUMENT)]}, "messages[0].content[0].citations", UnsupportedParameter),
    ({"messages": [make_turn("user", FOUND)]}, "messages[0].content[0].citations", UnsupportedParameter),
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


@pytest.mark.parametrize(("body", "param", "kind"), INVALID)
def test_invalid_fields_are_rejected_with_their_anthropic_names(
    body: dict[str, Any], param: str, kind: type[BadRequest]
) -> None:
    with pytest.raises(kind) as caught:
        make_request(**body)
    assert (caught.value.param or "").startswith(param)
    assert param in to_problem(caught.value, "").error.message  # Anthropic errors have no field for the parameter


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
def test_shared_errors_are_translated_to_anthropic_parameter_names(ours: str, theirs: str) -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
    names = make_request(
        messages=[
            make_turn("user", make_text("a"), image),
            make_turn("assistant", USE),
            make_turn("user", {**RESULT, "content": [make_text("x"), image]}, make_text("b")),
        ]
    ).names
    error = InvalidValue(f"Invalid value for '{ours}'.", param=ours)
    translated = names.translate_error(error)
    assert (translated.param, translated.message) == (theirs, f"Invalid value for '{theirs}'.")
    assert names.translate_error(AntiphonError("No.")).message == "No."
    assert (error.param, type(translated)) == (
        ours,
        InvalidValue,
    )  # the original error may be shared and must not change


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("This server keeps no files yet: send what it holds as image_url.", "send what it holds as base64."),
        ("This server keeps no files yet: send what it holds as file_data.", "send what it holds as base64."),
        ("The call_id 'toolu_1' is used twice.", "The id 'toolu_1' is used twice."),
    ],
)
def test_error_messages_use_the_terms_of_anthropic(ours: str, theirs: str) -> None:
    translated = make_request().names.translate_error(InvalidValue(ours, param="input[0]"))
    assert translated.message.endswith(theirs)


def test_large_images_are_held_once() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "A" * 1_000_000}
    message = make_turn("user", *[{"type": "image", "source": source}] * 5)
    body = json.dumps({"model": "m", "max_tokens": 9, "messages": [message]}).encode()
    tracemalloc.start()
    try:
        request = read_message(body, Limits())
        assert tracemalloc.get_traced_memory()[1] < 7_000_000  # all of them, and the one that is translated
    finally:
        tracemalloc.stop()
    [item] = msgspec.to_builtins(request.decoded.request.input)
    assert len(item["content"]) == 5


def test_an_error_message_without_its_field_is_prefixed_with_it() -> None:
    translated = make_request().names.translate_error(
        UnsupportedParameter("The model takes no input_image parts.", param="input[0].content[0]")
    )
    assert to_problem(translated, "").error.message == "messages[0].content[0]: The model takes no image blocks."
