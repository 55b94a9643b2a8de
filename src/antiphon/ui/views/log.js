/** Log: the stored responses that the key may read, newest first. */

import { html, nothing } from '../vendor/lit-html.js';
import { needsKey } from '../api.js';
import { loadLog, log, navigate, route, setQuery } from '../store.js';

/** @typedef {import('../fold.js').Json} Json */

const REFRESH = 3000; // milliseconds
let timer = 0;

export function logView() {
  watch();
  const { query } = route.value;
  const status = query.get('status') ?? '', model = query.get('model') ?? '';
  const rows = log.value.filter((one) => (!status || one.status === status) && (!model || one.model === model));
  return html`<section class="log" aria-label="Log">
    <div class="row bar">
      ${choice('status', 'Status', [...new Set(log.value.map((one) => one.status))], status, { status, model })}
      ${choice('model', 'Model', [...new Set(log.value.map((one) => one.model))], model, { status, model })}
      <span class="grow"></span>
      <form class="row find" @submit=${(/** @type {any} */ event) => {
        event.preventDefault();
        navigate(`/ui/wire/${encodeURIComponent(event.target.elements.id.value.trim())}`);
      }}><label>Response <input name="id" placeholder="resp_…" required></label><button>Show</button></form></div>
    ${rows.length ? html`<div class="scroll" tabindex="0"><table><thead><tr><th>Time</th><th>Status</th><th>Model</th><th>Output</th><th>In</th><th>Out</th><th>Seconds</th><th>Response</th></tr></thead>
      <tbody>${rows.map(renderRow)}</tbody></table></div>` : html`<p class="empty">No stored responses.</p>`}
    <p class="muted">The latest 100 stored responses, read every ${REFRESH / 1000} seconds.</p></section>`;
}

/** @param {Json} response */
function renderRow(response) {
  const { usage } = response;
  return html`<tr><td>${new Date(response.created_at * 1000).toLocaleTimeString()}</td>
    <td><span class="chip state-${response.status}">${response.status}</span></td><td>${response.model}</td>
    <td>${composition(response.output)}</td><td>${usage?.input_tokens ?? ''}</td><td>${usage?.output_tokens ?? ''}</td>
    <td>${response.completed_at ? response.completed_at - response.created_at : ''}</td>
    <td><a href="/ui/talk/${response.id}" data-nav>talk</a> <a href="/ui/wire/${response.id}" data-nav>wire</a> <code>${response.id}</code></td></tr>`;
}

/** @param {Json[]} output what a response consists of */
function composition(output) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const { type } of output) counts.set(type, (counts.get(type) ?? 0) + 1);
  return [...counts].map(([type, count]) => html`<span class="chip">${count > 1 ? `${count} ` : ''}${type.replaceAll('_', ' ')}</span> `);
}

/**
 * @param {string} name
 * @param {string} title
 * @param {string[]} values
 * @param {string} value
 * @param {Record<string, string>} query
 */
function choice(name, title, values, value, query) {
  if (!values.length) return nothing;
  return html`<label>${title} <select name=${name} @change=${(/** @type {any} */ event) => setQuery({ ...query, [name]: event.target.value })}>
    <option value="">all</option>${values.sort().map((one) => html`<option ?selected=${one === value}>${one}</option>`)}</select></label>`;
}

/** Read the log while the view is shown. */
function watch() {
  if (timer) return;
  const refresh = () => {
    if (route.value.view !== 'log' || needsKey.value) {
      clearInterval(timer);
      timer = 0;
    } else if (!document.hidden) {
      loadLog();
    }
  };
  timer = setInterval(refresh, REFRESH);
  queueMicrotask(refresh);
}
