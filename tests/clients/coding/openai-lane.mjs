// Three requests on one lane, the first of which fails: node openai-lane.mjs BASE_URL. Prints what became of each.
import OpenAI from 'openai';
import { ResponsesWebSocketSession } from 'openai/lib/responses/responses-websocket-session';
import { ResponsesWS } from 'openai/resources/responses/ws';

const connection = new ResponsesWS(new OpenAI({ baseURL: process.argv[2], apiKey: 'unused' }));
connection.on('error', () => {});
await new Promise((opened) => connection.socket.on('open', opened));
const limits = { maxLanes: 4, maxBufferedEvents: 999, maxBufferedBytes: 1e6 };
const lane = new ResponsesWebSocketSession(connection, limits).lane('one');

const told = [];
for (const input of ['Please die.', 'What is the capital of Norway?', 'What is the capital of Sweden?']) {
  lane.create({ model: 'qwen3-8b', input });
  const response = await lane.finalResponse().catch(() => null);
  told.push(response?.status === 'completed' ? response.output[0].content[0].text : 'failed');
}
connection.close();
console.log(JSON.stringify(told));
