"""Creation of responses against the fake engine: echoed fields, usage, truncation, queueing, rendering and shutdown.

Covers `service/planning/planner.py`, `service/model_io/served_model.py` and `service/prompting/prepare.py`.
"""

import asyncio
import re
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, ReasoningDelta, Text
from antiphon.core.prompt import ChatPrompt, ParserChoice, Sampling, TextPrompt, TokenCounts
from antiphon.engines.base import Capabilities
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import Busy, ContextTooLong, MissingParameter, ModelNotFound, Unavailable, UnsupportedParameter
from antiphon.protocol.types.events import Event, OutputTextDelta
from antiphon.protocol.types.items import FunctionCall, Reasoning
from antiphon.service.model_io.served_model import OutputTokenLimits
from antiphon.service.planning.planner import PlannerSettings
from tests.service.requests import (
    ServiceStack,
    accept_request,
    close_source,
    create_response,
    get_text,
    make_responses,
    stream_events,
    wait_for_response,
)

pytestmark = pytest.mark.anyio


class OneSlot(FakeEngine):
    async def capabilities(self, model: str) -> Capabilities:
        return replace(await super().capabilities(model), slots=1)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def small_context_engine() -> FakeEngine:
    """An engine with a short context."""
    return FakeEngine(FakeSettings(context=120))


@pytest.mark.shows("A.21")
async def test_every_field_of_the_request_is_echoed(engine: FakeEngine) -> None:
    sent = {
        "instructions": "Be brief.",
        "metadata": {"a": "b"},
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 99,
        "max_tool_calls": 3,
        "parallel_tool_calls": False,
        "tool_choice": "none",
        "truncation": "auto",
        "safety_identifier": "me",
        "prompt_cache_key": "key",
        "user": "u",
        "top_k": 5,
        "min_p": 0.1,
        "seed": 7,
        "stop": ["x"],
        "presence_penalty": 0.5,
    }
    response = await create_response(make_responses(engine), **sent)
    echoed = msgspec.to_builtins(response)
    assert {name: echoed[name] for name in sent} == sent


@pytest.mark.shows("A3.21")
async def test_engine_specific_fields_are_echoed_only_when_sent(engine: FakeEngine) -> None:
    echoed = msgspec.to_builtins(await create_response(make_responses(engine)))
    assert not {"top_k", "min_p", "seed", "stop", "n", "chat_template_kwargs"} & echoed.keys()


@pytest.mark.shows("B1.4")
async def test_store_is_echoed_false_where_nothing_is_stored(engine: FakeEngine) -> None:
    assert (await create_response(make_responses(engine), store=True)).store is False


@pytest.mark.shows("C1.1")
async def test_the_operator_caps_and_defaults_the_length_of_answers(engine: FakeEngine) -> None:
    responses = make_responses(engine, OutputTokenLimits(default=5, maximum=8))
    for requested, expected in ((None, 5), (3, 3), (100, 8)):
        response = await create_response(responses, max_output_tokens=requested)
        assert engine.seen[-1].sampling.max_tokens == response.max_output_tokens == expected


class EngineWithDefaults(FakeEngine):
    async def capabilities(self, model: str) -> Capabilities:
        defaults = Sampling(max_tokens=40, temperature=0.2, top_p=0.9, repetition_penalty=1.1)
        capabilities = await super().capabilities(model)
        fields = capabilities.supported_fields | {"best_of"}
        return replace(capabilities, default_sampling=defaults, supported_fields=fields)


@pytest.mark.shows("C1.5")
async def test_defaults_of_the_model_apply_to_what_the_request_leaves_open_and_are_echoed() -> None:
    responses = make_responses(engine := EngineWithDefaults())
    response = await create_response(responses)
    assert (response.temperature, response.top_p, response.max_output_tokens) == (0.2, 0.9, 40)
    assert response.repetition_penalty is msgspec.UNSET
    expected = Sampling(max_tokens=40, temperature=0.2, top_p=0.9, repetition_penalty=1.1)
    assert engine.seen[-1].sampling == expected
    sent = {"temperature": 1.0, "max_output_tokens": 50, "repetition_penalty": 1.0}
    response = await create_response(responses, **sent)
    assert (response.temperature, response.top_p, response.max_output_tokens) == (1.0, 0.9, 50)
    assert engine.seen[-1].sampling == Sampling(max_tokens=50, temperature=1.0, top_p=0.9, repetition_penalty=1.0)
    await create_response(responses, best_of=2)
    assert engine.seen[-1].sampling == Sampling(max_tokens=40, best_of=2)  # a beam search does not sample


@pytest.mark.shows("C1.5")
@pytest.mark.parametrize(("limits", "tokens"), [({"default": 60}, 60), ({"maximum": 30}, 30), ({}, 40)])
async def test_limits_of_the_operator_take_precedence_over_the_default_of_the_model(
    limits: dict[str, int], tokens: int
) -> None:
    responses = make_responses(EngineWithDefaults(), OutputTokenLimits(**limits))
    assert (await create_response(responses)).max_output_tokens == tokens


@pytest.mark.shows("A.30")
async def test_a_truncated_answer_is_incomplete(engine: FakeEngine) -> None:
    response = await create_response(make_responses(engine), input="a long enough question", max_output_tokens=2)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


@pytest.mark.shows("A.36", "A.37", "A.38")
async def test_reasoning_comes_first_and_as_a_summary_on_request(engine: FakeEngine) -> None:
    raw = (await create_response(make_responses(engine), reasoning={"effort": "low"})).output[0]
    assert isinstance(raw, Reasoning)
    assert raw.content
    assert not raw.summary
    summed = (await create_response(make_responses(engine), reasoning={"effort": "low", "summary": "auto"})).output[0]
    assert isinstance(summed, Reasoning)
    assert summed.summary
    assert not summed.content
    older = (
        await create_response(make_responses(engine), reasoning={"effort": "low", "generate_summary": "auto"})
    ).output[0]
    assert isinstance(older, Reasoning)
    assert older.summary


@pytest.mark.shows("A.51")
async def test_every_id_is_generated_by_the_server_with_a_prefix_for_its_type(engine: FakeEngine) -> None:
    engine.says(
        ReasoningDelta("hm"), Text("a"), CallStarted(0, "f"), CallDelta(0, "{}"), CallDone(0),
        CallStarted(1, "c"), CallDelta(1, '{"input":""}'), CallDone(1),
    )  # fmt: skip
    tools = [{"type": "function", "name": "f"}, {"type": "custom", "name": "c"}]
    items = [{"role": "user", "id": "msg_mine", "content": "hi"}]
    made = msgspec.to_builtins(await create_response(make_responses(engine), tools=tools, input=items))
    _, _, function, custom = made["output"]
    ids = [made["id"], *(item["id"] for item in made["output"]), function["call_id"], custom["call_id"]]
    assert [one.partition("_")[0] for one in ids] == ["resp", "rs", "msg", "fc", "ctc", "call", "call"]
    assert re.fullmatch(r"resp_[0-9a-f]{32}", ids[0])
    assert all(re.fullmatch(rf"[a-z]+_{ids[0][5:]}1000[0-9]", one) for one in ids[1:])


@pytest.mark.parametrize(("parallel", "expected"), [(True, ["f", "f"]), (False, ["f"])])
@pytest.mark.shows("A.44", "A.64", "D.15")
async def test_parallel_calls_are_returned_unless_the_client_disables_them(
    engine: FakeEngine, parallel: bool, expected: list[str]
) -> None:
    engine.says(CallStarted(0, "f"), CallStarted(1, "f"), CallDelta(0, "{}"), CallDelta(1, "{}"))
    tools = [{"type": "function", "name": "f"}]
    response = await create_response(make_responses(engine), tools=tools, parallel_tool_calls=parallel)
    assert [item.name for item in response.output if isinstance(item, FunctionCall)] == expected
    assert len(response.output) == len(expected)


@pytest.mark.shows("E.22")
async def test_a_call_of_a_namespaced_tool_names_the_namespace(engine: FakeEngine) -> None:
    inner = [{"type": "function", "name": "get", "parameters": {"type": "object"}}]
    tools = [{"type": "namespace", "name": "shop", "description": "The shop.", "tools": inner}]
    (call,) = (await create_response(make_responses(engine), tools=tools)).output
    assert isinstance(call, FunctionCall)
    assert (call.namespace, call.name) == ("shop", "get")


@pytest.mark.shows("A7.1", "A7.2", "A7.4")
async def test_usage_reports_the_token_counts_of_the_engine(engine: FakeEngine) -> None:
    engine.says(Text("a"), counts=TokenCounts(input_tokens=9, cached_tokens=4, output_tokens=5, reasoning_tokens=3))
    assert msgspec.to_builtins((await create_response(make_responses(engine))).usage) == {
        "input_tokens": 9,
        "input_tokens_details": {
            "cached_tokens": 4,
            "cache_write_tokens": 0,
        },
        "output_tokens": 5,
        "output_tokens_details": {
            "reasoning_tokens": 3,
            "tool_output_tokens": 0,
        },
        "total_tokens": 14,
    }


@pytest.mark.shows("H.8")
async def test_metrics_count_a_response_with_its_tokens_and_latency(engine: FakeEngine) -> None:
    stack = ServiceStack(engine, terms=PlannerSettings(store_enabled=False))
    engine.says(Text("a"), counts=TokenCounts(input_tokens=9, output_tokens=5))
    await create_response(stack.responses)
    exposition = stack.metrics.text().decode()
    assert 'antiphon_responses_total{status="completed"} 1' in exposition
    assert "antiphon_prompt_tokens_total 9" in exposition
    assert "antiphon_generation_tokens_total 5" in exposition
    assert "antiphon_time_to_first_token_seconds_count 1" in exposition


@pytest.mark.shows("A.66")
async def test_deltas_are_padded_only_with_include_obfuscation(engine: FakeEngine) -> None:
    for requested in (True, False):
        options = {"include_obfuscation": requested}
        events = await stream_events(make_responses(engine), input="a much longer question", stream_options=options)
        deltas = [msgspec.to_builtins(event) for event in events if isinstance(event, OutputTextDelta)]
        assert len(deltas) > 2
        assert all(("obfuscation" in delta) is requested for delta in deltas)
        assert not requested or {len(delta["delta"] + delta["obfuscation"]) for delta in deltas} == {16}


@pytest.mark.shows("H.16")
async def test_an_unknown_model_is_a_404_that_lists_the_available_models() -> None:
    class OneModel(FakeEngine):
        def serves(self, model: str) -> bool:
            return model == "fake"

    with pytest.raises(ModelNotFound, match="fake"):
        await accept_request(make_responses(OneModel()), model="gpt-9")


@pytest.mark.parametrize(
    ("body", "param"), [({"model": None}, "model"), ({"input": None}, "input"), ({"input": []}, "input")]
)
async def test_model_and_input_are_required(engine: FakeEngine, body: dict[str, Any], param: str) -> None:
    with pytest.raises(MissingParameter) as missing:
        await accept_request(make_responses(engine), **body)
    assert missing.value.param == param


@pytest.mark.shows("A.27")
async def test_an_input_longer_than_the_context_is_rejected(small_context_engine: FakeEngine) -> None:
    with pytest.raises(ContextTooLong, match="or send truncation: 'auto'") as refused:
        await accept_request(make_responses(small_context_engine), input="word " * 500)
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, "context_length_exceeded", "input")


@pytest.mark.shows("A.24", "A.28")
async def test_truncation_drops_the_fewest_oldest_items(small_context_engine: FakeEngine) -> None:
    turns = [{"role": "user" if n % 2 == 0 else "assistant", "content": f"turn {n} {'x' * 40}"} for n in range(21)]
    response = await create_response(
        make_responses(small_context_engine), input=turns, truncation="auto", instructions="Be brief."
    )
    assert response.status in ("completed", "incomplete")
    prompt = small_context_engine.seen[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    contents = [message["content"] for message in prompt.messages]
    assert contents[0] == "Be brief."
    assert contents[1:] == [turn["content"] for turn in turns[-len(contents) + 1 :]]
    assert 1 < len(contents) < 21


async def test_an_input_that_truncation_cannot_fit_is_rejected(small_context_engine: FakeEngine) -> None:
    with pytest.raises(ContextTooLong, match="No item can be dropped"):
        await accept_request(make_responses(small_context_engine), input="word " * 500, truncation="auto")


@pytest.mark.shows("A.28")
async def test_truncation_never_separates_a_call_from_its_output(small_context_engine: FakeEngine) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":"' + "y" * 60 + '"}'}
    output = {"type": "function_call_output", "call_id": "c1", "output": "z" * 60}
    items = [{"role": "user", "content": "x" * 300}, call, output, {"role": "user", "content": "so?"}]
    await create_response(make_responses(small_context_engine), input=items, truncation="auto")
    prompt = small_context_engine.seen[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    calls = [message for message in prompt.messages if message.get("tool_calls")]
    outputs = [message for message in prompt.messages if message["role"] == "tool"]
    assert len(calls) == len(outputs)


@pytest.mark.shows("C.8")
async def test_a_full_queue_is_rejected_with_a_retry_delay() -> None:
    responses = make_responses(OneSlot(), queue=1)
    first, second = await accept_request(responses), await accept_request(responses)
    with pytest.raises(Busy) as busy:
        await accept_request(responses)
    assert busy.value.retry_after is not None
    close_source(first)
    third = await accept_request(responses)
    assert (await wait_for_response(second)).status == "completed"
    assert (await wait_for_response(third)).status == "completed"


@pytest.mark.shows("D4.1")
async def test_a_text_engine_gets_a_rendered_prompt_and_its_reasoning_is_parsed() -> None:
    engine = FakeEngine(FakeSettings(level="text"))
    response = await create_response(make_responses(engine), reasoning={"effort": "high"})
    assert isinstance(engine.seen[-1].prompt, TextPrompt)
    assert isinstance(response.output[0], Reasoning)
    assert get_text(response) == "You said: hi"


@pytest.mark.shows("A3.22", "C1.2")
async def test_chat_template_kwargs_reach_the_template() -> None:
    engine = FakeEngine(FakeSettings(level="text"))
    for thinks in (True, False):
        response = await create_response(make_responses(engine), chat_template_kwargs={"enable_thinking": thinks})
        assert any(isinstance(item, Reasoning) for item in response.output) is thinks


@pytest.mark.shows("A3.20")
async def test_skip_special_tokens_false_returns_the_raw_text_in_one_message() -> None:
    engine = FakeEngine(FakeSettings(level="text"))
    response = await create_response(make_responses(engine), skip_special_tokens=False, reasoning={"effort": "low"})
    assert len(response.output) == 1
    assert re.fullmatch(r"<think>.+</think>You said: hi<\|im_end\|>", get_text(response), re.DOTALL)


@pytest.mark.shows("C.22")
async def test_tools_are_rejected_if_no_parser_reads_calls() -> None:
    engine = FakeEngine(FakeSettings(level="text", reads=ParserChoice(calls="none")))
    with pytest.raises(UnsupportedParameter) as refused:
        await accept_request(make_responses(engine), tools=[{"type": "function", "name": "f", "parameters": {}}])
    assert refused.value.param == "tools"
    ok = await create_response(
        make_responses(engine), tools=[{"type": "function", "name": "f", "parameters": {}}], tool_choice="none"
    )
    assert ok.status == "completed"


@pytest.mark.shows("H.10")
async def test_interrupting_ends_a_running_stream_with_its_terminal_event(engine: FakeEngine) -> None:
    responses = make_responses(engine)
    made = await accept_request(responses, stream=True)
    types: list[str] = []

    async def collect(events: list[Event]) -> None:
        types.extend(event.type for event in events)
        responses._detached_runs.interrupt()

    assert made.source is not None
    await made.source.drive(collect)
    assert types[0] == "response.created"
    assert types[-2:] == ["error", "response.failed"]


@pytest.mark.shows("H.10")
async def test_a_waiting_json_client_gets_an_error_when_the_server_shuts_down() -> None:
    responses = make_responses(FakeEngine(FakeSettings(delay=60.0)))
    made = await accept_request(responses)
    asyncio.get_running_loop().call_later(0.01, responses._detached_runs.interrupt)
    with pytest.raises(Unavailable):
        await wait_for_response(made)
