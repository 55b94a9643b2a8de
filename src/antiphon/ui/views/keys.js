/** Keys: API keys of the server, for a key with the scope admin. */

import { html, nothing } from '../vendor/lit-html.js';
import { signal } from '../vendor/signals-core.js';
import { apiKey, ApiError, getJson, send } from '../api.js';
import { attempt } from '../store.js';

/** @typedef {import('../fold.js').Json} Json */

const KEYS = '/v1/antiphon/keys';
/** @type {import('../vendor/signals-core.js').Signal<{data: Json[], configured: Json[], has_more: boolean} | null>} */
const keys = signal(null);
const denied = signal('');
const created = signal(''); // the secret of a new key, which is shown once
let loadedWith = '-';

export function keysView() {
  if (loadedWith !== apiKey.value) {
    loadedWith = apiKey.value;
    queueMicrotask(load);
  }
  if (denied.value) return html`<p class="empty">${denied.value}</p>`;
  const rows = [...(keys.value?.data ?? []), ...(keys.value?.configured ?? [])];
  return html`<section class="keys" aria-label="Keys">
    <form class="row bar" @submit=${create}>
      <label>Tenant <input name="tenant" class="short" required></label><label>Name <input name="name" maxlength="100"></label>
      <label class="check"><input type="checkbox" name="admin"> admin</label><button class="primary">Create a key</button></form>
    ${created.value ? html`<p class="notice" role="status">Copy the key now, it is not shown again: <code>${created.value}</code>
      <button class="link" @click=${() => { created.value = ''; }}>Done</button></p>` : nothing}
    ${rows.length ? html`<div class="scroll" tabindex="0"><table><thead><tr><th>Key</th><th>Tenant</th><th>Name</th><th>Scopes</th><th>Created</th><th>State</th><th>Limits</th><th>Action</th></tr></thead>
      <tbody>${rows.map(renderKey)}</tbody></table></div>` : html`<p class="empty">There are no keys.</p>`}</section>`;
}

/** @param {Json} key */
function renderKey(key) {
  const { requests_per_minute: requests, tokens_per_minute: tokens, concurrent_responses: responses } = key.limits;
  const limits = [requests && `${requests} requests/min`, tokens && `${tokens} tokens/min`, responses && `${responses} at once`];
  return html`<tr><td><code>${key.id}</code></td><td>${key.tenant}</td><td>${key.name}</td><td>${key.scopes.join(', ')}</td>
    <td>${key.created_at ? new Date(key.created_at * 1000).toLocaleDateString() : 'in the settings'}</td>
    <td><span class="chip ${key.state === 'good' ? 'state-completed' : 'state-failed'}">${key.state}</span></td><td>${limits.filter(Boolean).join(', ')}</td>
    <td>${key.created_at && key.state === 'good' ? html`<button class="stop" @click=${() => revoke(key.id)}>Revoke</button>` : nothing}</td></tr>`;
}

async function load() {
  denied.value = '';
  try {
    keys.value = await getJson(`${KEYS}?limit=100`);
  } catch (error) {
    denied.value = error instanceof ApiError ? error.message : String(error);
  }
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
