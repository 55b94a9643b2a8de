/**
 * Bytes → events: a parser of text/event-stream that takes the bytes in any pieces.
 * @typedef {{type: string, data: string, raw: string}} SseEvent `raw`: the lines of the event, without the empty one.
 */

export class SseParser {
  #decoder = new TextDecoder();
  #rest = '';
  /** @type {string[]} */
  #lines = [];

  /** Take the next bytes and yield the events that they complete; all have to be taken. @param {Uint8Array} bytes */
  *push(bytes) {
    const text = this.#rest + this.#decoder.decode(bytes, { stream: true });
    // A CR at the end may be the first half of a CRLF, so it waits for the next bytes.
    const lines = text.split(text.includes('\r') ? /\r\n|\n|\r(?!$)/ : '\n');
    this.#rest = lines.pop() ?? '';
    for (const line of lines) {
      if (line) {
        this.#lines.push(line);
      } else if (this.#lines.length) {
        const event = parseLines(this.#lines);
        this.#lines = [];
        if (event) yield event;
      }
    }
  }
}

/** @param {string[]} lines @returns {SseEvent | null} null for lines without data, such as comments */
function parseLines(lines) {
  let type = 'message';
  const data = [];
  for (const line of lines) {
    const colon = line.indexOf(':');
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(line[colon + 1] === ' ' ? colon + 2 : colon + 1);
    if (field === 'event') type = value;
    else if (field === 'data') data.push(value);
  }
  return data.length ? { type, data: data.join('\n'), raw: lines.join('\n') } : null;
}

/** Read the events of a body: those that arrived together, parsed as they are taken. @param {ReadableStream<Uint8Array>} body */
export async function* readEvents(body) {
  const reader = body.getReader();
  const parser = new SseParser();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield parser.push(value);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
