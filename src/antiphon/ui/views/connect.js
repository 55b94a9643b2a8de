/** Connect: files of a client, and whether its requests arrive. */

import { html } from '../vendor/lit-html.js';
import { signal } from '../vendor/signals-core.js';
import { apiKey, BASE, getJson } from '../api.js';
import { attempt, models, navigate, route, setQuery } from '../store.js';

const CLIENTS = '/v1/antiphon/clients';
const WAIT = 180; // seconds until a test ends
const state = signal(/** @type {any} */ ({ clients: [] })); // all clients, and the one shown
const test = signal({ left: 0, result: '' });
/** @type {unknown} */
let loaded;

export function connectView() {
  const name = route.value.id || 'codex', model = route.value.query.get('model') ?? '';
  const path = `${CLIENTS}/${encodeURIComponent(name)}?${new URLSearchParams({ url: location.origin + BASE, ...(model && { model }) })}`;
  if (loaded !== route.value) {
    loaded = route.value;
    queueMicrotask(() => load(path));
  }
  const { clients, client } = state.value, { left, result } = test.value;
  return html`<div class="row bar">
      ${choice('Client', clients, name, (value) => navigate(`/ui/connect/${value}${location.search}`))}
      ${choice('Model', models.value.map((one) => ({ name: one.model })), model, (value) => setQuery({ model: value }))}</div>
    ${client ? html`${block(client.command)}
    <p class="muted">The command writes these files; with --undo it restores them. ${client.hint}</p>
    ${client.files.map((/** @type {any} */ file) => html`<h2>${file.path}</h2>${block(file.text)}`)}
    <p><button class="primary" @click=${() => (left ? finish('') : start())}>${left ? 'Stop' : 'Test it'}</button>
      <span role="status">${left ? `Waiting for a request of ${client.title}: ${left} s` : result}</span></p>` : ''}`;
}

/** @param {string} label @param {any[]} options @param {string} value @param {(value: string) => void} choose */
function choice(label, options, value, choose) {
  return html`<label>${label} <select @change=${(/** @type {any} */ event) => choose(event.target.value)}>${options.map(({ name, title }) =>
    html`<option value=${name} ?selected=${name === value}>${title ?? name}</option>`)}</select></label>`;
}

/** @param {string} text */
function block(text) {
  return html`<pre tabindex="0">${text}</pre><button @click=${() => attempt(() => navigator.clipboard.writeText(text.replaceAll('YOUR_KEY', apiKey.value)))}>Copy</button>`;
}

/** @param {string} path */
async function load(path) {
  finish('');
  await attempt(async () => { state.value = { clients: (await getJson(CLIENTS)).data, client: await getJson(path) }; });
}

/** @param {string} result */
function finish(result) {
  test.value = { left: 0, result };
}

async function start() {
  const { name, title } = state.value.client, own = loaded;
  let left = WAIT, since = 0;
  await attempt(async () => {
    do {
      test.value = { left, result: '' };
      const { at, data: [last] } = await getJson(`/v1/antiphon/user_agents?client=${name}`);
      since ||= at;
      if (last?.last_at >= since) return finish(`${last.user_agent} reached ${last.route}${last.status >= 400 ? `: rejected with status ${last.status}` : ''}`);
      await new Promise((resolve) => { setTimeout(resolve, 1000); });
    } while (--left && test.value.left && own === loaded && route.value.view === 'connect');
  });
  if (own === loaded && test.value.left) finish(`No request of ${title} arrived.`);
}
