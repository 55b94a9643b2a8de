/** Server: models, engines, tools, readiness and figures. */

import { html, nothing } from '../vendor/lit-html.js';
import { signal } from '../vendor/signals-core.js';
import { ApiError, getJson, getText, needsKey } from '../api.js';
import { capabilities, loadCapabilities, route } from '../store.js';

/** @typedef {import('../fold.js').Json} Json */

const REFRESH = 5000; // milliseconds
const CHARTS = { running: 'running', waiting: 'waiting', responses: 'ended', output_tokens: 'tokens out', memory_bytes: 'memory' };
/** @type {import('../vendor/signals-core.js').Signal<{ready: string, version: string, metrics: string, denied: string, status: Json | null}>} */
const state = signal({ ready: '', version: '', metrics: '', denied: '', status: null });
const filter = signal('');
let timer = 0;

export function serverView() {
  watch();
  const { ready, version, metrics, denied, status } = state.value;
  const models = capabilities.value?.data ?? [], tools = capabilities.value?.tools ?? [], failing = capabilities.value?.failing ?? [];
  return html`<section class="server" aria-label="Server">
    <div class="row bar"><span class="chip ${ready === 'ready' ? 'state-completed' : 'state-failed'}">${ready || '…'}</span>
      <span class="muted">Antiphon ${version}</span><span class="grow"></span><a href="/docs">API documentation</a></div>
    ${failing.map((/** @type {Json} */ one) => html`<p class="error" role="alert">${one.model}: ${one.error}</p>`)}
    ${status ? renderStatus(status) : nothing}
    <h2>Models</h2>${models.map(renderModel)}
    <h2>Tools</h2>
    <div class="scroll" tabindex="0"><table><tbody>${tools.map((/** @type {Json} */ tool) => html`<tr><td>${tool.type}</td>
      <td>${tool.ready ? 'configured' : tool.missing}${tool.servers ? ` · ${tool.servers.join(', ')}` : ''}</td></tr>`)}</tbody></table></div>
    <h2>Figures</h2>
    ${denied ? html`<p class="muted">${denied}</p>` : figures(metrics)}</section>`;
}

/** @param {Json} status */
function renderStatus({ running, waiting, shedding, store, queues, samples, sample_seconds: seconds }) {
  return html`<p>${running} running · ${waiting} waiting · store ${store.kind}: ${format(store.responses)} responses, ${megabytes(store.bytes)}${store.healthy ? '' : ' · it does not respond'}</p>
    ${shedding.stage === 'none' ? nothing : html`<p class="error" role="alert">New work is rejected (${shedding.stage}): ${shedding.reason}</p>`}
    <div class="charts">${Object.entries(CHARTS).map(([name, title]) => chart(title, samples.map((/** @type {Json} */ one) => one[name] ?? 0), name === 'memory_bytes'))}</div>
    <p class="muted">The last hour, a sample every ${seconds} seconds.</p>
    ${queues.map((/** @type {Json} */ one) => html`<p class="muted">${one.model}: ${one.running} of ${one.slots} slots</p>`)}`;
}

/** @param {string} title @param {number[]} values @param {boolean} isBytes */
function chart(title, values, isBytes) {
  const top = Math.max(1, ...values), step = 200 / Math.max(1, values.length - 1), last = values[values.length - 1];
  const points = values.map((value, index) => `${(index * step).toFixed(1)},${(39 - (38 * value) / top).toFixed(1)}`).join(' ');
  return html`<figure><figcaption>${title} <b>${last === undefined ? '–' : isBytes ? megabytes(last) : format(last)}</b></figcaption>
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
    ${model.members.length ? html`<div class="scroll" tabindex="0"><table><thead><tr><th>Engine</th><th>State</th><th>Breaker</th><th>Running</th><th>Slots</th></tr></thead>
      <tbody>${model.members.map((/** @type {Json} */ one) => html`<tr><td>${one.name}</td><td>${one.draining ? 'draining' : one.healthy ? 'healthy' : 'down'}</td>
        <td>${one.breaker}</td><td>${one.running}</td><td>${one.slots ?? '–'}</td></tr>`)}</tbody></table></div>` : nothing}
    <details><summary>Fields: ${model.honours.length} honoured, ${Object.keys(model.lacks).length} rejected</summary>
      <p>${model.honours.map((/** @type {string} */ name) => html`<span class="chip">${name}</span> `)}</p>
      <table><tbody>${Object.entries(model.lacks).map(([name, reason]) => html`<tr><td>${name}</td><td>${reason}</td></tr>`)}</tbody></table></details></div>`;
}

/** @param {string} metrics in the Prometheus format */
function figures(metrics) {
  const found = readFigures(metrics).filter(([name]) => name.includes(filter.value));
  return html`<label>Filter <input .value=${filter.value} @input=${(/** @type {any} */ event) => { filter.value = event.target.value; }}></label>
    <div class="scroll" tabindex="0"><table><tbody>${found.map(([name, value]) => html`<tr><td><code>${name}</code></td><td class="value">${value}</td></tr>`)}</tbody></table></div>`;
}

/**
 * Names and values of the metrics that are not zero; histograms as their mean and count.
 * @param {string} metrics
 * @returns {[string, string][]}
 */
function readFigures(metrics) {
  const lines = metrics.split('\n').map((line) => /^antiphon_([^{\s]+)(\{.*\})?\s+(\S+)$/.exec(line));
  const values = new Map(lines.filter((line) => line !== null).map((line) => [line[1] + (line[2] ?? ''), Number(line[3])]));
  return [...values].filter(([name, value]) => value && !/^\w+_(bucket|created|sum)\b/.test(name)).map(([name, value]) => {
    const sum = values.get(name.replace(/_count\b/, '_sum'));
    const isHistogram = /^\w+_count\b/.test(name) && sum !== undefined;
    return isHistogram ? [name.replace(/_count\b/, ''), `mean ${format(sum / value)} of ${value}`] : [name, format(value)];
  });
}

/** @param {number} value */
function format(value) {
  return Number.isInteger(value) ? value.toLocaleString('en') : value.toPrecision(3);
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
  const [ready, version, metrics, status] = await Promise.all([
    getJson('/ready').then((reply) => reply.sheds ?? reply.status, String),
    getJson('/version').then((reply) => reply.version, String),
    getText('/metrics').catch((error) => error),
    state.value.denied ? null : getJson('/v1/antiphon/server').catch(() => null),
  ]);
  const isText = typeof metrics === 'string';
  state.value = { ready, version, metrics: isText ? metrics : '', denied: isText ? '' : metrics instanceof ApiError ? metrics.message : String(metrics), status };
}
