"""Every field of a request has a fate that its sender can see; none is dropped in silence."""

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
from tests.service.requests import accepted, answered, leave, result, service, serving

pytestmark = pytest.mark.anyio

Fate = Literal["engine", "echoed", "named", "refused", "stored"]
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
LONG = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "so it is " * 900},
    {"role": "user", "content": "b"},
]
MCP = {"type": "mcp", "server_label": "m", "server_url": "https://m.example"}

# What each field does when it is sent: the engine is told, it is echoed, named as ignored, or refused. What needs a
# store is refused where there is none; what it does where there is one is shown in test_past.py and test_keeping.py.
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
# How an answer is sent is the transport's to show, that nothing is stored is told by `store: false`,
# and a client's own notes mean nothing to a server.
ELSEWHERE = {"stream", "stream_options", "store", "client_metadata", "generate"}
NEEDS: dict[str, dict[str, Any]] = {
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
def test_every_field_has_a_fate() -> None:
    assert FATES.keys() | ELSEWHERE == set(CreateResponse.__struct_fields__)


@pytest.mark.parametrize("name", [name for name in FATES if name not in REFUSED | STORED])
@pytest.mark.shows("A.13", "A.19", "A.21")
async def test_a_field_that_is_taken_reaches_the_engine_is_echoed_or_is_named(engine: FakeEngine, name: str) -> None:
    value, fate = FATES[name]
    plainly = NEEDS.get(name, {})
    await answered(service(engine), **plainly)
    plain = engine.seen[-1]
    made = await accepted(service(engine), **plainly, **{name: value})
    echoed = msgspec.to_builtins(await result(made))
    assert (engine.seen[-1] != plain) is (fate == "engine")
    assert (name in made.ignored) is (fate == "named")
    assert fate != "echoed" or name in ECHOED
    assert name not in ECHOED or holds(echoed[name], value)


def holds(echoed: Any, sent: Any) -> bool:
    """With the defaults of what was not sent."""
    if isinstance(sent, dict):
        return all(holds(echoed[key], value) for key, value in sent.items())
    if isinstance(sent, list):
        return len(echoed) == len(sent) and all(map(holds, echoed, sent))
    return bool(echoed == sent)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.shows("A.13", "A.19", "A.65", "A5.1", "C.22")
async def test_what_cannot_be_honoured_is_refused_by_name_before_the_engine_hears_of_it(
    engine: FakeEngine, name: str
) -> None:
    with pytest.raises(UnsupportedParameter) as refused:
        await accepted(service(engine), **{name: REFUSED[name]})
    assert (refused.value.status, refused.value.param) == (400, name)
    assert not engine.seen


@pytest.mark.parametrize("name", STORED)
@pytest.mark.shows("A1.2", "A.13")
async def test_what_needs_a_store_is_refused_by_name_where_nothing_is_kept(engine: FakeEngine, name: str) -> None:
    with pytest.raises(AntiphonError, match="--disable-store") as refused:
        await accepted(service(engine), **{name: STORED[name]})
    assert refused.value.status in (400, 404)
    assert refused.value.param == name
    assert not engine.seen


@pytest.mark.shows("A1.1")
async def test_a_background_response_that_is_not_to_be_stored_is_refused(engine: FakeEngine) -> None:
    async with serving(engine) as made:
        with pytest.raises(UnsupportedParameter, match="store") as refused:
            await accepted(made.responses, background=True, store=False)
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
async def test_waiting_for_tool_outputs_is_refused_where_it_cannot_be(
    engine: FakeEngine, body: dict[str, Any], reason: str
) -> None:
    async with serving(engine) as made:
        with pytest.raises(UnsupportedParameter, match=reason) as refused:
            await accepted(made.responses, wait_for_tool_outputs=True, **body)
        assert (refused.value.status, refused.value.param) == (400, "wait_for_tool_outputs")
        assert (await answered(made.responses, wait_for_tool_outputs=False)).status == "completed"
    with pytest.raises(UnsupportedParameter, match="--disable-store"):
        await accepted(service(engine), wait_for_tool_outputs=True, stream=True)


async def test_a_reference_to_an_item_is_refused_by_its_place_where_nothing_is_kept(engine: FakeEngine) -> None:
    with pytest.raises(InvalidValue, match="--disable-store") as refused:
        await accepted(
            service(engine), input=[{"role": "user", "content": "hi"}, {"type": "item_reference", "id": "msg_1"}]
        )
    assert refused.value.param == "input[1]"


async def test_a_tool_that_is_not_there_yet_is_refused_by_its_place(engine: FakeEngine) -> None:
    with pytest.raises(UnsupportedParameter) as refused:
        await accepted(service(engine), tools=[TOOL, MCP])
    assert refused.value.param == "tools[1]"


@pytest.mark.parametrize(
    "body",
    [{"n": 1}, {"best_of": 1}, {"skip_special_tokens": True}, {"background": False}, {"previous_response_id": None}],
)
async def test_a_value_that_asks_for_nothing_special_is_honoured_by_everyone(
    engine: FakeEngine, body: dict[str, Any]
) -> None:
    assert (await answered(service(engine), **body)).status == "completed"


class Modest(FakeEngine):
    """It takes a prompt, and nothing else."""

    async def capabilities(self, model: str) -> Capabilities:
        return replace(await super().capabilities(model), honours=frozenset())


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
async def test_what_an_engine_lacks_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    engine = Modest()
    with pytest.raises(UnsupportedParameter) as refused:
        await accepted(service(engine), **body)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert not engine.seen


@pytest.mark.shows("C1.2")
async def test_an_effort_is_taken_where_the_template_can_be_told_to_think() -> None:
    engine = Modest(FakeSettings(level="text"))
    for effort, thinks in (("none", False), ("low", True), ("none", False)):
        response = await answered(service(engine), reasoning={"effort": effort})
        assert any(isinstance(item, Reasoning) for item in response.output) is thinks


@pytest.mark.shows("A.19", "E.26")
async def test_what_changes_nothing_is_named(engine: FakeEngine) -> None:
    made = await accepted(
        service(engine),
        reasoning={"mode": "pro"},
        include=["reasoning.encrypted_content"],
        tools=[{"type": "web_search"}],
    )
    assert made.ignored == ["reasoning.mode", "web_search"]
    leave(made)
