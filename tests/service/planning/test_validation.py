"""Every field of a request reaches the engine, is echoed, is reported as ignored, or is rejected; none is dropped
silently.
"""

from typing import Any, Literal

import msgspec
import pytest
from msgspec.structs import replace

from antiphon.engines.base import Capabilities
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import AntiphonError, InvalidValue, UnsupportedParameter
from antiphon.protocol.types.items import Reasoning
from antiphon.protocol.types.request import CreateResponse
from antiphon.protocol.types.response import Response
from tests.service.requests import (
    accept_request,
    close_source,
    create_response,
    make_responses,
    start_service,
    wait_for_response,
)

pytestmark = pytest.mark.anyio

Fate = Literal["engine", "echoed", "named", "refused", "stored"]
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
LONG = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "so it is " * 900},
    {"role": "user", "content": "b"},
]
MCP = {"type": "mcp", "server_label": "m", "server_url": "https://m.example"}

# The effect of each field: it reaches the engine, is echoed, is reported as ignored ("named"), or is rejected
# ("refused"). Fields that need a store ("stored") are rejected without one; `persistence/test_history_loader.py` and
# `persistence/test_response_writer.py` test them with a store.
FATES: dict[str, tuple[Any, Fate]] = {
    "model": ("other", "engine"),
    "input": ("ho", "engine"),
    "instructions": ("Be brief.", "engine"),
    "previous_response_id": ("resp_1", "stored"),
    "conversation": ("conv_1", "stored"),
    "prompt": ({"id": "pmpt_1"}, "refused"),
    "tools": ([TOOL], "engine"),
    "tool_choice": ("required", "engine"),
    "parallel_tool_calls": (False, "engine"),
    "max_tool_calls": (3, "echoed"),
    "text": ({"format": {"type": "json_object"}}, "engine"),
    "reasoning": ({"effort": "low"}, "engine"),
    "max_output_tokens": (99, "engine"),
    "temperature": (0.5, "engine"),
    "top_p": (0.9, "engine"),
    "top_logprobs": (2, "engine"),
    "truncation": ("auto", "echoed"),
    "include": (["message.output_text.logprobs"], "engine"),
    "background": (True, "stored"),
    "metadata": ({"a": "b"}, "echoed"),
    "service_tier": ("flex", "echoed"),
    "safety_identifier": ("me", "echoed"),
    "user": ("me", "echoed"),
    "prompt_cache_key": ("key", "engine"),
    "prompt_cache_retention": ("24h", "named"),
    "prompt_cache_options": ({"mode": "implicit"}, "named"),
    "context_management": ([{"type": "compaction", "compact_threshold": 1000}], "engine"),
    "moderation": ({"model": "m"}, "named"),
    "image": ({"context_compression": "enabled"}, "named"),
    "access_programs": ({"cyber": "standard"}, "named"),
    "multi_agent": ({"a": 1}, "refused"),
    "top_k": (5, "engine"),
    "min_p": (0.1, "engine"),
    "repetition_penalty": (1.1, "engine"),
    "frequency_penalty": (0.5, "engine"),
    "presence_penalty": (0.5, "engine"),
    "stop": (["x"], "engine"),
    "include_stop_str_in_output": (True, "engine"),
    "seed": (7, "engine"),
    "ignore_eos": (True, "engine"),
    "n": (2, "engine"),
    "best_of": (2, "refused"),
    "length_penalty": (0.5, "refused"),
    "skip_special_tokens": (False, "refused"),
    "chat_template_kwargs": ({"style": "x"}, "engine"),
    "logprobs": (True, "engine"),
    "num_assistant_tokens": (2, "refused"),
    "assistant_confidence_threshold": (0.5, "refused"),
    "max_ngram_size": (2, "refused"),
    "request_id": ("r", "refused"),
    "priority": (3, "refused"),
    "cache_salt": ("s", "refused"),
    "mm_processor_kwargs": ({"a": 1}, "refused"),
    "previous_input_messages": ([{"role": "user"}], "refused"),
    "enable_response_messages": (True, "refused"),
    "wait_for_tool_outputs": (True, "refused"),
}
# The transport tests cover streaming; `store: false` in the response shows that nothing is stored; `client_metadata`
# has no effect on the server.
COVERED_BY_OTHER_TESTS = {"stream", "stream_options", "store", "client_metadata", "generate"}
REQUIRED_FIELDS: dict[str, dict[str, Any]] = {
    "tool_choice": {"tools": [TOOL]},
    "parallel_tool_calls": {"tools": [TOOL]},
    "ignore_eos": {"max_output_tokens": 9},
    "context_management": {"input": LONG},
}
ECHOED = set(Response.__struct_fields__)
REFUSED = {name: value for name, (value, fate) in FATES.items() if fate == "refused"}
STORED = {name: value for name, (value, fate) in FATES.items() if fate == "stored"}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.mark.shows("A.13")
def test_every_request_field_is_covered() -> None:
    assert FATES.keys() | COVERED_BY_OTHER_TESTS == set(CreateResponse.__struct_fields__)


@pytest.mark.parametrize("name", [name for name in FATES if name not in REFUSED | STORED])
@pytest.mark.shows("A.13", "A.19", "A.21")
async def test_an_accepted_field_reaches_the_engine_or_is_echoed_or_reported_as_ignored(
    engine: FakeEngine, name: str
) -> None:
    value, fate = FATES[name]
    required = REQUIRED_FIELDS.get(name, {})
    await create_response(make_responses(engine), **required)
    baseline = engine.seen[-1]
    made = await accept_request(make_responses(engine), **required, **{name: value})
    echoed = msgspec.to_builtins(await wait_for_response(made))
    assert (engine.seen[-1] != baseline) is (fate == "engine")
    assert (name in made.ignored) is (fate == "named")
    assert fate != "echoed" or name in ECHOED
    assert name not in ECHOED or is_echoed(echoed[name], value)


def is_echoed(echoed: Any, sent: Any) -> bool:
    """Return whether the echo contains the sent value; it may add defaults for missing fields."""
    if isinstance(sent, dict):
        return all(is_echoed(echoed[key], value) for key, value in sent.items())
    if isinstance(sent, list):
        return len(echoed) == len(sent) and all(map(is_echoed, echoed, sent))
    return bool(echoed == sent)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.shows("A.13", "A.19", "A.65", "A5.1", "C.22")
async def test_an_unsupported_field_is_rejected_by_name_before_the_engine_is_called(
    engine: FakeEngine, name: str
) -> None:
    with pytest.raises(UnsupportedParameter) as refused:
        await accept_request(make_responses(engine), **{name: REFUSED[name]})
    assert (refused.value.status, refused.value.param) == (400, name)
    assert not engine.seen


@pytest.mark.parametrize("name", STORED)
@pytest.mark.shows("A1.2", "A.13")
async def test_a_field_that_needs_a_store_is_rejected_by_name_without_one(engine: FakeEngine, name: str) -> None:
    with pytest.raises(AntiphonError, match="--disable-store") as refused:
        await accept_request(make_responses(engine), **{name: STORED[name]})
    assert refused.value.status in (400, 404)
    assert refused.value.param == name
    assert not engine.seen


@pytest.mark.shows("A1.1")
async def test_a_background_response_with_store_false_is_rejected(engine: FakeEngine) -> None:
    async with start_service(engine) as made:
        with pytest.raises(UnsupportedParameter, match="store") as refused:
            await accept_request(made.responses, background=True, store=False)
    assert (refused.value.status, refused.value.param) == (400, "background")


@pytest.mark.shows("A2.8")
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "stream: true"),
        ({"store": False}, "stream: true"),
        ({"stream": True, "store": False}, "must not be false"),
    ],
)
async def test_wait_for_tool_outputs_requires_a_stored_stream(
    engine: FakeEngine, body: dict[str, Any], reason: str
) -> None:
    async with start_service(engine) as made:
        with pytest.raises(UnsupportedParameter, match=reason) as refused:
            await accept_request(made.responses, wait_for_tool_outputs=True, **body)
        assert (refused.value.status, refused.value.param) == (400, "wait_for_tool_outputs")
        assert (await create_response(made.responses, wait_for_tool_outputs=False)).status == "completed"
    with pytest.raises(UnsupportedParameter, match="--disable-store"):
        await accept_request(make_responses(engine), wait_for_tool_outputs=True, stream=True)


async def test_an_item_reference_is_rejected_with_its_position_without_a_store(engine: FakeEngine) -> None:
    with pytest.raises(InvalidValue, match="--disable-store") as refused:
        await accept_request(
            make_responses(engine), input=[{"role": "user", "content": "hi"}, {"type": "item_reference", "id": "msg_1"}]
        )
    assert refused.value.param == "input[1]"


async def test_an_unavailable_tool_is_rejected_with_its_position(engine: FakeEngine) -> None:
    with pytest.raises(UnsupportedParameter) as refused:
        await accept_request(make_responses(engine), tools=[TOOL, MCP])
    assert refused.value.param == "tools[1]"


@pytest.mark.parametrize(
    "body",
    [{"n": 1}, {"best_of": 1}, {"skip_special_tokens": True}, {"background": False}, {"previous_response_id": None}],
)
async def test_a_value_equal_to_the_default_is_always_accepted(engine: FakeEngine, body: dict[str, Any]) -> None:
    assert (await create_response(make_responses(engine), **body)).status == "completed"


class MinimalEngine(FakeEngine):
    """An engine that supports a prompt and no optional field."""

    async def capabilities(self, model: str) -> Capabilities:
        return replace(await super().capabilities(model), supported_fields=frozenset())


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"temperature": 0.5}, "temperature"),
        ({"stop": "x"}, "stop"),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True}, "include"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
        ({"tools": [TOOL]}, "tools"),
    ],
)
@pytest.mark.shows("A.19", "A.35", "C.22")
async def test_a_field_that_the_engine_does_not_support_is_rejected_by_name(body: dict[str, Any], param: str) -> None:
    engine = MinimalEngine()
    with pytest.raises(UnsupportedParameter) as refused:
        await accept_request(make_responses(engine), **body)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert not engine.seen


@pytest.mark.shows("C1.2")
async def test_an_effort_is_accepted_if_the_template_has_a_thinking_switch() -> None:
    engine = MinimalEngine(FakeSettings(level="text"))
    for effort, thinks in (("none", False), ("low", True), ("none", False)):
        response = await create_response(make_responses(engine), reasoning={"effort": effort})
        assert any(isinstance(item, Reasoning) for item in response.output) is thinks


@pytest.mark.shows("A.19", "E.26")
async def test_fields_without_effect_are_reported_as_ignored(engine: FakeEngine) -> None:
    made = await accept_request(
        make_responses(engine),
        reasoning={"mode": "pro"},
        include=["reasoning.encrypted_content"],
        tools=[{"type": "web_search"}],
    )
    assert made.ignored == ["reasoning.mode", "web_search"]
    close_source(made)


@pytest.mark.parametrize("side", ["input", "output"])
@pytest.mark.shows("A.19")
async def test_a_moderation_policy_that_blocks_is_rejected_because_nothing_would_be_blocked(
    engine: FakeEngine, side: str
) -> None:
    moderation = {"model": "m", "policy": {side: {"mode": "block"}}}
    with pytest.raises(UnsupportedParameter, match="no moderation model") as refused:
        await accept_request(make_responses(engine), moderation=moderation)
    assert (refused.value.status, refused.value.param) == (400, f"moderation.policy.{side}.mode")
    assert not engine.seen
    made = await accept_request(make_responses(engine), moderation={"model": "m", "policy": {side: {"mode": "score"}}})
    assert made.ignored == ["moderation"]
    close_source(made)
