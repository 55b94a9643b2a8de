/** Server: models, engines, tools, readiness and figures. */

import { html, nothing } from '../vendor/lit-html.js';
import { signal } from '../vendor/signals-core.js';
import { ApiError, getJson, getText, needsKey } from '../api.js';
import { capabilities, loadCapabilities, route } from '../store.js';

/** @typedef {import('../fold.js').Json} Json */

const REFRESH = 5000; // milliseconds
const state = signal({ ready: '', version: '', metrics: '', denied: '' });
const filter = signal('');
let timer = 0;

export function serverView() {
  watch();
  const { ready, version, metrics, denied } = state.value;
  const models = capabilities.value?.data ?? [], tools = capabilities.value?.tools ?? [], failing = capabilities.value?.failing ?? [];
  return html`<section class="server" aria-label="Server">
    <div class="row bar"><span class="chip ${ready === 'ready' ? 'state-completed' : 'state-failed'}">${ready || '…'}</span>
      <span class="muted">Antiphon ${version}</span><span class="grow"></span><a href="/docs">API documentation</a></div>
    ${failing.map((/** @type {Json} */ one) => html`<p class="error" role="alert">${one.model}: ${one.error}</p>`)}
    <h2>Models</h2>${models.map(renderModel)}
    <h2>Tools</h2>
    <div class="scroll" tabindex="0"><table><tbody>${tools.map((/** @type {Json} */ tool) => html`<tr><td>${tool.type}</td>
      <td>${tool.ready ? 'configured' : tool.missing}${tool.servers ? ` · ${tool.servers.join(', ')}` : ''}</td></tr>`)}</tbody></table></div>
    <h2>Figures</h2>
    ${denied ? html`<p class="muted">${denied}</p>` : figures(metrics)}</section>`;
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
  const [ready, version, metrics] = await Promise.all([
    getJson('/ready').then((reply) => reply.sheds ?? reply.status, String),
    getJson('/version').then((reply) => reply.version, String),
    getText('/metrics').catch((error) => error),
  ]);
  const isText = typeof metrics === 'string';
  state.value = { ready, version, metrics: isText ? metrics : '', denied: isText ? '' : metrics instanceof ApiError ? metrics.message : String(metrics) };
}
