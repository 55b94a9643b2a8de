/** Inbox: what waits for a person: approvals, outputs of client tools, the background queue. */

import { html, nothing } from '../vendor/lit-html.js';
import { signal } from '../vendor/signals-core.js';
import { getJson, send } from '../api.js';
import { activity, followFeed } from '../feed.js';
import { pretty } from '../items.js';
import { nextFrame } from '../recording.js';
import { attempt, makeRecording, navigate } from '../store.js';

/** @typedef {import('../fold.js').Json} Json */

/** @type {[string, string, (entry: Json) => unknown][]} */
const SECTIONS = [
  ['Calls to approve', 'approvals?limit=100', renderApproval],
  ['Outputs that responses wait for', 'tool_calls?limit=100', renderWaiting],
  ['In the background', 'responses?background=true&status=queued&status=in_progress&limit=100', renderQueued],
];
/** Fields of a response that the next one needs to be able to run what was approved. */
const KEPT_FIELDS = ['model', 'tools', 'instructions', 'reasoning', 'text', 'max_output_tokens'];
/** What has gone leaves its place empty: nothing moves under the focus. */
const lists = signal(/** @type {(Json | undefined)[][]} */ ([[], [], []]));
/** Reasons and outputs that were entered. */
const texts = signal(/** @type {Record<string, string>} */ ({}));
let seen = -1;

export function inboxView() {
  followFeed();
  if (seen !== activity.value) {
    seen = activity.value;
    queueMicrotask(() => attempt(load));
  }
  return html`<section class="inbox" aria-label="Inbox">
    ${lists.value.flat().some(Boolean) ? nothing : html`<p class="empty">Nothing waits.</p>`}
    ${lists.value.map((list, index) => (list.some(Boolean) ? html`<h2>${SECTIONS[index][0]}</h2>${list.map((one) => (one ? SECTIONS[index][2](one) : nothing))}` : nothing))}</section>`;
}

/** @param {Json} approval */
function renderApproval(approval) {
  const { item } = approval;
  return html`<div class="item box"><div class="row"><b>${item.server_label}</b> <b>${item.name}</b>${origin(approval, approval.response_id)}</div>
    <pre tabindex="0">${pretty(item.arguments)}</pre>
    <div class="row"><input class="grow" aria-label="Reason" placeholder="Reason, if you deny it" .value=${texts.value[approval.id] ?? ''} @input=${enter(approval.id)}>
      <button class="primary" @click=${() => decide(approval, true)}>Approve</button>
      <button @click=${() => decide(approval, true, true)}>Always in this conversation</button>
      <button class="stop" @click=${() => decide(approval, false)}>Deny</button></div></div>`;
}

/** @param {Json} response */
function renderWaiting(response) {
  return html`<div class="item box"><div class="row">${origin(response, response.id)}</div>${response.calls.map((/** @type {Json} */ call) => html`
    <p><b>${call.item?.name ?? call.call_id}</b></p>${call.item ? html`<pre tabindex="0">${pretty(call.item.arguments ?? call.item.input)}</pre>` : nothing}
    <div class="row"><textarea rows="2" class="code grow" aria-label="Output" .value=${texts.value[call.call_id] ?? ''} @input=${enter(call.call_id)}></textarea>
      <button class="primary" @click=${() => submit(response.id, call.call_id)}>Send</button></div>`)}</div>`;
}

/** @param {Json} response */
function renderQueued(response) {
  return html`<div class="item box"><div class="row"><span class="chip">${response.status.replace('_', ' ')}</span>${origin(response, response.id)}
    <button class="stop" @click=${() => act(`/v1/responses/${response.id}/cancel`)}>Cancel</button></div></div>`;
}

/** @param {Json} entry @param {string} id */
function origin(entry, id) {
  return html`<span class="muted">${entry.model} · ${new Date(entry.created_at * 1000).toLocaleTimeString()}</span>
    <a class="id" href="/ui/talk/${id}" data-nav>${id}</a><span class="grow"></span>`;
}

async function load() {
  lists.value = await Promise.all(SECTIONS.map(async ([, path], index) => {
    /** @type {Json[]} */
    const fresh = (await getJson(`/v1/antiphon/${path}`)).data, old = lists.value[index];
    return [...old.map((one) => fresh.find(({ id }) => id === one?.id)), ...fresh.filter(({ id }) => !old.some((one) => one?.id === id))];
  }));
}

/** Answer a request for approval with a new response, which continues the one that asked. @param {Json} approval @param {boolean} approve */
function decide(approval, approve, always = false) {
  return attempt(async () => {
    const response = await getJson(`/v1/responses/${approval.response_id}`);
    const kept = Object.fromEntries(KEPT_FIELDS.filter((name) => response[name] !== null).map((name) => [name, response[name]]));
    if (always) kept.tools = allowTool(kept.tools, approval.item);
    const place = approval.conversation ? { conversation: approval.conversation } : { previous_response_id: approval.response_id };
    const reason = texts.value[approval.id];
    const input = { type: 'mcp_approval_response', approval_request_id: approval.id, approve, ...(reason ? { reason } : {}) };
    const recording = makeRecording();
    recording.create({ ...kept, ...place, input: [input], background: true });
    while (recording.isRunning && !recording.id) await nextFrame();
    if (recording.id) navigate(`/ui/talk/${recording.id}`);
    else throw new Error(recording.error);
  });
}

/** Declare tools such that one of an MCP server is not asked about again. @param {Json[]} tools @param {Json} item */
function allowTool(tools, { server_label: label, name }) {
  return tools.map((tool) => {
    if (tool.server_label !== label) return tool;
    const { always, never } = tool.require_approval; // undefined in 'always'
    return { ...tool, require_approval: {
      ...(always && { always: { ...always, tool_names: always.tool_names?.filter((/** @type {string} */ one) => one !== name) } }),
      ...((never || !always) && { never: { ...never, tool_names: [...(never?.tool_names ?? []), name] } }),
    } };
  });
}

/** @param {string} id @param {string} callId */
function submit(id, callId) {
  return act(`/v1/responses/${id}/tool_outputs`, { tool_call_id: callId, output: texts.value[callId] ?? '' });
}

/** @param {string} path @param {unknown} [body] */
function act(path, body) {
  return attempt(async () => {
    await send(path, { method: 'POST', body });
    await load();
  });
}

/** @param {string} id */
function enter(id) {
  return (/** @type {any} */ event) => { texts.value = { ...texts.value, [id]: event.target.value }; };
}
