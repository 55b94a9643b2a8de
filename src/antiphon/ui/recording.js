/**
 * A stream as it arrived: every event with its time, and the Response that they fold to.
 *
 * If the connection breaks before the last event, the stream is taken up again after the last event that arrived.
 * @typedef {{number: number, time: number, type: string, bytes: number, item: string, raw: string}} WireEvent
 * @typedef {'connecting' | 'streaming' | 'resuming' | 'ended' | 'stopped' | 'failed'} State
 */

import { ApiError, send } from './api.js';
import { applyEvent, isTerminal } from './fold.js';
import { readEvents } from './sse.js';

const MAX_ATTEMPTS = 12; // to take a stream up again, in about half a minute
const MAX_PAUSE = 4000; // milliseconds between two attempts
const encoder = new TextEncoder();

export class Recording {
  /** @type {WireEvent[]} */
  events = [];
  /** @type {import('./fold.js').Json | null} */
  response = null;
  /** @type {State} */
  state = 'connecting';
  error = '';
  /** The field of the request that the server rejected. @type {string | null} */
  rejected = null;
  began = performance.now();
  firstDelta = 0;
  lastDelta = 0;
  bytes = 0;
  /** Types of the events so far. @type {Set<string>} */
  types = new Set();
  /** Numbers of the items, in the order of their first events. @type {Map<string, number>} */
  items = new Map();
  /** Numbers of the events after which the connection was lost. @type {number[]} */
  breaks = [];
  #last = -1;
  #followed = '';
  #abort = new AbortController();
  #changed;

  /** @param {() => void} changed called after every change */
  constructor(changed) {
    this.#changed = changed;
  }

  get id() {
    return this.response?.id ?? this.#followed;
  }

  get isRunning() {
    return this.state === 'connecting' || this.state === 'streaming' || this.state === 'resuming';
  }

  /** Create a response and record its stream to the end. @param {Record<string, unknown>} body */
  create(body) {
    return this.#run('/v1/responses', { method: 'POST', body: { ...body, stream: true } });
  }

  /**
   * Record the stream of a stored response, all of it or what follows an event.
   * @param {string} id
   * @param {number} after
   */
  follow(id, after = -1) {
    this.#last = after;
    this.#followed = id;
    return this.#run(streamPath(id, after), {});
  }

  /** Close the connection, as if the network had failed: the stream is taken up again. */
  drop() {
    this.#abort.abort();
  }

  /** End the response: cancel it if it runs in the background, else close its connection. */
  async stop() {
    if (this.response?.background && this.id) {
      await send(`/v1/responses/${this.id}/cancel`, { method: 'POST' }).catch((error) => this.#end('failed', error));
    } else {
      this.#end('stopped');
      this.#abort.abort();
    }
  }

  /**
   * @param {string} path
   * @param {{method?: string, body?: unknown}} options
   */
  async #run(path, options) {
    for (let attempt = 0; this.isRunning; attempt++) {
      const failure = await this.#read(path, options, () => { attempt = 0; });
      if (!this.isRunning) return;
      if ((failure && !isTemporary(failure)) || !this.id || attempt >= MAX_ATTEMPTS) {
        this.#end('failed', failure ?? new Error('The connection was lost.'));
        return;
      }
      if (this.breaks[this.breaks.length - 1] !== this.#last) this.breaks.push(this.#last);
      this.state = 'resuming';
      this.#changed();
      if (attempt) await new Promise((resolve) => { setTimeout(resolve, Math.min(MAX_PAUSE, 125 * 2 ** attempt)); });
      path = streamPath(this.id, this.#last);
      options = {};
    }
  }

  /**
   * Read one connection to its end; return why it failed, if the server said so.
   * @param {string} path
   * @param {{method?: string, body?: unknown}} options
   * @param {() => void} arrived
   * @returns {Promise<Error | null>}
   */
  async #read(path, options, arrived) {
    this.#abort = new AbortController();
    try {
      const reply = await send(path, { ...options, signal: this.#abort.signal });
      if (!reply.body) return null;
      for await (const events of readEvents(reply.body)) {
        arrived();
        for (const event of events) this.#take(event);
        this.#changed();
        if (!this.isRunning) return null;
      }
      return null;
    } catch (error) {
      return error instanceof ApiError ? error : null; // others: the connection broke
    }
  }

  /** @param {import('./sse.js').SseEvent} sse */
  #take({ type, data, raw }) {
    if (type === 'keepalive' || data === '[DONE]') return;
    const event = JSON.parse(data);
    const time = performance.now() - this.began;
    const item = event.item_id ?? event.item?.id ?? (event.output_index === undefined ? '' : `#${event.output_index}`);
    const number = event.sequence_number ?? this.#last + 1;
    const bytes = encoder.encode(raw).length;
    this.events.push({ number, time, type: event.type, bytes, item, raw });
    this.bytes += bytes;
    this.types.add(event.type);
    if (item && !this.items.has(item)) this.items.set(item, this.items.size);
    this.#last = number;
    if (event.type.endsWith('.delta')) {
      this.firstDelta ||= time;
      this.lastDelta = time;
    }
    this.response = applyEvent(this.response, event);
    this.state = 'streaming';
    if (isTerminal(event.type)) this.#end('ended');
  }

  /** @param {State} state @param {Error} [error] */
  #end(state, error) {
    if (!this.isRunning) return;
    this.state = state;
    this.error = error?.message ?? '';
    if (error instanceof ApiError) this.rejected = error.param;
    this.#changed();
  }
}

/** @param {string} id @param {number} after */
function streamPath(id, after) {
  return `/v1/responses/${encodeURIComponent(id)}?stream=true${after < 0 ? '' : `&starting_after=${after}`}`;
}

/** @param {Error} error whether another attempt may succeed */
function isTemporary(error) {
  return error instanceof ApiError && [0, 429, 502, 503, 504].includes(error.status);
}

/** The JSON of an event. @param {WireEvent} event */
export function parseEvent(event) {
  return JSON.parse(event.raw.replace(/^(?:event:.*\n)?data: ?/, ''));
}
