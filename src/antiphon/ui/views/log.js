/** Log: the responses that the key may read, newest first, live. */

import { html } from '../vendor/lit-html.js';
import { followFeed, isLive, log } from '../feed.js';
import { table } from '../items.js';
import { models, route } from '../store.js';
import { links } from '../tree.js';
import { choice, findForm } from './wire.js';

/** @typedef {import('../fold.js').Json} Json */

const HEADINGS = ['Time', 'Status', 'Model', 'Output', 'In', 'Cached', 'Out', 'First', 'Seconds', 'Response'];
const STATUSES = ['queued', 'in_progress', 'completed', 'incomplete', 'failed', 'cancelled'];

export function logView() {
  followFeed();
  const { query } = route.value;
  const status = query.get('status') ?? '', model = query.get('model') ?? '';
  const rows = log.value.filter((one) => (!status || one.status === status) && (!model || one.model === model));
  const names = new Set([...models.value.map((one) => one.model), ...log.value.map((one) => one.model ?? ''), model]);
  return html`<section class="log" aria-label="Log">
    <div class="row bar">
      ${choice('status', STATUSES, { status, model })}
      ${choice('model', [...names].filter(Boolean).sort(), { status, model })}
      <span class="chip ${isLive.value ? 'state-completed' : ''}">${isLive.value ? 'live' : 'not live'}</span>
      <span class="grow"></span>${findForm('')}</div>
    ${rows.length ? table(HEADINGS, rows, cells) : html`<p class="empty">No stored responses.</p>`}
    <p class="muted">What is not stored is shown if it ends while you look.</p></section>`;
}

/** @param {Json} response */
function cells({ id, created_at: created, status, error, model, items, usage, ttft, duration, stored }) {
  return [
    new Date(created * 1000).toLocaleString(),
    html`<span class="chip state-${status}">${status.replace('_', ' ')}</span> <span class="muted">${error}</span>`,
    model, composition(items), usage?.input_tokens, usage?.cached_tokens, usage?.output_tokens, ttft, duration,
    html`${stored ? links(id, 'talk', 'wire', 'items', 'timing') : 'not stored '}<code>${id}</code>`,
  ];
}

/** @param {Record<string, number>} items what a response consists of */
export function composition(items) {
  return Object.entries(items).map(([type, count]) => html`<span class="chip">${count > 1 ? `${count} ` : ''}${type.replaceAll('_', ' ')}</span> `);
}
