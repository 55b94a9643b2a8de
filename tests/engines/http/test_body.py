"""Caches of the request body builders: nothing leaks between requests, cached bodies equal new ones, sizes are
bounded.
"""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from antiphon.core.prompt import ChatPrompt, GenerationRequest, Grammar, JsonObject, JsonSchema, Sampling, TokenPrompt
from antiphon.engines.http.adapters.llamacpp_server import LlamaCppServer
from antiphon.engines.http.adapters.ollama import Ollama
from antiphon.engines.http.body import ChatBody, FieldNames, RawBody
from antiphon.engines.http.fields import column, raw_column

CHAT = ChatPrompt(({"role": "user", "content": "hi"},))
REASONING_MESSAGE = {"role": "assistant", "content": "", "reasoning_content": "Hm."}
TOOLS = tuple({"type": "function", "function": {"name": name, "parameters": {}}} for name in ("look", "hear"))
NAMED_CHOICE = {"type": "function", "function": {"name": "look"}}


def build_fields(body: ChatBody | RawBody, **fields: Any) -> dict[str, Any]:
    request = GenerationRequest(**{"model": "m", "prompt": CHAT, **fields})
    made: dict[str, Any] = msgspec.json.decode(body.build(request, stream=False))
    return made


def test_a_constraint_beside_a_cached_sampling_is_not_sent_with_the_next_request() -> None:
    body = RawBody(
        FieldNames("sglang", raw_column("sglang")), {}, text_field="text", ids_field="input_ids", sends_model=False
    )
    sampling, prompt = Sampling(temperature=0.5), TokenPrompt((1, 2))
    alone = build_fields(body, sampling=sampling, prompt=prompt)
    guided = build_fields(body, sampling=sampling, prompt=prompt, constraint=Grammar("regex", "a+"))
    assert alone["sampling_params"] == {"temperature": 0.5}
    assert guided["sampling_params"] == {"temperature": 0.5, "regex": "a+"}
    assert build_fields(body, sampling=sampling, prompt=prompt) == alone


def test_a_sampling_is_never_confused_with_an_earlier_one() -> None:
    body = ChatBody(FieldNames("vllm", column("vllm")), {})
    for max_tokens in range(1, 1000):
        assert build_fields(body, sampling=Sampling(max_tokens=max_tokens))["max_completion_tokens"] == max_tokens


def test_an_empty_user_message_keeps_the_engine_from_continuing_the_last_message() -> None:
    """llama.cpp's server continues a last assistant message, and repeats it first if unstreamed, but not in a
    stream.
    """
    field_names = FieldNames("llamacpp-server", column("llamacpp-server"))
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
def test_cached_templates_build_the_same_bodies_as_new_ones(field_sets: list[dict[str, Any]], stream: bool) -> None:
    def make_builder() -> ChatBody:
        return ChatBody(FieldNames("vllm", column("vllm")), {"more": 1})

    builder = make_builder()
    for request in [GenerationRequest(**fields) for fields in field_sets for _ in range(2)]:
        made = builder.build(request, stream=stream)
        assert made == make_builder().build(request, stream=stream)
        assert [*msgspec.json.decode(made)][:3] == ["model", "messages", "stream"]


def test_messages_and_long_templates_are_not_cached() -> None:
    body, sampling = ChatBody(FieldNames("vllm", column("vllm")), {}), Sampling()
    for tools in (TOOLS, tuple({**tool, "description": "x" * 40_000} for tool in TOOLS)):
        build_fields(body, sampling=sampling, prompt=ChatPrompt(CHAT.messages, tools))
    [(_, template)] = vars(body)["_templates"][False].values()
    assert template.tools is TOOLS
    assert CHAT.messages not in msgspec.structs.astuple(template)


def test_the_template_cache_is_bounded_in_bytes() -> None:
    body = ChatBody(FieldNames("vllm", column("vllm")), {})
    for number in range(50):
        tools = ({**TOOLS[0], "description": "x" * 30_000},)
        build_fields(body, sampling=Sampling(max_tokens=number + 1), prompt=ChatPrompt(CHAT.messages, tools))
        assert (
            sum(len(template.before + template.after) for _, template in vars(body)["_templates"][False].values())
            <= 256 * 1024
        )


def test_the_caches_are_bounded_and_exclude_fields_of_unbounded_length() -> None:
    field_names = FieldNames("vllm", column("vllm"))
    body = ChatBody(field_names, {})
    for max_tokens in range(1, 1000):
        build_fields(body, sampling=Sampling(max_tokens=max_tokens))
    caches = [vars(field_names)["_sampling_cache"], vars(body)["_templates"][False]]
    for cache in caches:
        assert 0 < len(cache) <= 64
        cache.clear()
    for fields in ({"stop": ("x" * 1000,)}, {"stop_token_ids": (1,) * 1000}, {"logit_bias": {"1": 1.0}}):
        build_fields(body, sampling=Sampling(**fields))
    assert caches == [{}, {}]
