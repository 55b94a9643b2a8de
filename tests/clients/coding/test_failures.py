"""A response that fails on a WebSocket is over with one event, so that nobody takes what follows for the next one."""

import json
from pathlib import Path

import pytest

from tests.clients.coding.client_runner import Client
from tests.support.server_process import Live

pytestmark = [pytest.mark.real_client, pytest.mark.needs("node"), pytest.mark.timeout(700)]

HERE = Path(__file__).parent


@pytest.mark.parametrize("program", ["openai-lane.mjs", "agents-runs.mjs"])
def test_an_answer_is_that_to_its_own_question(client: Client, coding: Live, program: str) -> None:
    ran = client.script((HERE / program).read_text("utf-8"), coding.v1)
    assert ran.code == 0, str(ran)
    assert json.loads(ran.out) == ["failed", "Oslo.", "Stockholm."]
