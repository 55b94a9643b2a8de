/** MCP: try a server: its tools, which of them a response would ask about, the bounds, and calls without a model. */

import { html, nothing } from '../vendor/lit-html.js';
import { signal } from '../vendor/signals-core.js';
import { send } from '../api.js';
import { pretty, renderItem } from '../items.js';
import { attempt, capabilities } from '../store.js';

/** @typedef {import('../fold.js').Json} Json */

/** The declaration and the tools of a server, and the last call of each. */
const shown = signal(/** @type {Json | null} */ (null));

export function mcpView() {
  const labels = capabilities.value?.tools?.find((/** @type {Json} */ one) => one.type === 'mcp')?.servers ?? [];
  return html`<section class="mcp" aria-label="MCP">
    <form class="row bar" @submit=${list}>
      <label>Label <input name="server_label" class="short" value=${labels[0] ?? 'mcp'} required></label>
      <label>URL <input name="server_url" type="url" placeholder=${labels.length ? `not for ${labels.join(', ')}` : 'https://…/mcp'}></label>
      <label>Token <input name="authorization" type="password" class="short" autocomplete="off"></label>
      <label>Approval <select name="require_approval"><option value="">default</option><option>always</option><option>never</option></select></label>
      <button class="primary">List its tools</button></form>
    ${shown.value ? renderServer(shown.value) : html`<p class="empty">Name an MCP server to try its tools.</p>`}</section>`;
}

/** @param {Json} server */
function renderServer({ tools, bounds, needs_approval: asked }) {
  return html`<p class="muted">${tools.length} of at most ${bounds.tools} tools, listed within ${bounds.list_seconds} s. A call ends after ${bounds.call_seconds} s,
      or ${bounds.longest_seconds} s with progress; ${bounds.calls_at_once} run at once. An output has at most ${bounds.output_bytes / 1024} KiB.</p>
    ${tools.map((/** @type {Json} */ tool) => renderTool(tool, asked.includes(tool.name), shown.value?.calls[tool.name]))}`;
}

/** @param {Json} tool @param {boolean} isAsked @param {Json} last */
function renderTool(tool, isAsked, last) {
  const { properties, required } = tool.input_schema; // anything, since the server made it
  const hints = Object.entries(tool.annotations ?? {}).filter(([, value]) => value === true);
  return html`<details class="item box"><summary><b>${tool.name}</b> ${isAsked ? html`<span class="chip">needs an approval</span>` : nothing} <span class="muted">${hints.map(([name]) => name).join(' ')}</span></summary>
    <p class="plain">${tool.description}</p>
    <form class="grid" @submit=${(event) => call(event, tool, isAsked)}>
      ${Object.entries(Object(properties)).map(([name, schema]) => html`<label>${name}${[required].flat().includes(name) ? ' *' : ''} <span class="muted">${String(schema?.description ?? '')}</span>
        <input name=".${name}" placeholder=${[schema?.enum ?? schema?.type ?? 'JSON'].flat().join(' | ')}></label>`)}
      <label>Or all arguments as JSON <textarea name="json" rows="2" class="code"></textarea></label>
      <div><button class="primary">${isAsked ? 'Approve and call' : 'Call'}</button></div></form>
    ${last ? html`${renderItem(last, '')}<p class="muted">${last.ms} ms</p>` : nothing}
    <details><summary>Schema</summary><pre tabindex="0">${pretty(tool.input_schema)}</pre></details></details>`;
}

/** @param {any} event */
function list(event) {
  const server = { type: 'mcp', ...read(event) };
  shown.value = null;
  return attempt(async () => { shown.value = { server, calls: {}, ...await post('tools', { server }) }; });
}

/** @param {any} event @param {Json} tool @param {boolean} approve */
function call(event, { name, input_schema: schema }, approve) {
  const { json, ...fields } = read(event), server = shown.value?.server, began = performance.now();
  return attempt(async () => {
    const args = json ? JSON.parse(json) : Object.fromEntries(Object.entries(fields).map(([key, text]) => [key.slice(1), parse(text, schema.properties[key.slice(1)])]));
    const item = await post('call', { server, name, arguments: args, approve });
    const calls = { ...shown.value?.calls, [name]: { ...item, ms: Math.round(performance.now() - began) } };
    if (shown.value?.server === server) shown.value = { ...shown.value, calls };
  });
}

/** The fields of a form that are not empty. @param {any} event @returns {Record<string, any>} */
function read(event) {
  event.preventDefault();
  return Object.fromEntries([...new FormData(event.target)].filter(([, value]) => value));
}

/** JSON, unless the schema says or the text shows that it is a string. @param {string} text @param {any} schema */
function parse(text, schema) {
  try {
    return schema?.type === 'string' ? text : JSON.parse(text);
  } catch {
    return text;
  }
}

/** @param {string} action @param {unknown} body */
async function post(action, body) {
  return (await send(`/v1/antiphon/mcp/${action}`, { method: 'POST', body })).json();
}
