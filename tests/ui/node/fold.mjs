// node fold.mjs UI STREAMS: fold streams with the code of the page. UI: folder of the page; STREAMS: a JSON list of SSE
// bodies in base64. Prints, for each: the Response, the output before the last event, and the output from deltas alone.
import { readFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';

const [folder, file] = process.argv.slice(2);
const { SseParser } = await import(pathToFileURL(`${folder}/sse.js`));
const { applyEvent, isTerminal } = await import(pathToFileURL(`${folder}/fold.js`));
const fold = (events) => events.reduce(applyEvent, null);
let seed = 1;
const random = (limit) => (seed = (seed * 48271) % 2147483647) % limit;

function parse(bytes) {
  const parser = new SseParser(), events = [];
  for (let start = 0; start < bytes.length;) {
    const end = Math.min(bytes.length, start + 1 + random(200));
    events.push(...parser.push(bytes.subarray(start, end)));
    start = end;
  }
  return events.filter((event) => event.data !== '[DONE]').map((event) => JSON.parse(event.data)).filter((event) => event.type !== 'keepalive');
}

const results = JSON.parse(readFileSync(file, 'utf8')).map((body) => {
  const events = parse(Buffer.from(body, 'base64'));
  const copy = structuredClone(events);
  const isEnd = (event) => isTerminal(event.type) || event.type === 'error';
  const result = {
    response: fold(events),
    before: fold(events.filter((event) => !isEnd(event)))?.output,
    deltas: fold(events.filter((event) => !isEnd(event) && !event.type.endsWith('.done')))?.output,
  };
  if (JSON.stringify(events) !== JSON.stringify(copy)) throw new Error('an event was modified');
  applyEvent(null, { type: 'response.output_text.delta', output_index: 0, delta: 'before the first event' });
  return result;
});
console.log(JSON.stringify(results));
