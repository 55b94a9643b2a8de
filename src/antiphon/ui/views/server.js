/** Server: readiness, queues, the store, the last hour, models, engines and tools. */

import { html } from '../vendor/lit-html.js';
import { signal } from '../vendor/signals-core.js';
import { getJson, needsKey } from '../api.js';
import { table } from '../items.js';
import { capabilities, loadCapabilities, route } from '../store.js';

/** @typedef {import('../fold.js').Json} Json */

const REFRESH = 5000; // milliseconds
const CHARTS = ['running', 'waiting', 'responses', 'failed', 'output_tokens', 'memory_bytes'];
const state = signal({ ready: '', version: '', denied: '', status: /** @type {Json | null} */ (null) });
let timer = 0;

export function serverView() {
  watch();
  const { ready, version, denied, status } = state.value;
  const { data = [], tools = [], failing = [] } = capabilities.value ?? {};
  return html`<section class="server" aria-label="Server">
    <div class="row bar"><span class="chip ${ready === 'ready' ? 'state-completed' : 'state-failed'}">${ready || '…'}</span>
      <span class="muted">Antiphon ${version}</span><span class="grow"></span><a href="/docs">API documentation</a></div>
    ${failing.map((/** @type {Json} */ one) => html`<p class="error" role="alert">${one.model}: ${one.error}</p>`)}
    ${status ? renderStatus(status) : html`<p class="muted">${denied}</p>`}
    <h2>Models</h2>${data.map(renderModel)}
    <h2>Tools</h2>
    ${table(['Tool', 'State'], tools, ({ type, ready, missing, servers }) => [type, (ready ? 'configured' : missing) + (servers ? ` · ${servers.join(', ')}` : '')])}</section>`;
}

/** @param {Json} status */
function renderStatus({ running, waiting, shedding, store, queues, samples, sample_seconds: seconds }) {
  return html`<p>${running} running · ${waiting} waiting · store ${store.kind}: ${store.responses.toLocaleString('en')} responses, ${megabytes(store.bytes)}${store.healthy ? '' : ' · it does not respond'}</p>
    ${shedding.stage === 'none' ? html`<p>All work is accepted · load ${list(shedding.loads, (load) => `${Math.round(100 * load)} %`) || 'unknown'}</p>`
      : html`<p class="error" role="alert">New work is rejected (${shedding.stage}): ${shedding.reason}</p>`}
    <div class="charts">${CHARTS.map((name) => chart(name, samples.map((/** @type {Json} */ one) => one[name] ?? 0)))}</div>
    <p class="muted">The last hour, every ${seconds} s.</p>
    ${table(['Queue', 'Running', 'Slots', 'Waiting'], queues, (one) => [one.model, one.running, one.slots, list(one.waiting, String) || 0])}`;
}

/** @param {Record<string, number>} values @param {(value: number) => string} show */
function list(values, show) {
  return Object.entries(values).map(([name, value]) => `${name} ${show(value)}`).join(' · ');
}

/** @param {string} name @param {number[]} values */
function chart(name, values) {
  const [title, unit] = name.split('_');
  const top = Math.max(1, ...values), step = 200 / Math.max(1, values.length - 1), last = values[values.length - 1];
  const points = values.map((value, index) => `${(index * step).toFixed(1)},${(39 - (38 * value) / top).toFixed(1)}`).join(' ');
  return html`<figure><figcaption>${title} ${unit === 'tokens' ? unit : ''} <b>${last === undefined ? '–' : unit === 'bytes' ? megabytes(last) : last.toLocaleString('en')}</b></figcaption>
    <svg viewBox="0 0 200 40" preserveAspectRatio="none" role="img" aria-label=${`${title} in the last hour`}><polyline points=${points}></polyline></svg></figure>`;
}

/** @param {number} bytes */
function megabytes(bytes) {
  return `${(bytes / 1e6).toFixed(1)} MB`;
}

/** @param {Json} model */
function renderModel(model) {
  return html`<div class="item box"><div class="row"><b>${model.model}</b><span class="chip state-${model.healthy ? 'completed' : 'failed'}">${model.healthy ? 'healthy' : 'down'}</span>
      <span class="muted">${model.engine} ${model.engine_version ?? ''} · ${model.level} · context ${model.context ?? 'unknown'}</span></div>
    ${table(['Engine', 'State', 'Breaker', 'Running', 'Slots'], model.members, (one) => [one.name,
      one.draining ? 'draining' : one.healthy ? 'healthy' : 'down', one.breaker, one.running, one.slots ?? '–'])}
    <details><summary>Fields: ${model.honours.length} honoured, ${Object.keys(model.lacks).length} rejected</summary>
      <p>${model.honours.join(', ')}</p>
      ${table(['Field', 'Reason'], Object.entries(model.lacks), ([name, reason]) => [name, reason])}</details></div>`;
}

function watch() {
  if (timer) return;
  const refresh = () => {
    if (route.value.view !== 'server' || needsKey.value) {
      clearInterval(timer);
      timer = 0;
    } else if (!document.hidden) {
      load();
    }
  };
  timer = setInterval(refresh, REFRESH);
  queueMicrotask(refresh);
}

async function load() {
  loadCapabilities();
  const [ready, version, status] = await Promise.all([
    getJson('/ready').then((reply) => reply.sheds ?? reply.status, String),
    getJson('/version').then((reply) => reply.version, String),
    getJson('/v1/antiphon/server').catch((error) => error.message),
  ]);
  const denied = typeof status === 'string' ? status : '';
  state.value = { ready, version, denied, status: denied ? null : status };
}
