import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from antiphon.limits import Limits
from antiphon.protocol.bodies.websocket import Message, read_message
from antiphon.protocol.decoding.codec import decode_create
from antiphon.transport.websocket.event_writer import open_socket_outlet
from antiphon.transport.websocket.steering import Steering, Target
from tests.oracles.responses import check_socket_event


def steer(text: str, response_id: str = "resp_1") -> Message:
    said = {"type": "response.steer", "previous_response_id": response_id, "input": text}
    return read_message(json.dumps(said).encode(), Limits())


def told(steering: Steering, message: Message) -> dict[str, Any]:
    event: dict[str, Any] = msgspec.to_builtins(steering.take(message, Limits()).event)
    check_socket_event(event)
    return event


async def unheard(message: Mapping[str, Any]) -> None:
    """Nothing is told here."""


def running(steering: Steering, response_id: str) -> Target:
    outlet = open_socket_outlet(unheard, None)
    target = Target(decode_create(b'{"model":"fake","input":"hi"}', Limits()), outlet, None, lambda: True)
    steering.began(response_id, target)
    return target


@pytest.mark.shows("F.10")
def test_what_waits_for_responses_is_bounded_in_bytes_over_all_of_them() -> None:
    steering = Steering(most_bytes=2500)
    target = running(steering, "resp_1")
    running(steering, "resp_2")
    for response_id in ("resp_1", "resp_2"):
        assert told(steering, steer("x" * 1000, response_id))["type"] == "response.steer.accepted"
    refused = told(steering, steer("x" * 1000))
    assert (refused["type"], refused["error"]["code"]) == ("response.steer.failed", "too_many_pending_steers")
    assert refused["steer"]["input"] == "x" * 1000
    steering.forget(target)
    assert told(steering, steer("x" * 1000, "resp_2"))["type"] == "response.steer.accepted"


@pytest.mark.shows("F.10")
def test_what_waits_for_one_response_is_bounded_in_number() -> None:
    steering = Steering()
    running(steering, "resp_1")
    for _ in range(16):
        assert told(steering, steer("x"))["type"] == "response.steer.accepted"
    assert told(steering, steer("x"))["error"]["code"] == "too_many_pending_steers"


@pytest.mark.shows("F.10")
def test_only_what_runs_here_can_be_steered() -> None:
    steering = Steering()
    assert told(steering, steer("x"))["error"]["code"] == "response_not_found"
    steering.forget(running(steering, "resp_1"))
    assert told(steering, steer("x"))["error"]["code"] == "response_already_completed"
