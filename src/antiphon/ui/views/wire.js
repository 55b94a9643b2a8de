/** Wire: the events of one stream as they arrived, and that they can be read again. */

import '../event-axis.js';
import '../event-list.js';
import { html, nothing } from '../vendor/lit-html.js';
import { signal } from '../vendor/signals-core.js';
import { applyEvent } from '../fold.js';
import { pretty, renderItem } from '../items.js';
import { eventText, parseEvent } from '../recording.js';
import { findRecording, forgetRecording, frame, latestRecording, makeRecording, navigate, route, setQuery } from '../store.js';

/**
 * @typedef {import('../fold.js').Json} Json
 * @typedef {import('../recording.js').Recording} Recording
 * @typedef {import('../recording.js').WireEvent} WireEvent
 * @typedef {{after: number, recording: Recording}} Comparison
 * @typedef {{shown: number, response: Json | null}} Playback what a replay has shown so far
 */

const SPEEDS = [1, 10];
const selected = signal(-1); // the number of an event
const comparison = signal(/** @type {Comparison | null} */ (null));
const playback = signal(/** @type {Playback | null} */ (null));
/** @type {Recording | undefined} */
let shown;

export function wireView() {
  frame.value; // recordings grow without being replaced
  const { id, query } = route.value;
  const recording = id ? findRecording(id) : latestRecording();
  if (!recording) return findForm('Nothing has been streamed to this page yet. Talk to the model, or name a response.');
  if (recording !== shown) reset(recording);
  const type = query.get('type') ?? '', item = query.get('item') ?? '';
  const end = playback.value?.shown ?? recording.events.length;
  const isFiltered = type || item || end < recording.events.length;
  const events = isFiltered ? recording.events.slice(0, end).filter((event) => (!type || event.type === type) && (!item || event.item === item)) : recording.events;
  const chosen = recording.events.find((event) => event.number === selected.value);
  return html`<section class="wire" aria-label="Wire">
    ${toolbar(recording)}
    <event-axis .data=${{ events: recording.events, shown: end, selected: selected.value }} @pick=${pick}></event-axis>
    <div class="row bar">${choice('type', [...recording.types].sort(), { type, item })}${choice('item', [...recording.items.keys()], { type, item })}<span class="grow"></span>${findForm('')}</div>
    <div class="columns">
      <event-list .data=${{ events, label: 'Events', selected: selected.value, length: events.length }} @pick=${pick}></event-list>
      ${comparison.value ? comparisonColumn(comparison.value, recording) : nothing}
      <div class="detail">${chosen ? eventDetail(chosen, recording) : nothing}${result(recording)}</div>
    </div></section>`;
}

/** @param {Recording} recording */
function toolbar(recording) {
  const { bytes, events, state } = recording;
  return html`<div class="row bar">
    <code class="id">${recording.id || '…'}</code><span class="chip state-${state}">${state}</span>
    <span class="muted">${events.length} events · ${(bytes / 1024).toFixed(1)} kB${recording.breaks.length ? ` · connection lost after ${recording.breaks.join(', ')}, taken up again` : ''}</span>
    ${recording.error ? html`<span class="error" role="alert">${recording.error}</span>` : nothing}
    <span class="grow"></span>
    ${recording.isRunning ? html`<button @click=${() => recording.drop()}>Drop the connection</button><button class="stop" @click=${() => recording.stop()}>Stop</button>`
      : html`<span>Replay</span>${SPEEDS.map((speed) => html`<button @click=${() => play(recording, speed)}>${speed}×</button>`)}
        <button @click=${() => { playback.value = null; }}>at once</button>
        <button title="Read the stream from the server again" @click=${() => readAgain(recording)}>Reload</button>`}
  </div>`;
}

/**
 * A filter in the address.
 * @param {string} name
 * @param {string[]} values
 * @param {Record<string, string>} query all filters of the view
 */
export function choice(name, values, query) {
  return html`<label class="choice">${name} <select name=${name} @change=${(event) => setQuery({ ...query, [name]: event.target.value })}><option value="">all</option>${values.map((one) => html`<option value=${one} .selected=${one === query[name]}>${one}</option>`)}</select></label>`;
}

/** @param {string} text */
export function findForm(text) {
  return html`${text ? html`<p class="empty">${text}</p>` : nothing}<form class="row find" @submit=${(event) => {
    event.preventDefault();
    navigate(`/ui/wire/${encodeURIComponent(event.target.elements.id.value.trim())}`);
  }}><label>Response <input name="id" placeholder="resp_…" required></label><button>Show</button></form>`;
}

/** @param {Comparison} compared @param {Recording} recording */
function comparisonColumn({ after, recording: again }, recording) {
  const originals = new Map(recording.events.map((event) => [event.number, eventText(event)]));
  /** @param {WireEvent} event */
  const isEqual = (event) => originals.get(event.number) === eventText(event);
  const expected = recording.events.filter((event) => event.number > after).length;
  const equal = again.events.filter(isEqual).length;
  const isSame = equal === expected && again.events.length === expected;
  return html`<div class="comparison">
    <p class=${again.isRunning ? 'muted' : isSame ? 'same' : 'other'} role="status">${again.error || `${equal} of ${expected} events after ${after} equal, byte for byte`}</p>
    <event-list .data=${{ events: again.events, label: 'Read again', selected: selected.value, isEqual, length: again.events.length }} @pick=${pick}></event-list>
    <button class="link" @click=${() => { comparison.value = null; }}>Close</button></div>`;
}

/** @param {WireEvent} event @param {Recording} recording */
function eventDetail(event, recording) {
  return html`<div class="box item"><div class="row"><b>${event.number} ${event.type}</b><span class="grow"></span>
    <button @click=${() => resume(recording, event.number)}>Resume from here</button></div>
    <pre tabindex="0" aria-label="Event">${pretty(parseEvent(event))}</pre>
    <details><summary>${event.bytes} bytes</summary><pre tabindex="0">${event.raw}</pre></details></div>`;
}

/** What the events fold to, as far as shown. @param {Recording} recording */
function result(recording) {
  const response = playback.value ? playback.value.response : recording.response;
  return html`<div class="result">${(response?.output ?? []).map((/** @type {Json} */ item, /** @type {number} */ index) =>
    item ? renderItem(item, `wire/${recording.id}/${index}`, response?.status === 'in_progress') : nothing)}</div>`;
}

/** @param {CustomEvent<number>} event */
function pick(event) {
  selected.value = event.detail;
}

/** @param {Recording} recording */
function reset(recording) {
  shown = recording;
  queueMicrotask(() => {
    selected.value = -1;
    comparison.value = playback.value = null;
  });
}

/** Read the events after one again, in a second column. @param {Recording} recording @param {number} after */
function resume(recording, after) {
  const again = makeRecording();
  again.items = recording.items; // the same colours
  comparison.value = { after, recording: again };
  again.follow(recording.id, after);
}

/** Show the events in the times in which they arrived. @param {Recording} recording @param {number} speed */
function play(recording, speed) {
  const began = performance.now();
  /** @type {Playback} */
  const state = { shown: 0, response: null };
  playback.value = state;
  const step = () => {
    const current = playback.value;
    if (!current || shown !== recording || (current !== state && current.shown !== state.shown)) return;
    const elapsed = (performance.now() - began) * speed;
    while (state.shown < recording.events.length && recording.events[state.shown].time <= elapsed) {
      state.response = applyEvent(state.response, parseEvent(recording.events[state.shown++]));
    }
    playback.value = state.shown < recording.events.length ? { ...state } : null;
    if (playback.value) requestAnimationFrame(step);
  };
  step();
}

/** @param {Recording} recording */
function readAgain(recording) {
  forgetRecording(recording.id);
  findRecording(recording.id);
  navigate(`/ui/wire/${recording.id}`);
}
