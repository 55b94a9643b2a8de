"""A response that fails on a WebSocket ends with exactly one event, so that clients do not assign a second one to the
next response.
"""

import json
from pathlib import Path

import pytest

from tests.clients.coding.client_runner import Client
from tests.support.server_process import ServerProcess

pytestmark = [pytest.mark.real_client, pytest.mark.needs("node"), pytest.mark.timeout(700)]

HERE = Path(__file__).parent


@pytest.mark.parametrize("program", ["openai-lane.mjs", "agents-runs.mjs"])
def test_each_answer_belongs_to_its_own_request_after_a_failure(
    client: Client, coding_server: ServerProcess, program: str
) -> None:
    ran = client.run_script((HERE / program).read_text("utf-8"), coding_server.v1)
    assert ran.code == 0, str(ran)
    assert json.loads(ran.out) == ["failed", "Oslo.", "Stockholm."]
