import asyncio
import re
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from antiphon.core.deltas import CallDelta, CallDone, CallStarted, Text, Thought
from antiphon.core.prompt import ChatPrompt, Counts, Reads, TextPrompt
from antiphon.engines.base import Capabilities
from antiphon.engines.fake import FakeEngine, FakeSettings
from antiphon.errors import Busy, ContextTooLong, MissingParameter, ModelNotFound, Unavailable, UnsupportedParameter
from antiphon.protocol.types.events import Event, OutputTextDelta
from antiphon.protocol.types.items import FunctionCall, Reasoning
from antiphon.service.planning.planner import Terms
from antiphon.service.prompting.prepare import OutputTokens
from tests.service.requests import Service, accepted, answered, leave, result, service, streamed, text_of

pytestmark = pytest.mark.anyio


class OneSlot(FakeEngine):
    async def capabilities(self, model: str) -> Capabilities:
        return replace(await super().capabilities(model), slots=1)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def small() -> FakeEngine:
    """An engine whose context has room for little."""
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
    response = await answered(service(engine), **sent)
    echoed = msgspec.to_builtins(response)
    assert {name: echoed[name] for name in sent} == sent


@pytest.mark.shows("A3.21")
async def test_fields_that_only_engines_know_are_not_echoed_when_they_were_not_sent(engine: FakeEngine) -> None:
    echoed = msgspec.to_builtins(await answered(service(engine)))
    assert not {"top_k", "min_p", "seed", "stop", "n", "chat_template_kwargs"} & echoed.keys()


@pytest.mark.shows("B1.4")
async def test_store_is_echoed_false_where_nothing_is_stored(engine: FakeEngine) -> None:
    assert (await answered(service(engine), store=True)).store is False


@pytest.mark.shows("C1.1")
async def test_the_operator_caps_and_defaults_the_length_of_answers(engine: FakeEngine) -> None:
    responses = service(engine, OutputTokens(default=5, most=8))
    for asked, given in ((None, 5), (3, 3), (100, 8)):
        await answered(responses, max_output_tokens=asked)
        assert engine.seen[-1].sampling.max_tokens == given


@pytest.mark.shows("A.30")
async def test_a_cut_answer_is_incomplete(engine: FakeEngine) -> None:
    response = await answered(service(engine), input="a long enough question", max_output_tokens=2)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


@pytest.mark.shows("A.36", "A.37", "A.38")
async def test_reasoning_comes_first_and_as_a_summary_when_one_is_asked_for(engine: FakeEngine) -> None:
    raw = (await answered(service(engine), reasoning={"effort": "low"})).output[0]
    assert isinstance(raw, Reasoning)
    assert raw.content
    assert not raw.summary
    summed = (await answered(service(engine), reasoning={"effort": "low", "summary": "auto"})).output[0]
    assert isinstance(summed, Reasoning)
    assert summed.summary
    assert not summed.content
    older = (await answered(service(engine), reasoning={"effort": "low", "generate_summary": "auto"})).output[0]
    assert isinstance(older, Reasoning)
    assert older.summary


@pytest.mark.shows("A.51")
async def test_every_id_is_ours_and_says_what_it_is_the_id_of(engine: FakeEngine) -> None:
    engine.says(
        Thought("hm"), Text("a"), CallStarted(0, "f"), CallDelta(0, "{}"), CallDone(0),
        CallStarted(1, "c"), CallDelta(1, '{"input":""}'), CallDone(1),
    )  # fmt: skip
    tools = [{"type": "function", "name": "f"}, {"type": "custom", "name": "c"}]
    asked = [{"role": "user", "id": "msg_mine", "content": "hi"}]
    made = msgspec.to_builtins(await answered(service(engine), tools=tools, input=asked))
    _, _, function, custom = made["output"]
    ids = [made["id"], *(item["id"] for item in made["output"]), function["call_id"], custom["call_id"]]
    assert [one.partition("_")[0] for one in ids] == ["resp", "rs", "msg", "fc", "ctc", "call", "call"]
    assert re.fullmatch(r"resp_[0-9a-f]{32}", ids[0])
    assert all(re.fullmatch(rf"[a-z]+_{ids[0][5:]}1000[0-9]", one) for one in ids[1:])


@pytest.mark.parametrize(("parallel", "called"), [(True, ["f", "f"]), (False, ["f"])])
@pytest.mark.shows("A.44", "A.64", "D.15")
async def test_calls_come_side_by_side_unless_the_client_wants_one_at_most(
    engine: FakeEngine, parallel: bool, called: list[str]
) -> None:
    engine.says(CallStarted(0, "f"), CallStarted(1, "f"), CallDelta(0, "{}"), CallDelta(1, "{}"))
    tools = [{"type": "function", "name": "f"}]
    response = await answered(service(engine), tools=tools, parallel_tool_calls=parallel)
    assert [item.name for item in response.output if isinstance(item, FunctionCall)] == called
    assert len(response.output) == len(called)


@pytest.mark.shows("E.22")
async def test_a_call_of_a_tool_in_a_namespace_says_so(engine: FakeEngine) -> None:
    inner = [{"type": "function", "name": "get", "parameters": {"type": "object"}}]
    tools = [{"type": "namespace", "name": "shop", "description": "The shop.", "tools": inner}]
    (call,) = (await answered(service(engine), tools=tools)).output
    assert isinstance(call, FunctionCall)
    assert (call.namespace, call.name) == ("shop", "get")


@pytest.mark.shows("A7.1", "A7.2", "A7.4")
async def test_usage_is_what_the_engine_counted(engine: FakeEngine) -> None:
    engine.says(Text("a"), counts=Counts(input_tokens=9, cached_tokens=4, output_tokens=5, reasoning_tokens=3))
    assert msgspec.to_builtins((await answered(service(engine))).usage) == {
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
async def test_a_response_is_counted_with_its_tokens_and_its_time(engine: FakeEngine) -> None:
    made = Service(engine, terms=Terms(stores=False))
    engine.says(Text("a"), counts=Counts(input_tokens=9, output_tokens=5))
    await answered(made.responses)
    told = made.metrics.text().decode()
    assert 'antiphon_responses_total{status="completed"} 1' in told
    assert "antiphon_prompt_tokens_total 9" in told
    assert "antiphon_generation_tokens_total 5" in told
    assert "antiphon_time_to_first_token_seconds_count 1" in told


@pytest.mark.shows("A.66")
async def test_deltas_are_padded_when_that_is_asked_for(engine: FakeEngine) -> None:
    for asked in (True, False):
        options = {"include_obfuscation": asked}
        events = await streamed(service(engine), input="a much longer question", stream_options=options)
        deltas = [msgspec.to_builtins(event) for event in events if isinstance(event, OutputTextDelta)]
        assert len(deltas) > 2
        assert all(("obfuscation" in delta) is asked for delta in deltas)
        assert not asked or {len(delta["delta"] + delta["obfuscation"]) for delta in deltas} == {16}


@pytest.mark.shows("H.16")
async def test_an_unknown_model_is_a_404_that_names_the_known_ones() -> None:
    class OneModel(FakeEngine):
        def serves(self, model: str) -> bool:
            return model == "fake"

    with pytest.raises(ModelNotFound, match="fake"):
        await accepted(service(OneModel()), model="gpt-9")


@pytest.mark.parametrize(
    ("body", "param"), [({"model": None}, "model"), ({"input": None}, "input"), ({"input": []}, "input")]
)
async def test_a_model_and_an_input_are_needed(engine: FakeEngine, body: dict[str, Any], param: str) -> None:
    with pytest.raises(MissingParameter) as missing:
        await accepted(service(engine), **body)
    assert missing.value.param == param


@pytest.mark.shows("A.27")
async def test_an_input_that_is_too_long_is_refused_by_its_tokens(small: FakeEngine) -> None:
    with pytest.raises(ContextTooLong, match="or send truncation: 'auto'") as refused:
        await accepted(service(small), input="word " * 500)
    assert (refused.value.status, refused.value.code, refused.value.param) == (400, "context_length_exceeded", "input")


@pytest.mark.shows("A.24", "A.28")
async def test_truncation_drops_as_few_of_the_oldest_items_as_will_do(small: FakeEngine) -> None:
    turns = [{"role": "user" if n % 2 == 0 else "assistant", "content": f"turn {n} {'x' * 40}"} for n in range(21)]
    response = await answered(service(small), input=turns, truncation="auto", instructions="Be brief.")
    assert response.status in ("completed", "incomplete")
    prompt = small.seen[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    kept = [message["content"] for message in prompt.messages]
    assert kept[0] == "Be brief."
    assert kept[1:] == [turn["content"] for turn in turns[-len(kept) + 1 :]]
    assert 1 < len(kept) < 21


async def test_truncation_that_is_not_enough_is_refused(small: FakeEngine) -> None:
    with pytest.raises(ContextTooLong, match="Nothing of it can be left out"):
        await accepted(service(small), input="word " * 500, truncation="auto")


@pytest.mark.shows("A.28")
async def test_truncation_never_leaves_half_of_a_call(small: FakeEngine) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":"' + "y" * 60 + '"}'}
    output = {"type": "function_call_output", "call_id": "c1", "output": "z" * 60}
    asked = [{"role": "user", "content": "x" * 300}, call, output, {"role": "user", "content": "so?"}]
    await answered(service(small), input=asked, truncation="auto")
    prompt = small.seen[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    calls = [message for message in prompt.messages if message.get("tool_calls")]
    outputs = [message for message in prompt.messages if message["role"] == "tool"]
    assert len(calls) == len(outputs)


@pytest.mark.shows("C.8")
async def test_a_full_queue_is_busy_and_says_when_to_come_back() -> None:
    responses = service(OneSlot(), queue=1)
    first, second = await accepted(responses), await accepted(responses)
    with pytest.raises(Busy) as busy:
        await accepted(responses)
    assert busy.value.retry_after is not None
    leave(first)
    third = await accepted(responses)
    assert (await result(second)).status == "completed"
    assert (await result(third)).status == "completed"


@pytest.mark.shows("D4.1")
async def test_an_engine_that_we_render_for_gets_text_and_its_thoughts_are_parsed() -> None:
    engine = FakeEngine(FakeSettings(level="text"))
    response = await answered(service(engine), reasoning={"effort": "high"})
    assert isinstance(engine.seen[-1].prompt, TextPrompt)
    assert isinstance(response.output[0], Reasoning)
    assert text_of(response) == "You said: hi"


@pytest.mark.shows("A3.22", "C1.2")
async def test_what_a_client_tells_the_template_reaches_it() -> None:
    engine = FakeEngine(FakeSettings(level="text"))
    for thinks in (True, False):
        response = await answered(service(engine), chat_template_kwargs={"enable_thinking": thinks})
        assert any(isinstance(item, Reasoning) for item in response.output) is thinks


@pytest.mark.shows("A3.20")
async def test_who_wants_special_tokens_gets_the_raw_text_in_one_message() -> None:
    engine = FakeEngine(FakeSettings(level="text"))
    response = await answered(service(engine), skip_special_tokens=False, reasoning={"effort": "low"})
    assert len(response.output) == 1
    assert re.fullmatch(r"<think>.+</think>You said: hi<\|im_end\|>", text_of(response), re.DOTALL)


@pytest.mark.shows("C.22")
async def test_tools_are_refused_where_nobody_looks_for_calls() -> None:
    engine = FakeEngine(FakeSettings(level="text", reads=Reads(calls="none")))
    with pytest.raises(UnsupportedParameter) as refused:
        await accepted(service(engine), tools=[{"type": "function", "name": "f", "parameters": {}}])
    assert refused.value.param == "tools"
    ok = await answered(
        service(engine), tools=[{"type": "function", "name": "f", "parameters": {}}], tool_choice="none"
    )
    assert ok.status == "completed"


@pytest.mark.shows("H.10")
async def test_interrupting_ends_what_runs_with_its_terminal_event(engine: FakeEngine) -> None:
    responses = service(engine)
    made = await accepted(responses, stream=True)
    heard: list[str] = []

    async def tell(events: list[Event]) -> None:
        heard.extend(event.type for event in events)
        responses.interrupt()

    assert made.source is not None
    await made.source.drive(tell)
    assert heard[0] == "response.created"
    assert heard[-2:] == ["error", "response.failed"]


@pytest.mark.shows("H.10")
async def test_a_client_that_waits_for_json_is_told_that_the_server_shuts_down() -> None:
    responses = service(FakeEngine(FakeSettings(delay=60.0)))
    made = await accepted(responses)
    asyncio.get_running_loop().call_later(0.01, responses.interrupt)
    with pytest.raises(Unavailable):
        await result(made)
