/**
 * A stream as it arrived: every event with its time, and the Response that they fold to.
 *
 * If the connection breaks before the last event, the stream is taken up again after the last event that arrived; that
 * of a WebSocket, too, over HTTP.
 * @typedef {{number: number, time: number, type: string, isDelta: boolean, bytes: number, item: string, place: number | undefined, raw: string}} WireEvent
 * @typedef {{send: (message: object) => void, close: () => void}} Channel a WebSocket
 * @typedef {'connecting' | 'streaming' | 'resuming' | 'ended' | 'stopped' | 'failed'} State
 */

import { ApiError, send } from './api.js';
import { applyEvent, isTerminal } from './fold.js';
import { readEvents } from './sse.js';

const MAX_ATTEMPTS = 12; // to take a stream up again, in about half a minute
const MAX_PAUSE = 4000; // milliseconds between two attempts
// Milliseconds of a frame in which events are taken: it has to render, too.
const SLICE = 4;
let sliceEnd = 0;
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
  /** The WebSocket that the events arrive on. @type {Channel | null} */
  channel = null;
  #last = -1;
  #followed = '';
  #abort = new AbortController();
  #changed;
  #ended;

  /** @param {() => void} changed called after every change @param {() => void} ended called at the end */
  constructor(changed, ended = () => {}) {
    this.#changed = changed;
    this.#ended = ended;
  }

  get id() {
    return this.response?.id ?? this.#followed;
  }

  get isRunning() {
    return ['connecting', 'streaming', 'resuming'].includes(this.state);
  }

  /** Create a response and record its stream to the end. @param {Record<string, unknown>} body */
  create(body) {
    return this.#run('/v1/responses', { method: 'POST', body: { ...body, stream: true } });
  }

  /** Record the stream of a stored response, all of it or what follows an event. @param {string} id @param {number} after */
  follow(id, after = -1) {
    this.#last = after;
    this.#followed = id;
    return this.#run(streamPath(id, after), {});
  }

  /** Read on over HTTP: the WebSocket was closed. */
  lose() {
    this.channel = null;
    return this.#run('', {});
  }

  /** Close the connection, as if the network had failed: the stream is taken up again. */
  drop() {
    if (this.channel) this.channel.close();
    else this.#abort.abort();
  }

  /** End the response: cancel it, or close its connection if it neither runs in the background nor on a WebSocket. */
  async stop() {
    if (this.channel && this.id) this.channel.send({ type: 'response.cancel', response_id: this.id });
    else if (this.channel) this.drop(); // it has no id yet
    else if (this.response?.background && this.id) {
      await send(`/v1/responses/${this.id}/cancel`, { method: 'POST' }).catch((error) => this.end('failed', error));
    } else {
      this.end('stopped');
      this.#abort.abort();
    }
  }

  /** @param {string} path none if the connection has just been lost @param {{method?: string, body?: unknown}} options */
  async #run(path, options) {
    for (let attempt = 0; this.isRunning; attempt++) {
      const before = this.#last;
      const failure = path ? await this.#read(path, options) : null;
      if (this.#last > before) attempt = 0;
      if (!this.isRunning) return;
      if ((failure && !isTemporary(failure)) || !this.id || attempt >= MAX_ATTEMPTS) {
        this.end('failed', failure ?? new Error('The connection was lost.'));
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

  /** Read one connection to its end; return why it failed, if the server said so. @param {string} path @param {{method?: string, body?: unknown}} options */
  async #read(path, options) {
    this.#abort = new AbortController();
    try {
      const reply = await send(path, { ...options, signal: this.#abort.signal });
      if (!reply.body) return null;
      for await (const events of readEvents(reply.body)) {
        const now = performance.now();
        for (const { data, raw } of events) {
          await takeTurn();
          if (data !== '[DONE]') this.receive(JSON.parse(data), raw, now);
        }
        if (!this.isRunning) return null;
      }
      return null;
    } catch (error) {
      return error instanceof ApiError ? error : null; // others: the connection broke
    }
  }

  /** Take an event. @param {import('./fold.js').Json} event @param {string} raw @param {number} [arrived] */
  receive(event, raw, arrived = performance.now()) {
    if (event.type === 'keepalive' || !this.isRunning) return;
    const time = arrived - this.began;
    const item = event.item_id ?? event.item?.id ?? (event.output_index === undefined ? '' : `#${event.output_index}`);
    const number = event.sequence_number ?? this.#last + 1;
    const bytes = /[^\0-\x7f]/.test(raw) ? encoder.encode(raw).length : raw.length;
    const isDelta = event.type.endsWith('.delta');
    if (item && !this.items.has(item)) this.items.set(item, this.items.size);
    this.events.push({ number, time, type: event.type, isDelta, bytes, item, place: this.items.get(item), raw });
    this.bytes += bytes;
    this.types.add(event.type);
    this.#last = number;
    if (isDelta) {
      this.firstDelta ||= time;
      this.lastDelta = time;
    }
    this.response = applyEvent(this.response, event);
    this.state = 'streaming';
    if (isTerminal(event.type)) this.end('ended');
    else this.#changed();
  }

  /** @param {State} state @param {Error} [error] */
  end(state, error) {
    if (!this.isRunning) return;
    this.state = state;
    this.error = error?.message ?? '';
    if (error instanceof ApiError) this.rejected = error.param;
    this.#changed();
    this.#ended();
  }
}

/** Wait for the next frame if the time of this one is used up. */
function takeTurn() {
  const now = performance.now();
  if (!sliceEnd) {
    sliceEnd = now + SLICE;
    nextFrame().then(() => { sliceEnd = 0; });
  }
  return now > sliceEnd && !document.hidden ? nextFrame() : undefined;
}

export function nextFrame() {
  return new Promise((resolve) => {
    requestAnimationFrame(resolve);
    setTimeout(resolve, 500); // hidden tabs have no frames
  });
}

/** @param {string} id @param {number} after */
function streamPath(id, after) {
  return `/v1/responses/${encodeURIComponent(id)}?stream=true${after < 0 ? '' : `&starting_after=${after}`}`;
}

/** @param {Error} error whether another attempt may succeed */
function isTemporary(error) {
  return error instanceof ApiError && [0, 429, 502, 503, 504].includes(error.status);
}

/** The JSON text of an event, without what SSE and the lanes of a WebSocket add. @param {WireEvent} event */
export function eventText({ raw }) {
  return raw.replace(/^(?:event:.*\n)?data: ?/, '').replace(/,"stream_id":"[\w.-]+"}$/, '}');
}

/** The JSON of an event. @param {WireEvent} event */
export function parseEvent(event) {
  return JSON.parse(eventText(event));
}
