"""The openai package and sealed reasoning: conversations that no server keeps, over restarts and replicas."""

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
from tests.support.server_process import serving
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


def raw(model: BaseModel) -> dict[str, Any]:
    return dict(json.loads(model.model_dump_json(exclude_unset=True, by_alias=True)))


@contextmanager
def client_of(*flags: str) -> Iterator[OpenAI]:
    with (
        serving(*FAKE, *flags) as live,
        OpenAI(base_url=live.v1, api_key="unused", max_retries=0, timeout=60) as client,
    ):
        yield client


def asked(client: OpenAI) -> list[Any]:
    """The first turn: it thinks and calls. Gives all that the second turn is to be told."""
    first = client.responses.create(input=[QUESTION], **STATELESS)
    check_response(raw(first))
    return following(first)


def following(first: Response) -> list[Any]:
    thought, call = first.output
    assert thought.type == "reasoning"
    assert thought.encrypted_content
    assert call.type == "function_call"
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}
    return [QUESTION, *[item.to_dict() for item in first.output], output]


def sealed_alone(items: list[Any]) -> list[Any]:
    """As a client sends it that shows nobody what was thought."""
    return [{**item, "summary": []} if item.get("type") == "reasoning" else item for item in items]


def goes_on(client: OpenAI, items: list[Any]) -> bool:
    """Is what was sealed opened there?"""
    return bool(client.responses.create(input=sealed_alone(items), **STATELESS).status == "completed")


@pytest.mark.shows("A.39", "A4.5", "I.10")
def test_a_conversation_that_only_the_client_keeps_has_its_thoughts(client: OpenAI) -> None:
    items = asked(client)
    second = client.responses.create(input=sealed_alone(items), **STATELESS)
    check_response(raw(second))
    assert "Rain." in second.output_text
    assert second.output[0].type == "reasoning"
    third = [*items, *[item.to_dict() for item in second.output], {"role": "user", "content": "Thanks."}]
    assert client.responses.create(input=third, **STATELESS).status == "completed"


@pytest.mark.anyio
@pytest.mark.shows("A.37", "A4.5", "I.10")
async def test_the_async_client_streams_it_and_every_event_is_valid(async_client: AsyncOpenAI) -> None:
    items: list[Any] = [QUESTION]
    for _ in range(2):
        async with await async_client.responses.create(input=items, stream=True, **STATELESS) as stream:
            events = [raw(event) async for event in stream]
        for event in events:
            check_event(event)
        folded = accumulate(events)
        assert folded.status == "completed"
        assert folded.output[0].type == "reasoning"
        assert folded.output[0].encrypted_content
        items = following(folded) if folded.output[1].type == "function_call" else items
    assert "Rain." in folded.output_text


def test_the_stream_helper_gives_the_same(client: OpenAI) -> None:
    with client.responses.stream(input=[QUESTION], **STATELESS) as stream:
        final = stream.get_final_response()
    assert len(following(final)) == 4


@pytest.mark.shows("A.40")
def test_what_was_tampered_with_is_a_bad_request(client: OpenAI) -> None:
    items = asked(client)
    items[1]["encrypted_content"] = items[1]["encrypted_content"][:-4] + "AAAA"
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(input=items, **STATELESS)
    assert (refused.value.code, refused.value.param) == ("invalid_encrypted_content", "input[1].encrypted_content")


@pytest.mark.shows("A6.1")
def test_a_restart_changes_nothing_where_something_is_kept(client: OpenAI, tmp_path: Path) -> None:
    store = ("--store", str(tmp_path / "new" / "store.db"))
    with client_of(*store) as one:
        items = asked(one)
    with client_of(*store) as again:
        assert goes_on(again, items)
    with pytest.raises(openai.BadRequestError, match="a key that this server does not have"):
        goes_on(client, items)


@pytest.mark.shows("A6.2")
@pytest.mark.parametrize("place", ["sqlite", pytest.param("postgresql", marks=pytest.mark.needs("postgresql"))])
def test_servers_that_start_at_once_on_a_new_store_have_one_key(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with ExitStack() as opened:
        if place == "postgresql":
            postgres: Postgres = request.getfixturevalue("postgres")
            where = opened.enter_context(postgres.database())
        else:
            where = str(tmp_path / "store.db")
        one, other = together([lambda: opened.enter_context(client_of("--store", where))] * 2)
        assert goes_on(other, asked(one))
        assert goes_on(one, asked(other))


def together(makes: list[Callable[[], OpenAI]]) -> list[OpenAI]:
    with ThreadPoolExecutor(len(makes)) as pool:
        return [*pool.map(lambda make: make(), makes)]
