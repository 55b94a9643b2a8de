"""Compaction with the `openai` package and the Agents SDK: a conversation is compacted, sent back and continued."""

import json
from typing import Any

import pytest
from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, SQLiteSession
from agents.memory import OpenAIResponsesCompactionSession
from agents.run import RunConfig
from openai import AsyncOpenAI, BadRequestError, OpenAI

from tests.oracles.responses import check_compacted
from tests.support.server_process import ServerProcess

HISTORY: list[Any] = [
    item
    for turn in range(10)
    for item in (
        {"role": "user", "content": f"This is question {turn}."},
        {"role": "assistant", "content": f"The answer to it is number {turn}. " * 20},
    )
]


def count_tokens(client: OpenAI, items: Any) -> int:
    return client.responses.input_tokens.count(model="fake", input=items).input_tokens


# OpenAI documents user messages in `output`, but the type of the package allows only assistant messages, so the package
# warns about them.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.shows("A.11")
def test_a_compacted_history_is_accepted_and_continued(client: OpenAI) -> None:
    raw = client.responses.with_raw_response.compact(model="fake", input=HISTORY)
    check_compacted(json.loads(raw.text))
    compacted = raw.parse()
    assert [item.type for item in compacted.output] == [*["message"] * 10, "compaction"]
    output: Any = compacted.output
    assert count_tokens(client, output) <= count_tokens(client, HISTORY) / 4
    first = client.responses.create(model="fake", input=[*output, {"role": "user", "content": "And now?"}])
    assert first.output_text == "You said: And now?"
    second = client.responses.create(model="fake", input="Then?", previous_response_id=first.id)
    assert second.output_text == "You said: Then?"
    again = client.responses.compact(model="fake", previous_response_id=second.id)
    assert [item.type for item in again.output] == [*["message"] * 12, "compaction"]
    output[-1].encrypted_content = output[-1].encrypted_content[:-4] + "AAAA"
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model="fake", input=output)
    assert refused.value.code == "invalid_encrypted_content"


@pytest.mark.shows("A.41")
def test_the_stream_helper_accepts_a_compaction_during_a_response(client: OpenAI) -> None:
    management: Any = [{"type": "compaction", "compact_threshold": 1000}]
    items: Any = [*HISTORY, {"role": "user", "content": "And now?"}]
    with client.responses.stream(model="fake", input=items, context_management=management) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert "response.compaction.compacting" in kinds
    assert [item.type for item in final.output] == ["compaction", "message"]
    assert final.output_text == "You said: And now?"
    again: Any = [*final.output, {"role": "user", "content": "Then?"}]
    assert client.responses.create(model="fake", input=again, store=False).output_text == "You said: Then?"


@pytest.mark.anyio
@pytest.mark.shows("A.11", "I.14")
@pytest.mark.parametrize("mode", ["previous_response_id", "input"])
async def test_a_session_of_the_agents_sdk_is_compacted(async_client: AsyncOpenAI, mode: Any) -> None:
    stored = SQLiteSession("s")
    session = OpenAIResponsesCompactionSession("s", stored, client=async_client, model="gpt-4.1", compaction_mode=mode)
    model = OpenAIResponsesModel(model="gpt-4.1", openai_client=async_client)
    agent: Agent[Any] = Agent(name="parrot", model=model, model_settings=ModelSettings(store=True))
    no_tracing = RunConfig(tracing_disabled=True)
    for text in ("one", "two"):
        await Runner.run(agent, text, session=session, run_config=no_tracing)
    await session.run_compaction({"force": True})
    kinds = [item.get("type", item.get("role")) for item in await session.get_items()]
    assert kinds == ["message", "message", "compaction"]
    result = await Runner.run(agent, "three", session=session, run_config=no_tracing)
    assert result.final_output == "You said: three"
    stored.close()  # else Python 3.13 and newer warn


@pytest.mark.real_model
@pytest.mark.shows("A.11")
def test_the_embedded_model_compacts_and_continues(embedded_server: ServerProcess) -> None:
    """The summary of the model may be poor, but the user messages are preserved in any case."""
    model = json.loads(embedded_server.get("/v1/models")[1])["data"][0]["id"]
    items = [
        {"role": "user", "content": "My name is Ada and I live in Oslo."},
        {"role": "assistant", "content": "Nice to meet you, Ada! Oslo is the capital of Norway. " * 2},
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "The capital of France is Paris."},
    ]
    status, body = embedded_server.send("POST", "/v1/responses/compact", {"model": model, "input": items})
    compacted = json.loads(body)
    assert status == 200, body
    check_compacted(compacted)
    texts = [item["content"][0]["text"] for item in compacted["output"][:-1]]
    assert texts == ["My name is Ada and I live in Oslo.", "What is the capital of France?"]
    assert 0 < compacted["usage"]["output_tokens"] <= 64
    followup = {
        "model": model,
        "input": [*compacted["output"], {"role": "user", "content": "Hi"}],
        "max_output_tokens": 4,
    }
    assert embedded_server.post(followup)[0] == 200
