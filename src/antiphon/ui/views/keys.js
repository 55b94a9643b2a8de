/** Keys: API keys of the server, for a key with the scope admin. */

import { html, nothing } from '../vendor/lit-html.js';
import { signal } from '../vendor/signals-core.js';
import { getJson, send } from '../api.js';
import { table } from '../items.js';
import { attempt, route } from '../store.js';

/** @typedef {import('../fold.js').Json} Json */

const KEYS = '/v1/antiphon/keys';
const keys = signal(/** @type {Json[]} */ ([]));
const usage = signal(/** @type {Json[]} */ ([]));
const denied = signal('');
const created = signal(''); // the secret of a new key, which is shown once
/** @type {unknown} */
let loaded;

export function keysView() {
  if (loaded !== route.value) {
    loaded = route.value;
    queueMicrotask(load);
  }
  if (denied.value) return html`<p class="empty">${denied.value}</p>`;
  return html`<section class="keys" aria-label="Keys">
    <form class="row bar" @submit=${create}>
      <label>Tenant <input name="tenant" class="short" required></label><label>Name <input name="name" maxlength="100"></label>
      <label class="check"><input type="checkbox" name="admin"> admin</label><button class="primary">Create a key</button></form>
    ${created.value ? html`<p class="notice" role="status">Copy the key now, it is not shown again: <code>${created.value}</code>
      <button class="link" @click=${() => { created.value = ''; }}>Done</button></p>` : nothing}
    ${keys.value.length ? table(['Key', 'Tenant', 'Name', 'Scopes', 'Created', 'State', 'Limits', 'Action'], keys.value, keyCells) : html`<p class="empty">There are no keys.</p>`}
    <h2>Usage per day</h2>
    ${usage.value.length ? table(['Day', 'Tenant', 'Key', 'Responses', 'In', 'Cached', 'Out'], usage.value, usageCells) : html`<p class="muted">None in 30 days.</p>`}</section>`;
}

/** @param {Json} key */
function keyCells({ id, tenant, name, scopes, created_at: created, state, limits }) {
  const { requests_per_minute: requests, tokens_per_minute: tokens, concurrent_responses: responses } = limits;
  const bounds = [requests && `${requests} requests/min`, tokens && `${tokens} tokens/min`, responses && `${responses} at once`];
  return [
    html`<code>${id}</code>`, tenant, name, scopes.join(', '), created ? new Date(created * 1000).toLocaleDateString() : 'in the settings',
    html`<span class="chip state-${state === 'good' ? 'completed' : 'failed'}">${state}</span>`, bounds.filter(Boolean).join(', '),
    created && state === 'good' ? html`<button class="stop" @click=${() => revoke(id)}>Revoke</button>` : '',
  ];
}

/** @param {Json} day */
function usageCells({ date, tenant, key, responses, input_tokens: input, cached_tokens: cached, output_tokens: output }) {
  return [date, tenant, keys.value.find((one) => one.id === key)?.name || key || 'without a key', responses, input, cached, output];
}

function load() {
  denied.value = '';
  return Promise.all([getJson(`${KEYS}?limit=100`), getJson('/v1/antiphon/usage')]).then(([listed, days]) => {
    keys.value = [...listed.data, ...listed.configured];
    usage.value = days.data;
  }, ({ message }) => { denied.value = message; });
}

/** @param {any} event */
function create(event) {
  event.preventDefault();
  const { tenant, name, admin } = event.target.elements;
  const body = { tenant: tenant.value, name: name.value, scopes: admin.checked ? ['inference', 'admin'] : ['inference'] };
  return attempt(async () => {
    created.value = (await (await send(KEYS, { method: 'POST', body })).json()).key;
    await load();
  });
}

/** @param {string} id */
function revoke(id) {
  if (!confirm(`Revoke ${id}? Its clients lose access at once.`)) return undefined;
  return attempt(async () => {
    await send(`${KEYS}/${id}/revoke`, { method: 'POST' });
    await load();
  });
}
