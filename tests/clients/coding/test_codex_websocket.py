"""What Codex does on its WebSocket, and where there is none any more."""

import json

import pytest

from tests.clients.coding.client_runner import Client
from tests.clients.coding.codex import EXEC, SOCKETS, SUM, asked, configure, kinds
from tests.clients.coding.recording_proxy import Tap, tapping
from tests.support.server_process import Live

pytestmark = [pytest.mark.real_client, pytest.mark.needs("node"), pytest.mark.timeout(700)]


@pytest.mark.shows("I.13")
def test_a_socket_is_warmed_up_and_each_turn_sends_what_is_new(client: Client, tap: Tap) -> None:
    configure(client, tap.port, after=SOCKETS)
    ran = asked(client)
    assert ran.code == 0, str(ran)
    assert SUM in ran.out, str(ran)
    assert tap.posts() == []
    (upgrade,) = tap.upgrades()
    warm, first, second = upgrade.messages
    made = [event["response"]["id"] for event in upgrade.heard if event["type"] == "response.completed"]
    assert (warm["generate"], warm.get("previous_response_id")) == (False, None)
    assert [message.get("previous_response_id") for message in (first, second)] == made[:2]
    assert kinds(second["input"]) == ["function_call_output"]
    assert SUM in json.dumps(second["input"])
    assert {message["store"] for message in upgrade.messages} == {False}


def test_all_is_sent_again_where_the_socket_has_forgotten(client: Client, forgetful: Live) -> None:
    with tapping(forgetful.port) as tap:
        configure(client, tap.port, after=SOCKETS)
        ran = asked(client)
        assert ran.code == 0, str(ran)
        assert SUM in ran.out, str(ran)
        assert tap.posts() == []
        *forgotten, last = tap.upgrades()
    assert [upgrade.heard[-1]["error"]["code"] for upgrade in forgotten] == ["previous_response_not_found"] * 2
    assert "previous_response_id" not in last.messages[0]
    assert kinds(last.messages[0]["input"])[-3:] == ["reasoning", "function_call", "function_call_output"]


def test_all_is_sent_again_where_the_socket_was_closed(client: Client, short_lived: Live) -> None:
    with tapping(short_lived.port) as tap:
        configure(client, tap.port, after=SOCKETS)
        ran = client.run(f'{EXEC} "Please take a nap in the shell."')
        assert ran.code == 0, str(ran)
        assert SUM in ran.out, str(ran)
        assert tap.posts() == []
        closed, last = tap.upgrades()
    assert closed.heard[-1]["error"]["code"] == "websocket_connection_limit_reached"
    assert "previous_response_id" not in last.messages[0]
    assert kinds(last.messages[0]["input"])[-2:] == ["function_call", "function_call_output"]


def test_a_server_without_sockets_is_spoken_to_over_http_at_once(client: Client, without_sockets: Live) -> None:
    with tapping(without_sockets.port) as tap:
        configure(client, tap.port, after=SOCKETS)
        ran = asked(client)
        assert ran.code == 0, str(ran)
        assert SUM in ran.out, str(ran)
        assert (len(tap.upgrades()), len(tap.posts())) == (1, 2)
