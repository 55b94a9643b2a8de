"""Responses that wait for tool outputs of the client, with the `openai` package: in one stream, across a restart, and
across two replicas.
"""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.oracles.responses import accumulate, check_event, check_response
from tests.support.server_process import ServerProcess, repeat_until_timeout, run_server
from tests.support.services import Postgres, Redis

TOOL: Any = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}, "strict": False}
WAIT_FOR_OUTPUTS = {"wait_for_tool_outputs": True}
FAKE = ("--engine", "fake")
SHORT_LEASE = ("--lease-seconds", "1")  # for servers that are killed
FINAL_STATUSES = ("completed", "incomplete", "failed", "cancelled")


def make_client(server: ServerProcess) -> OpenAI:
    return OpenAI(base_url=server.v1, api_key="unused", max_retries=0, timeout=60)


def stream_until_call(sdk: OpenAI, **fields: Any) -> tuple[Any, list[Any], str, str]:
    """Stream a response up to its function call; return the stream, the events so far, the response id and the call
    id.
    """
    stream = sdk.responses.create(
        model="fake", input="hi", tools=[TOOL], stream=True, extra_body=WAIT_FOR_OUTPUTS, **fields
    )
    received: list[Any] = []
    for event in stream:
        check_event(dict(event.to_dict()))
        received.append(event)
        if event.type == "response.output_item.done" and event.item.type == "function_call":
            return stream, received, received[0].response.id, event.item.call_id
    raise AssertionError("the stream ended without a function call")


def submit(sdk: OpenAI, response_id: str, call_id: str, output: str = "sunny") -> Any:
    body = {"tool_call_id": call_id, "output": output}
    return sdk.post(f"/responses/{response_id}/tool_outputs", body=body, cast_to=object)


def poll_until_done(sdk: OpenAI, response_id: str) -> Any:
    for _ in repeat_until_timeout():
        response = sdk.responses.retrieve(response_id)
        if response.status in FINAL_STATUSES:
            check_response(dict(response.to_dict()))
            return response
    raise AssertionError(f"{response_id} has not ended")


def wait_for_call(sdk: OpenAI, response_id: str) -> str:
    """Return the call id that a background response waits for."""
    for _ in repeat_until_timeout():
        for item in sdk.responses.retrieve(response_id).output:
            if item.type == "function_call":
                return item.call_id
    raise AssertionError(f"{response_id} has no function call")


def item_types(response: Any) -> list[str]:
    return [item.type for item in response.output]


@pytest.mark.shows("A.12", "A2.2", "A2.3")
def test_a_submitted_output_continues_the_same_stream(tmp_path: Path) -> None:
    with run_server(*FAKE) as server, make_client(server) as sdk:
        stream, received, response_id, call_id = stream_until_call(sdk)
        assert submit(sdk, response_id, call_id) == {"id": response_id, "status": "in_progress"}
        received += [*stream]
        final = accumulate([event.to_dict() for event in received])
        assert final.output_text == "The tool said: sunny"
        assert item_types(final) == ["function_call", "function_call_output", "message"]
        with pytest.raises(openai.BadRequestError) as refused:
            submit(sdk, response_id, call_id)
        assert refused.value.code == "response_not_waiting"
        more = sdk.responses.create(model="fake", input="and?", previous_response_id=response_id)
        assert more.output_text == "You said: and?"


@pytest.mark.slow
@pytest.mark.shows("A2.3")
@pytest.mark.parametrize(
    ("number", "streams"), [(signal.SIGKILL, False), (signal.SIGKILL, True), (signal.SIGTERM, True)]
)
def test_a_background_response_still_waits_after_a_restart(
    tmp_path: Path, number: signal.Signals, streams: bool
) -> None:
    flags = (*FAKE, *SHORT_LEASE, "--store", str(tmp_path / "my.db"), "--shutdown-grace", "0")
    with run_server(*flags) as server, make_client(server) as sdk:
        if streams:
            stream, received, response_id, call_id = stream_until_call(sdk, background=True)
        else:
            made = sdk.responses.create(
                model="fake", input="hi", tools=[TOOL], background=True, extra_body=WAIT_FOR_OUTPUTS
            )
            response_id, call_id, received = made.id, wait_for_call(sdk, made.id), []
        server.process.send_signal(number)
        server.process.wait(60)
        if streams:
            stream.close()
    with run_server(*flags) as server, make_client(server) as sdk:
        submit(sdk, response_id, call_id)
        response = poll_until_done(sdk, response_id)
        assert (response.status, item_types(response)) == (
            "completed",
            ["function_call", "function_call_output", "message"],
        ), response
        assert response.output_text == "The tool said: sunny"
        with sdk.responses.retrieve(response_id, stream=True) as replayed:
            events = [event.to_dict() for event in replayed]
        assert events[: len(received)] == [event.to_dict() for event in received]
        assert accumulate(events).to_dict() == response.to_dict()


@pytest.mark.shows("A2.7")
def test_a_stream_without_tool_outputs_fails_after_the_timeout() -> None:
    with run_server(*FAKE, "--tool-output-timeout", "0.2") as server, make_client(server) as sdk:
        stream, received, response_id, _ = stream_until_call(sdk)
        with pytest.raises(openai.APIError) as failed:
            received += [*stream]
        assert failed.value.code == "tool_output_timeout"
        response = poll_until_done(sdk, response_id)
        assert (response.status, response.error.code) == ("failed", "tool_output_timeout")


@pytest.fixture(scope="module", params=["postgresql", "redis"])
def shared_flags(request: pytest.FixtureRequest, postgres: Postgres, redis: Redis) -> Iterator[tuple[str, ...]]:
    """Flags of replicas that notify each other through PostgreSQL alone, or through Redis."""
    live_flags = ("--live", redis.url) if request.param == "redis" else ()
    with postgres.temporary_database() as url:
        yield (*FAKE, "--store", url, *live_flags)


@pytest.fixture(scope="module")
def replicas(shared_flags: tuple[str, ...]) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """Two servers with a lease long enough to survive delays on a busy machine."""
    lease = ("--lease-seconds", "5")
    with run_server(*shared_flags, *lease) as one, run_server(*shared_flags, *lease) as other:
        yield one, other


@pytest.mark.slow
@pytest.mark.shows("A2.3", "B.2")
@pytest.mark.parametrize("background", [False, True])
def test_an_output_may_be_submitted_to_any_replica(
    replicas: tuple[ServerProcess, ServerProcess], background: bool
) -> None:
    with make_client(replicas[0]) as one, make_client(replicas[1]) as other:
        stream, received, response_id, call_id = stream_until_call(one, background=background)
        assert submit(other, response_id, call_id) == {"id": response_id, "status": "in_progress"}
        received += [*stream]
        final = accumulate([event.to_dict() for event in received])
        assert final.output_text == "The tool said: sunny"
        assert other.responses.retrieve(response_id).to_dict() == json.loads(final.to_json())


@pytest.mark.slow
@pytest.mark.shows("A2.3", "B.2")
def test_another_replica_continues_the_response_of_a_killed_server(
    shared_flags: tuple[str, ...], replicas: tuple[ServerProcess, ServerProcess]
) -> None:
    with run_server(*shared_flags, *SHORT_LEASE) as dying, make_client(dying) as one:
        stream, received, response_id, call_id = stream_until_call(one, background=True)
        dying.process.send_signal(signal.SIGKILL)
        dying.process.wait(60)
        stream.close()
    with make_client(replicas[1]) as other:
        submit(other, response_id, call_id, "from elsewhere")
        response = poll_until_done(other, response_id)
        assert (response.status, response.output_text) == ("completed", "The tool said: from elsewhere")
        with other.responses.retrieve(response_id, stream=True) as replayed:
            assert [event.to_dict() for event in replayed][: len(received)] == [event.to_dict() for event in received]
