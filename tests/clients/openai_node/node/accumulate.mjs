// The stream helper of the openai package over streams from a file: node accumulate.mjs FILE, a JSON array of SSE bodies.
// Its accumulator throws on every event that it does not know or that comes out of order. Prints what it made of each.
import { readFileSync } from 'node:fs';
import OpenAI from 'openai';

const made = [];
for (const body of JSON.parse(readFileSync(process.argv[2], 'utf8'))) {
  const fetch = async () => new Response(body, { headers: { 'content-type': 'text/event-stream' } });
  const client = new OpenAI({ baseURL: 'http://127.0.0.1:9', apiKey: 'unused', maxRetries: 0, fetch });
  const stream = client.responses.stream({ model: 'm', input: 'hi' });
  for await (const _ of stream);
  made.push(await stream.finalResponse());
}
console.log(JSON.stringify(made));
