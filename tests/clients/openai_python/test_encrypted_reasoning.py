"""Encrypted reasoning with the `openai` package: stateless conversations across restarts and replicas."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response
from pydantic import BaseModel

from tests.clients.tool_definitions import WEATHER
from tests.oracles.responses import accumulate, check_event, check_response
from tests.support.server_process import run_server
from tests.support.services import Postgres

FAKE = ("--engine", "fake")
STATELESS: dict[str, Any] = {
    "model": "fake",
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "reasoning": {"effort": "medium", "summary": "auto"},
    "tools": [WEATHER],
}
QUESTION: Any = {"role": "user", "content": "What is the weather like?"}


def dump(model: BaseModel) -> dict[str, Any]:
    """Return the JSON of a model as it was received."""
    return dict(json.loads(model.model_dump_json(exclude_unset=True, by_alias=True)))


@contextmanager
def run_server_with_client(*flags: str) -> Iterator[OpenAI]:
    """Run a server with these flags and yield a client for it."""
    with (
        run_server(*FAKE, *flags) as server,
        OpenAI(base_url=server.v1, api_key="unused", max_retries=0, timeout=60) as client,
    ):
        yield client


def run_first_turn(client: OpenAI) -> list[Any]:
    """Run the first turn, with reasoning and a tool call, and return the complete input of the second turn."""
    first = client.responses.create(input=[QUESTION], **STATELESS)
    check_response(dump(first))
    return make_second_input(first)


def make_second_input(first: Response) -> list[Any]:
    """Return the input of the second turn: the question, the output items, and the output of the call."""
    reasoning, call = first.output
    assert reasoning.type == "reasoning"
    assert reasoning.encrypted_content
    assert call.type == "function_call"
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}
    return [QUESTION, *[item.to_dict() for item in first.output], output]


def drop_summaries(items: list[Any]) -> list[Any]:
    """Return the items without reasoning summaries, as a client sends them that hides the reasoning."""
    return [{**item, "summary": []} if item.get("type") == "reasoning" else item for item in items]


def can_continue(client: OpenAI, items: list[Any]) -> bool:
    """Return whether this server decrypts the reasoning."""
    return bool(client.responses.create(input=drop_summaries(items), **STATELESS).status == "completed")


@pytest.mark.shows("A.39", "A4.5", "I.10")
def test_a_stateless_conversation_carries_encrypted_reasoning(client: OpenAI) -> None:
    items = run_first_turn(client)
    second = client.responses.create(input=drop_summaries(items), **STATELESS)
    check_response(dump(second))
    assert "Rain." in second.output_text
    assert second.output[0].type == "reasoning"
    third = [*items, *[item.to_dict() for item in second.output], {"role": "user", "content": "Thanks."}]
    assert client.responses.create(input=third, **STATELESS).status == "completed"


@pytest.mark.anyio
@pytest.mark.shows("A.37", "A4.5", "I.10")
async def test_the_async_client_streams_encrypted_reasoning_in_valid_events(async_client: AsyncOpenAI) -> None:
    items: list[Any] = [QUESTION]
    for _ in range(2):
        async with await async_client.responses.create(input=items, stream=True, **STATELESS) as stream:
            events = [dump(event) async for event in stream]
        for event in events:
            check_event(event)
        folded = accumulate(events)
        assert folded.status == "completed"
        assert folded.output[0].type == "reasoning"
        assert folded.output[0].encrypted_content
        items = make_second_input(folded) if folded.output[1].type == "function_call" else items
    assert "Rain." in folded.output_text


def test_the_stream_helper_returns_encrypted_reasoning(client: OpenAI) -> None:
    with client.responses.stream(input=[QUESTION], **STATELESS) as stream:
        final = stream.get_final_response()
    assert len(make_second_input(final)) == 4


@pytest.mark.shows("A.40")
def test_tampered_encrypted_content_is_rejected(client: OpenAI) -> None:
    items = run_first_turn(client)
    items[1]["encrypted_content"] = items[1]["encrypted_content"][:-4] + "AAAA"
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(input=items, **STATELESS)
    assert (refused.value.code, refused.value.param) == ("invalid_encrypted_content", "input[1].encrypted_content")


@pytest.mark.slow
@pytest.mark.shows("A6.1")
def test_a_server_with_a_persistent_store_keeps_its_key_across_a_restart(client: OpenAI, tmp_path: Path) -> None:
    store = ("--store", str(tmp_path / "new" / "store.db"))
    with run_server_with_client(*store) as one:
        items = run_first_turn(one)
    with run_server_with_client(*store) as again:
        assert can_continue(again, items)
    with pytest.raises(openai.BadRequestError, match="a key that this server does not have"):
        can_continue(client, items)


@pytest.mark.slow
@pytest.mark.shows("A6.2")
@pytest.mark.parametrize("backend", ["sqlite", pytest.param("postgresql", marks=pytest.mark.needs("postgresql"))])
def test_servers_that_start_together_on_a_new_store_share_one_key(
    backend: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with ExitStack() as stack:
        if backend == "postgresql":
            postgres: Postgres = request.getfixturevalue("postgres")
            location = stack.enter_context(postgres.temporary_database())
        else:
            location = str(tmp_path / "store.db")
        one, other = start_concurrently([lambda: stack.enter_context(run_server_with_client("--store", location))] * 2)
        assert can_continue(other, run_first_turn(one))
        assert can_continue(one, run_first_turn(other))


def start_concurrently(factories: list[Callable[[], OpenAI]]) -> list[OpenAI]:
    with ThreadPoolExecutor(len(factories)) as pool:
        return [*pool.map(lambda make: make(), factories)]
