"""Fields are rejected by name, or reported as ignored, before the engine is called.

`tests/api/input/test_field_fates.py` has a row for every field.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.config.setting_types import Level
from antiphon.engines.base import Capabilities
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import AntiphonError, InvalidValue, UnsupportedParameter
from antiphon.protocol.types.items import Reasoning
from tests.service.requests import (
    accept_request,
    close_source,
    create_response,
    make_responses,
    start_service,
)

pytestmark = pytest.mark.anyio

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
MCP = {"type": "mcp", "server_label": "m", "server_url": "https://m.example"}

# Fields that need a store.
STORED = {"previous_response_id": "resp_1", "conversation": "conv_1", "background": True}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


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


@pytest.mark.parametrize(("level", "ignored"), [("chat", []), ("harmony", ["reasoning.context"])])
@pytest.mark.shows("A.19")
async def test_old_reasoning_is_reported_as_ignored_if_it_cannot_be_rendered(level: Level, ignored: list[str]) -> None:
    """gpt-oss was trained without the reasoning before its last answer."""
    made = await accept_request(
        make_responses(FakeEngine(FakeSettings(level=level))), reasoning={"context": "all_turns"}
    )
    assert made.ignored == ignored
    close_source(made)


async def test_stream_options_of_a_background_response_apply_to_its_later_streams(engine: FakeEngine) -> None:
    options = {"include_obfuscation": True}
    async with start_service(engine) as made:
        assert (await accept_request(made.responses, background=True, stream_options=options)).ignored == []
        accepted = await accept_request(made.responses, stream_options=options)
        assert accepted.ignored == ["stream_options"]
        close_source(accepted)


@pytest.mark.shows("A.19")
async def test_moderation_is_rejected_if_no_model_is_configured(engine: FakeEngine) -> None:
    with pytest.raises(UnsupportedParameter, match="--moderation-model") as refused:
        await accept_request(make_responses(engine), moderation={"model": "m"})
    assert (refused.value.status, refused.value.param) == (400, "moderation")
    assert not engine.seen
