"""The openai package and responses that wait for a client's tools: in one go, over a restart, and over two servers."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.oracles.responses import accumulate, check_event, check_response
from tests.support.server_process import Live, patiently, serving
from tests.support.services import Postgres, Redis

TOOL: Any = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}, "strict": False}
WAITS = {"wait_for_tool_outputs": True}
FAKE = ("--engine", "fake")
BRIEF = ("--lease-seconds", "1")  # for who dies
ENDED = ("completed", "incomplete", "failed", "cancelled")


def client(live: Live) -> OpenAI:
    return OpenAI(base_url=live.v1, api_key="unused", max_retries=0, timeout=60)


def paused(sdk: OpenAI, **fields: Any) -> tuple[Any, list[Any], str, str]:
    """A stream that has come to its call, what it said, its id and the call's."""
    stream = sdk.responses.create(model="fake", input="hi", tools=[TOOL], stream=True, extra_body=WAITS, **fields)
    told: list[Any] = []
    for event in stream:
        check_event(dict(event.to_dict()))
        told.append(event)
        if event.type == "response.output_item.done" and event.item.type == "function_call":
            return stream, told, told[0].response.id, event.item.call_id
    raise AssertionError("there was no call")


def submit(sdk: OpenAI, response_id: str, call_id: str, output: str = "sunny") -> Any:
    body = {"tool_call_id": call_id, "output": output}
    return sdk.post(f"/responses/{response_id}/tool_outputs", body=body, cast_to=object)


def polled(sdk: OpenAI, response_id: str) -> Any:
    for _ in patiently():
        response = sdk.responses.retrieve(response_id)
        if response.status in ENDED:
            check_response(dict(response.to_dict()))
            return response
    raise AssertionError(f"{response_id} has not ended")


def pending(sdk: OpenAI, response_id: str) -> str:
    """The call that a background response waits for."""
    for _ in patiently():
        for item in sdk.responses.retrieve(response_id).output:
            if item.type == "function_call":
                return item.call_id
    raise AssertionError(f"{response_id} calls nothing")


def kinds(response: Any) -> list[str]:
    return [item.type for item in response.output]


@pytest.mark.shows("A.12", "A2.2", "A2.3")
def test_the_same_stream_goes_on(tmp_path: Path) -> None:
    with serving(*FAKE) as live, client(live) as sdk:
        stream, told, response_id, call_id = paused(sdk)
        assert submit(sdk, response_id, call_id) == {"id": response_id, "status": "in_progress"}
        told += [*stream]
        final = accumulate([event.to_dict() for event in told])
        assert final.output_text == "The tool said: sunny"
        assert kinds(final) == ["function_call", "function_call_output", "message"]
        with pytest.raises(openai.BadRequestError) as refused:
            submit(sdk, response_id, call_id)
        assert refused.value.code == "response_not_waiting"
        more = sdk.responses.create(model="fake", input="and?", previous_response_id=response_id)
        assert more.output_text == "You said: and?"


@pytest.mark.shows("A2.3")
@pytest.mark.parametrize(
    ("number", "streams"), [(signal.SIGKILL, False), (signal.SIGKILL, True), (signal.SIGTERM, True)]
)
def test_a_background_response_waits_on_after_a_restart(tmp_path: Path, number: signal.Signals, streams: bool) -> None:
    flags = (*FAKE, *BRIEF, "--store", str(tmp_path / "my.db"), "--shutdown-grace", "0")
    with serving(*flags) as live, client(live) as sdk:
        if streams:
            stream, told, response_id, call_id = paused(sdk, background=True)
        else:
            made = sdk.responses.create(model="fake", input="hi", tools=[TOOL], background=True, extra_body=WAITS)
            response_id, call_id, told = made.id, pending(sdk, made.id), []
        live.process.send_signal(number)
        live.process.wait(60)
        if streams:
            stream.close()
    with serving(*flags) as live, client(live) as sdk:
        submit(sdk, response_id, call_id)
        response = polled(sdk, response_id)
        assert (response.status, kinds(response)) == (
            "completed",
            ["function_call", "function_call_output", "message"],
        ), response
        assert response.output_text == "The tool said: sunny"
        with sdk.responses.retrieve(response_id, stream=True) as again:
            events = [event.to_dict() for event in again]
        assert events[: len(told)] == [event.to_dict() for event in told]
        assert accumulate(events).to_dict() == response.to_dict()


@pytest.mark.shows("A2.7")
def test_a_stream_that_nobody_answers_fails_in_time() -> None:
    with serving(*FAKE, "--tool-output-timeout", "0.2") as live, client(live) as sdk:
        stream, told, response_id, _ = paused(sdk)
        with pytest.raises(openai.APIError) as failed:
            told += [*stream]
        assert failed.value.code == "tool_output_timeout"
        response = polled(sdk, response_id)
        assert (response.status, response.error.code) == ("failed", "tool_output_timeout")


@pytest.fixture(scope="module", params=["postgresql", "redis"])
def shared(request: pytest.FixtureRequest, postgres: Postgres, redis: Redis) -> Iterator[tuple[str, ...]]:
    """Words between servers go through PostgreSQL alone, or through Redis."""
    live = ("--live", redis.url) if request.param == "redis" else ()
    with postgres.database() as url:
        yield (*FAKE, "--store", url, *live)


@pytest.fixture(scope="module")
def replicas(shared: tuple[str, ...]) -> Iterator[tuple[Live, Live]]:
    """A busy machine may keep one of them waiting for long, and it is alive."""
    lease = ("--lease-seconds", "5")
    with serving(*shared, *lease) as one, serving(*shared, *lease) as other:
        yield one, other


@pytest.mark.shows("A2.3", "B.2")
@pytest.mark.parametrize("background", [False, True])
def test_an_output_may_be_brought_to_any_server(replicas: tuple[Live, Live], background: bool) -> None:
    with client(replicas[0]) as one, client(replicas[1]) as other:
        stream, told, response_id, call_id = paused(one, background=background)
        assert submit(other, response_id, call_id) == {"id": response_id, "status": "in_progress"}
        told += [*stream]
        final = accumulate([event.to_dict() for event in told])
        assert final.output_text == "The tool said: sunny"
        assert other.responses.retrieve(response_id).to_dict() == json.loads(final.to_json())


@pytest.mark.shows("A2.3", "B.2")
def test_what_one_waited_for_another_goes_on_with(shared: tuple[str, ...], replicas: tuple[Live, Live]) -> None:
    with serving(*shared, *BRIEF) as dying, client(dying) as one:
        stream, told, response_id, call_id = paused(one, background=True)
        dying.process.send_signal(signal.SIGKILL)
        dying.process.wait(60)
        stream.close()
    with client(replicas[1]) as other:
        submit(other, response_id, call_id, "from elsewhere")
        response = polled(other, response_id)
        assert (response.status, response.output_text) == ("completed", "The tool said: from elsewhere")
        with other.responses.retrieve(response_id, stream=True) as again:
            assert [event.to_dict() for event in again][: len(told)] == [event.to_dict() for event in told]
