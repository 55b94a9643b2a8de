"""How packages from npm handle `connection_expiring`, the warning before a WebSocket is closed, in the middle of an
answer.

The event is in none of their lists of events.
"""

import json

import pytest

from tests.clients.coding.client_runner import Client
from tests.support.server_process import ServerProcess

pytestmark = [pytest.mark.real_client, pytest.mark.needs("node"), pytest.mark.timeout(700)]

_OPENAI = """
import OpenAI from 'openai';
import { ResponsesWS } from 'openai/resources/responses/ws';
import { ResponsesWebSocketAccumulator } from 'openai/lib/responses/responses-websocket-accumulator';
import { ResponsesWebSocketSession } from 'openai/lib/responses/responses-websocket-session';

const connection = new ResponsesWS(new OpenAI({ baseURL: BASE_URL, apiKey: 'unused' }));
await new Promise((opened) => connection.socket.on('open', opened));
const limits = { maxLanes: 4, maxBufferedEvents: 999, maxBufferedBytes: 1e6 };
const session = new ResponsesWebSocketSession(connection, limits);
const accumulator = new ResponsesWebSocketAccumulator();
const seen = [];
connection.on('connection_expiring', ({ expires_at }) => seen.push(expires_at));
connection.on('event', (event) => {
  if (event.stream_id === 'one' || event.type === 'connection_expiring') accumulator.add(event);
});

const lanes = [session.lane('one'), session.lane()];
for (const lane of lanes) lane.create({ model: 'm', input: 'Take your time.' });
const finals = await Promise.all(lanes.map((lane) => lane.finalResponse()));
const said = finals.map(({ output }) => output[0].content[0].text);
console.log(JSON.stringify({ seen, said, phase: accumulator.current.phase }));
connection.close();
"""
_AGENTS = """
import { Agent, setTracingDisabled, withResponsesWebSocketSession } from '@openai/agents';

setTracingDisabled(true);
const agent = new Agent({ name: 'slow', model: 'm' });
await withResponsesWebSocketSession(
  async ({ run }) => {
    console.log(JSON.stringify((await run(agent, 'Take your time.')).finalOutput));
  },
  { providerOptions: { baseURL: BASE_URL, apiKey: 'unused' } },
);
"""


def run_program(client: Client, server: ServerProcess, source: str) -> object:
    ran = client.run_script(source.replace("BASE_URL", json.dumps(server.v1)))
    assert ran.code == 0, str(ran)
    return json.loads(ran.out)


@pytest.mark.shows("F2.1", "I.11")
def test_the_openai_package_accepts_the_expiry_warning(client: Client, expiring_server: ServerProcess) -> None:
    output = run_program(client, expiring_server, _OPENAI)
    assert isinstance(output, dict)
    assert (output["said"], output["phase"]) == (["One moment."] * 2, "terminal")
    (expires_at,) = output["seen"]
    assert type(expires_at) is int


@pytest.mark.shows("F2.1", "I.14")
def test_the_agents_sdk_accepts_the_expiry_warning(client: Client, expiring_server: ServerProcess) -> None:
    assert run_program(client, expiring_server, _AGENTS) == "One moment."
