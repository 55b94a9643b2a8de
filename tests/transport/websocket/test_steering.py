"""Steering: the limits of pending steers, and their errors."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from antiphon.limits import Limits
from antiphon.protocol.bodies.websocket import SocketMessage, read_message
from antiphon.protocol.decoding.codec import decode_create
from antiphon.transport.http.websocket_upgrade import upgrade_from_scope
from antiphon.transport.websocket.response_task import WebSocketEventWriter
from antiphon.transport.websocket.steering import Steering, SteerTarget
from tests.oracles.responses import check_socket_event
from tests.transport.websocket.ws_client import socket_scope


def make_steer(text: str, response_id: str = "resp_1") -> SocketMessage:
    fields = {"type": "response.steer", "previous_response_id": response_id, "input": text}
    return read_message(json.dumps(fields).encode(), Limits())


def submit(steering: Steering, message: SocketMessage) -> dict[str, Any]:
    """Submit a message, and return the event of the reply."""
    event: dict[str, Any] = msgspec.to_builtins(steering.submit(message, Limits()).event)
    check_socket_event(event)
    return event


async def never() -> Any:
    raise AssertionError("nothing is received here")


async def discard(message: Mapping[str, Any]) -> None:
    """Discard the message."""


def add_target(steering: Steering, response_id: str) -> SteerTarget:
    """Register a running response."""
    writer = WebSocketEventWriter(upgrade_from_scope(socket_scope("/v1/responses", []), never, discard), None)
    target = SteerTarget(decode_create(b'{"model":"fake","input":"hi"}', Limits()), writer, None, lambda: True)
    steering.add_target(response_id, target)
    return target


@pytest.mark.shows("F.10")
def test_pending_steers_of_all_responses_are_bounded_in_bytes() -> None:
    steering = Steering(max_bytes=2500)
    target = add_target(steering, "resp_1")
    add_target(steering, "resp_2")
    for response_id in ("resp_1", "resp_2"):
        assert submit(steering, make_steer("x" * 1000, response_id))["type"] == "response.steer.accepted"
    refused = submit(steering, make_steer("x" * 1000))
    assert (refused["type"], refused["error"]["code"]) == ("response.steer.failed", "too_many_pending_steers")
    assert refused["steer"]["input"] == "x" * 1000
    steering.remove_target(target)
    assert submit(steering, make_steer("x" * 1000, "resp_2"))["type"] == "response.steer.accepted"


@pytest.mark.shows("F.10")
def test_pending_steers_of_one_response_are_bounded_in_number() -> None:
    steering = Steering()
    add_target(steering, "resp_1")
    for _ in range(16):
        assert submit(steering, make_steer("x"))["type"] == "response.steer.accepted"
    assert submit(steering, make_steer("x"))["error"]["code"] == "too_many_pending_steers"


@pytest.mark.shows("F.10")
def test_only_running_responses_can_be_steered() -> None:
    steering = Steering()
    assert submit(steering, make_steer("x"))["error"]["code"] == "response_not_found"
    steering.remove_target(add_target(steering, "resp_1"))
    assert submit(steering, make_steer("x"))["error"]["code"] == "response_already_completed"
