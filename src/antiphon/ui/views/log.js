/** Log: the stored responses that the key may read, newest first, as they begin and end. */

import { html } from '../vendor/lit-html.js';
import { followFeed, isLive, loadLog, log } from '../feed.js';
import { models, navigate, route, setQuery } from '../store.js';
import { links } from '../tree.js';

/** @typedef {import('../fold.js').Json} Json */

const STATUSES = ['queued', 'in_progress', 'completed', 'incomplete', 'failed', 'cancelled'];

export function logView() {
  followFeed();
  const { query } = route.value;
  const status = query.get('status') ?? '', model = query.get('model') ?? '';
  const rows = log.value.filter((one) => (!status || one.status === status) && (!model || one.model === model));
  const names = new Set([...models.value.map((one) => one.model), ...log.value.map((one) => one.model ?? ''), model]);
  return html`<section class="log" aria-label="Log">
    <div class="row bar">
      ${choice('status', 'Status', STATUSES, status, { status, model })}
      ${choice('model', 'Model', [...names].filter(Boolean).sort(), model, { status, model })}
      <span class="chip ${isLive.value ? 'state-completed' : ''}">${isLive.value ? 'live' : 'not live'}</span>
      <span class="grow"></span>
      <form class="row find" @submit=${(/** @type {any} */ event) => {
        event.preventDefault();
        navigate(`/ui/wire/${encodeURIComponent(event.target.elements.id.value.trim())}`);
      }}><label>Response <input name="id" placeholder="resp_…" required></label><button>Show</button></form></div>
    ${rows.length ? html`<div class="scroll" tabindex="0"><table><thead><tr><th>Time</th><th>Status</th><th>Model</th><th>Output</th><th>In</th><th>Cached</th><th>Out</th><th>First</th><th>Seconds</th><th>Response</th></tr></thead>
      <tbody>${rows.map(renderRow)}</tbody></table></div>` : html`<p class="empty">No stored responses.</p>`}</section>`;
}

/** @param {Json} response */
function renderRow(response) {
  const { usage } = response;
  return html`<tr><td>${new Date(response.created_at * 1000).toLocaleTimeString()}</td>
    <td><span class="chip state-${response.status}">${response.status.replace('_', ' ')}</span> <span class="muted">${response.error ?? ''}</span></td>
    <td>${response.model ?? ''}</td><td>${composition(response.items)}</td>
    <td class="value">${usage?.input_tokens ?? ''}</td><td class="value">${usage?.cached_tokens ?? ''}</td><td class="value">${usage?.output_tokens ?? ''}</td>
    <td class="value">${response.ttft?.toFixed(2) ?? ''}</td><td class="value">${response.duration?.toFixed(2) ?? ''}</td>
    <td>${links(response.id, 'talk', 'wire', 'items', 'timing')}<code>${response.id}</code></td></tr>`;
}

/** @param {Record<string, number>} items what a response consists of */
export function composition(items) {
  return Object.entries(items).map(([type, count]) => html`<span class="chip">${count > 1 ? `${count} ` : ''}${type.replaceAll('_', ' ')}</span> `);
}

/**
 * @param {string} name
 * @param {string} title
 * @param {string[]} values
 * @param {string} value
 * @param {Record<string, string>} query
 */
function choice(name, title, values, value, query) {
  return html`<label>${title} <select name=${name} @change=${(/** @type {any} */ event) => {
    setQuery({ ...query, [name]: event.target.value });
    loadLog();
  }}><option value="">all</option>${values.map((one) => html`<option value=${one} ?selected=${one === value}>${one.replace('_', ' ')}</option>`)}</select></label>`;
}
