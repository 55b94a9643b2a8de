"""Request bodies: nothing leaks between requests, and parts that are encoded already are copied."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from antiphon.core.data_urls import Correction
from antiphon.core.prompt import ChatPrompt, GenerationRequest, Grammar, JsonObject, JsonSchema, Sampling, TokenPrompt
from antiphon.engines.http.adapters.llamacpp_server import LlamaCppServer
from antiphon.engines.http.adapters.ollama import Ollama
from antiphon.engines.http.adapters.sglang import Sglang
from antiphon.engines.http.adapters.vllm import Vllm
from antiphon.engines.http.body import ChatBody, FieldNames, RawBody
from antiphon.errors import UnsupportedParameter

CHAT = ChatPrompt(({"role": "user", "content": "hi"},))
REASONING_MESSAGE = {"role": "assistant", "content": "", "reasoning_content": "Hm."}
TOOLS = tuple({"type": "function", "function": {"name": name, "parameters": {}}} for name in ("look", "hear"))
NAMED_CHOICE = {"type": "function", "function": {"name": "look"}}


def build_fields(body: ChatBody | RawBody, **fields: Any) -> dict[str, Any]:
    request = GenerationRequest(**{"model": "m", "prompt": CHAT, **fields})
    made: dict[str, Any] = msgspec.json.decode(body.build(request, stream=False))
    return made


def make_builder() -> ChatBody:
    return ChatBody(FieldNames("vllm", Vllm.chat_column()), {"more": 1})


def encode_raw(value: Any) -> Any:
    return msgspec.Raw(msgspec.json.encode(value))


def test_a_constraint_is_not_sent_with_the_next_request() -> None:
    body = RawBody(
        FieldNames("sglang", Sglang.raw_column()), {}, text_field="text", ids_field="input_ids", sends_model=False
    )
    sampling, prompt = Sampling(temperature=0.5), TokenPrompt((1, 2))
    alone = build_fields(body, sampling=sampling, prompt=prompt)
    guided = build_fields(body, sampling=sampling, prompt=prompt, constraint=Grammar("regex", "a+"))
    assert alone["sampling_params"] == {"temperature": 0.5}
    assert guided["sampling_params"] == {"temperature": 0.5, "regex": "a+"}
    assert build_fields(body, sampling=sampling, prompt=prompt) == alone


def test_an_empty_user_message_keeps_the_engine_from_continuing_the_last_message() -> None:
    """llama.cpp's server continues a last assistant message, and repeats it first if unstreamed, but not in a
    stream.
    """
    field_names = FieldNames("llamacpp-server", LlamaCppServer.chat_column())
    body = ChatBody(
        field_names, {}, continues_assistant=LlamaCppServer.continues_assistant and Ollama.continues_assistant
    )
    conversation = ({"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello"})
    empty_message = {"role": "user", "content": ""}
    for messages, expected in [
        (conversation, [*conversation, empty_message]),
        (CHAT.messages, [*CHAT.messages]),
        ((*CHAT.messages, REASONING_MESSAGE), [*CHAT.messages, REASONING_MESSAGE, empty_message]),
    ]:
        prompt = ChatPrompt(messages)
        assert build_fields(body, prompt=prompt, sampling=Sampling())["messages"] == expected
        assert [*body.to_messages(prompt)] == expected  # the messages whose tokens are counted
    assert build_fields(ChatBody(field_names, {}), prompt=ChatPrompt(conversation), sampling=Sampling())[
        "messages"
    ] == [*conversation]


FIELD_VALUES: dict[str, list[Any]] = {
    "model": ["m", 'an "m"'],
    "prompt": [
        CHAT,
        ChatPrompt(({"role": "user", "content": "é\n"}, REASONING_MESSAGE)),
        *[ChatPrompt(CHAT.messages, template_kwargs={"enable_thinking": answer}) for answer in (False, 0, 0.0)],
        ChatPrompt(CHAT.messages, TOOLS, parallel_tool_calls=False),
        *[ChatPrompt(CHAT.messages, TOOLS, choice) for choice in ("auto", "required", NAMED_CHOICE)],
        *[ChatPrompt(CHAT.messages, tools) for tools in (TOOLS[:1], TOOLS[1:])],
    ],
    "sampling": [Sampling(temperature=0.5), Sampling(max_tokens=9)],
    "effort": [None, "low", "high"],
    "constraint": [None, JsonObject(), JsonSchema({"type": "object"}), JsonSchema({"type": "object"}, "other")],
    "cache_key": [None, "k", "l"],
    "salt": [None, "s", "t"],
    "priority": [None, 0, 1],
    "request_id": [None, "r"],
}
REQUESTS = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in FIELD_VALUES.items()})


@given(field_sets=st.lists(REQUESTS, max_size=9), stream=st.booleans())
def test_a_body_does_not_depend_on_earlier_requests(field_sets: list[dict[str, Any]], stream: bool) -> None:
    builder = make_builder()
    for request in [GenerationRequest(**fields) for fields in field_sets]:
        made = builder.build(request, stream=stream)
        assert made == make_builder().build(request, stream=stream)
        assert [*msgspec.json.decode(made)][:3] == ["model", "messages", "stream"]


@given(fields=REQUESTS, stream=st.booleans())
def test_parts_that_are_encoded_already_are_copied_into_the_body(fields: dict[str, Any], stream: bool) -> None:
    request = GenerationRequest(**fields)
    prompt, constraint = fields["prompt"], request.constraint
    messages = tuple({**message, "content": encode_raw(message["content"])} for message in prompt.messages)
    if isinstance(constraint, JsonSchema):
        constraint = replace(constraint, schema=encode_raw(constraint.schema))
    tools = encode_raw(prompt.tools) if prompt.tools else ()
    encoded = replace(request, prompt=replace(prompt, messages=messages, tools=tools), constraint=constraint)
    assert make_builder().build(encoded, stream=stream) == make_builder().build(request, stream=stream)


def test_an_engine_without_tool_choice_gets_the_chosen_tool_of_encoded_tools() -> None:
    body = ChatBody(FieldNames("ollama", Ollama.chat_column()), {})
    for tools in (TOOLS, tuple(map(encode_raw, TOOLS)), encode_raw(TOOLS)):
        prompt = ChatPrompt(CHAT.messages, tools, NAMED_CHOICE)
        assert build_fields(body, prompt=prompt, sampling=Sampling())["tools"] == [TOOLS[0]]


@pytest.mark.parametrize("url", ["http://internal/", "file:///etc/passwd"])
def test_only_data_urls_are_sent_as_images_encoded_or_not(url: str) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    for content in ([part], [encode_raw(part)], encode_raw([part])):
        with pytest.raises(UnsupportedParameter, match="data URLs"):
            build_fields(
                make_builder(), prompt=ChatPrompt(({"role": "user", "content": content},)), sampling=Sampling()
            )


def test_a_large_image_is_corrected_in_the_body_alone() -> None:
    text, image = encode_raw({"type": "text", "text": "Look"}), {"url": "data:image/jpg;base64,AAAA", "detail": "low"}
    part = {"type": "image_url", "image_url": image, "correction": Correction("image/jpeg", decodes=False)}
    prompt = ChatPrompt(({"role": "user", "content": [text, part]},))
    sent = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,AAAA", "detail": "low"}}
    assert build_fields(make_builder(), sampling=Sampling(), prompt=prompt)["messages"][0]["content"][1] == sent
    assert part["image_url"] is image
