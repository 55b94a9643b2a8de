// What one uses the openai package for, one task per run: node client.mjs TASK BASE_URL MODEL [MCP_SERVER_URL].
// Prints one line of JSON with what came of it; judging that is the test's part.
import OpenAI from 'openai';
import { makeParseableTextFormat } from 'openai/lib/parser';

const [task, baseURL, model, server_url] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: 'unused', maxRetries: 0, timeout: 60_000 });

const schema = {
  type: 'object',
  properties: { city: { type: 'string', maxLength: 8 }, warm: { type: 'boolean' } },
  required: ['city', 'warm'],
  additionalProperties: false,
};
const weather = { type: 'function', name: 'get_weather', description: 'The weather', strict: true, parameters: schema };

async function collect(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}

async function failure(promise) {
  try {
    await promise;
  } catch (error) {
    return { kind: error.constructor.name, status: error.status, code: error.code, param: error.param };
  }
  return null;
}

const tasks = {
  async create() {
    const response = await client.responses.create({ model, input: 'hi', max_output_tokens: 24 });
    return { response, text: response.output_text, requestId: response._request_id };
  },

  async stream() {
    const events = await collect(await client.responses.create({ model, input: 'hi', max_output_tokens: 24, stream: true }));
    return { events, types: events.map((event) => event.type) };
  },

  // The helper's accumulator throws on every event that it does not know or that comes out of order.
  async helper() {
    const stream = client.responses.stream({ model, input: 'hi', max_output_tokens: 24 });
    const events = await collect(stream);
    return { types: events.map((event) => event.type), final: await stream.finalResponse() };
  },

  async thinking() {
    const stream = client.responses.stream({ model, input: 'hi', reasoning: { effort: 'low', summary: 'auto' } });
    const events = await collect(stream);
    return { types: events.map((event) => event.type), final: await stream.finalResponse() };
  },

  async parse() {
    const format = makeParseableTextFormat({ type: 'json_schema', name: 'place', strict: true, schema }, JSON.parse);
    const response = await client.responses.parse({ model, input: 'Where?', text: { format } });
    return { status: response.status, parsed: response.output_parsed };
  },

  async tools() {
    const input = [{ role: 'user', content: 'weather?' }];
    const first = await client.responses.stream({ model, input, tools: [weather] }).finalResponse();
    const call = first.output.find((item) => item.type === 'function_call');
    input.push(...first.output, { type: 'function_call_output', call_id: call.call_id, output: 'sunny' });
    const second = await client.responses.create({ model, input, tools: [weather] });
    return { call, text: second.output_text };
  },

  // An MCP server's tools, in one piece and streamed, then with an approval in between.
  async mcp() {
    const server = { type: 'mcp', server_label: 'everything', server_url, require_approval: 'never' };
    const whole = await client.responses.create({ model, input: 'play sum.', tools: [server] });
    const stream = client.responses.stream({ model, input: 'play sum.', tools: [server] });
    const types = (await collect(stream)).map((event) => event.type);
    const careful = { ...server, require_approval: 'always' };
    const asked = await client.responses.stream({ model, input: 'play sum.', tools: [careful] }).finalResponse();
    const { id } = asked.output.find((item) => item.type === 'mcp_approval_request');
    const answer = { type: 'mcp_approval_response', approval_request_id: id, approve: true };
    const approved = client.responses.stream({ model, input: [answer], previous_response_id: asked.id, tools: [careful] });
    const approvedTypes = (await collect(approved)).map((event) => event.type);
    return { whole, types, final: await stream.finalResponse(), asked, approved: await approved.finalResponse(), approvedTypes };
  },

  async errors() {
    return {
      temperature: await failure(client.responses.create({ model, input: 'hi', temperature: 7 })),
      stream: await failure(client.responses.create({ model, input: 'hi', top_p: -1, stream: true })),
      path: await failure(client.get('/nowhere')),
    };
  },

  async stored() {
    const made = await client.responses.create({ model, input: [{ role: 'user', content: 'a' }, { role: 'user', content: 'b' }] });
    const found = await client.responses.retrieve(made.id, { include: ['message.output_text.logprobs'] });
    const input = [];
    for await (const item of client.responses.inputItems.list(made.id, { limit: 1, order: 'asc' })) input.push(item);
    const next = await client.responses.create({ model, input: 'c', previous_response_id: made.id });
    await client.responses.delete(made.id);
    const gone = await failure(client.responses.retrieve(made.id));
    return { made, found, input, next, gone };
  },

  async background() {
    let response = await client.responses.create({ model, input: 'hi', background: true });
    const first = response.status;
    while (['queued', 'in_progress'].includes(response.status)) response = await client.responses.retrieve(response.id);
    const cancelled = await client.responses.cancel(response.id);
    const other = await client.responses.create({ model, input: 'hi' });
    return { first, response, cancelled, refused: await failure(client.responses.cancel(other.id)) };
  },

  // Broken off after its first text, then taken up by an iteration and by the helper.
  async resume() {
    const stream = await client.responses.create({ model, input: 'hi', background: true, stream: true });
    const heard = [];
    for await (const event of stream) {
      heard.push(event);
      if (event.type === 'response.output_text.delta') break;
    }
    const response_id = heard[0].response.id;
    const starting_after = heard.at(-1).sequence_number;
    const rest = await collect(await client.responses.retrieve(response_id, { stream: true, starting_after }));
    const helper = client.responses.stream({ response_id, starting_after });
    const helped = await collect(helper);
    return { heard, rest, helped, final: await helper.finalResponse() };
  },

  async conversations() {
    const made = await client.conversations.create({ items: [{ role: 'user', content: 'one' }], metadata: { k: 'v' } });
    const changed = await client.conversations.update(made.id, { metadata: { l: 'w', k: null } });
    const added = await client.conversations.items.create(made.id, { items: [{ role: 'user', content: 'two' }] });
    const response = await client.responses.create({ model, input: 'three', conversation: made.id });
    const listed = [];
    for await (const item of client.conversations.items.list(made.id, { limit: 2, order: 'asc' })) listed.push(item);
    const item = await client.conversations.items.retrieve(added.last_id, { conversation_id: made.id });
    const left = await client.conversations.items.delete(added.last_id, { conversation_id: made.id });
    const deleted = await client.conversations.delete(made.id);
    return { made, changed, added, response, listed, item, left, deleted, gone: await failure(client.conversations.retrieve(made.id)) };
  },

  async models() {
    const listed = [];
    for await (const each of client.models.list()) listed.push(each);
    return { listed, one: await client.models.retrieve(listed[0].id) };
  },
};

console.log(JSON.stringify(await tasks[task]()));
