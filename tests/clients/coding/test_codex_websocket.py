"""Codex over a WebSocket: incremental turns, and its recovery when the connection or its cache is gone."""

import json

import pytest

from tests.clients.coding.client_runner import Client
from tests.clients.coding.codex import EXEC, SUM, WEBSOCKET_SETTINGS, configure, get_item_types, run_page_command
from tests.clients.coding.recording_proxy import RecordingProxy, run_recording_proxy
from tests.support.server_process import ServerProcess

pytestmark = [pytest.mark.real_client, pytest.mark.needs("node"), pytest.mark.timeout(700)]


@pytest.mark.shows("I.13")
@pytest.mark.uses("codex", "WebSocket")
def test_codex_warms_up_and_sends_only_new_items_each_turn(client: Client, proxy: RecordingProxy) -> None:
    configure(client, proxy.port, after=WEBSOCKET_SETTINGS)
    ran = run_page_command(client)
    assert ran.code == 0, str(ran)
    assert SUM in ran.out, str(ran)
    assert proxy.get_posts() == []
    (upgrade,) = proxy.get_upgrades()
    warm, first, second = upgrade.messages
    ids = [event["response"]["id"] for event in upgrade.received if event["type"] == "response.completed"]
    assert (warm["generate"], warm.get("previous_response_id")) == (False, None)
    assert [message.get("previous_response_id") for message in (first, second)] == ids[:2]
    assert get_item_types(second["input"]) == ["function_call_output"]
    assert SUM in json.dumps(second["input"])
    assert {message["store"] for message in upgrade.messages} == {False}


def test_codex_resends_everything_when_the_previous_response_is_gone(
    client: Client, uncached_server: ServerProcess
) -> None:
    with run_recording_proxy(uncached_server.port) as proxy:
        configure(client, proxy.port, after=WEBSOCKET_SETTINGS)
        ran = run_page_command(client)
        assert ran.code == 0, str(ran)
        assert SUM in ran.out, str(ran)
        assert proxy.get_posts() == []
        *forgotten, last = proxy.get_upgrades()
    assert [upgrade.received[-1]["error"]["code"] for upgrade in forgotten] == ["previous_response_not_found"] * 2
    assert "previous_response_id" not in last.messages[0]
    assert get_item_types(last.messages[0]["input"])[-3:] == ["reasoning", "function_call", "function_call_output"]


def test_codex_resends_everything_after_the_connection_is_closed(
    client: Client, short_lived_server: ServerProcess
) -> None:
    with run_recording_proxy(short_lived_server.port) as proxy:
        configure(client, proxy.port, after=WEBSOCKET_SETTINGS)
        ran = client.run(f'{EXEC} "Please take a nap in the shell."')
        assert ran.code == 0, str(ran)
        assert SUM in ran.out, str(ran)
        assert proxy.get_posts() == []
        closed, last = proxy.get_upgrades()
    assert closed.received[-1]["error"]["code"] == "websocket_connection_limit_reached"
    assert "previous_response_id" not in last.messages[0]
    assert get_item_types(last.messages[0]["input"])[-2:] == ["function_call", "function_call_output"]


def test_codex_falls_back_to_http_without_websockets(client: Client, http_only_server: ServerProcess) -> None:
    with run_recording_proxy(http_only_server.port) as proxy:
        configure(client, proxy.port, after=WEBSOCKET_SETTINGS)
        ran = run_page_command(client)
        assert ran.code == 0, str(ran)
        assert SUM in ran.out, str(ran)
        assert (len(proxy.get_upgrades()), len(proxy.get_posts())) == (1, 2)
