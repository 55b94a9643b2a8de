/** Talk: conversations with models, several of them side by side. */

import { html } from '../vendor/lit-html.js';
import { signal } from '../vendor/signals-core.js';
import { composer, dragging } from '../composer.js';
import { renderItem } from '../items.js';
import { chosen, lanes, lastTurn, loadLinked, removeLane, running, start } from '../lanes.js';
import { attempt, frame, models } from '../store.js';

/**
 * @typedef {import('../fold.js').Json} Json
 * @typedef {import('../lanes.js').Lane} Lane
 * @typedef {import('../recording.js').Recording} Recording
 */

/** Outputs and approvals that the user has entered, by call. */
const answers = signal(/** @type {Record<string, string>} */ ({}));

export function talkView() {
  frame.value; // turns grow without being replaced
  loadLinked();
  return html`<section class="talk" aria-label="Talk" @dragover=${dragging} @dragleave=${dragging} @drop=${dragging}>
    <div class="lanes">${lanes.value.map(renderLane)}</div>
    ${composer()}
  </section>`;
}

/** @param {Lane} lane @param {number} index */
function renderLane(lane, index) {
  const { name, settings, turns } = lane, active = running(lane), number = index + 1;
  return html`<section class="lane" aria-label="Lane ${number}">
    ${lanes.value.length > 1 ? html`<header class="row">
      <button aria-pressed=${index === chosen.value} @click=${() => { chosen.value = index; }}>Lane ${number}</button>
      <span class="muted">${settings.model} ${settings.effort}</span><span class="grow"></span>
      ${number === lanes.value.length ? html`<button class="link" aria-label="Remove lane ${number}" @click=${removeLane}>✕</button>` : ''}</header>` : ''}
    <div class="turns" aria-live="polite" aria-busy=${Boolean(active)}>
      ${turns.length ? turns.map((turn, at) => renderTurn(turn, `${name}/${at}`)) : html`<p class="empty">Ask the model something, or drop a file here.</p>`}
    </div>
    ${active ? '' : pendingForm(lane)}</section>`;
}

/** @param {import('../lanes.js').Turn} turn @param {string} key */
function renderTurn({ input, request, recording }, key) {
  const { response } = recording;
  /** @type {Json[]} */
  const output = response?.output ?? [];
  const notes = [
    recording.state === 'connecting' && '…',
    recording.state === 'resuming' && 'The connection was lost; taking the stream up again …',
    response?.incomplete_details && `Incomplete: ${response.incomplete_details.reason}`,
  ];
  return html`<article class="turn">
    ${input.map((item, index) => renderItem(item, `${key}/i${index}`))}
    ${output.map((item, index) => item
      ? renderItem(item, `${key}/o${index}`, recording.isRunning && index === output.length - 1) : '')}
    ${notes.filter(Boolean).map((text) => html`<p class="muted">${text}</p>`)}
    ${[response?.error?.message, recording.error].filter(Boolean).map((text) => html`<p class="error" role="alert">${text}</p>`)}
    ${response && !recording.isRunning ? statistics(recording, request) : ''}
  </article>`;
}

/** @param {Recording} recording @param {Json} request */
function statistics(recording, request) {
  const usage = recording.response?.usage, seconds = (recording.lastDelta - recording.firstDelta) / 1000;
  const cached = usage?.input_tokens_details?.cached_tokens, reasoning = usage?.output_tokens_details?.reasoning_tokens;
  const isLive = recording.firstDelta && request.input; // not read again from the store
  const figures = [
    isLive && `first token ${Math.round(recording.firstDelta)} ms`,
    isLive && usage && seconds > 0.05 && `${(usage.output_tokens / seconds).toFixed(1)} tokens/s`,
    usage && `${usage.input_tokens} in${cached ? ` (${cached} cached)` : ''}`,
    usage && `${usage.output_tokens} out${reasoning ? ` (${reasoning} reasoning)` : ''}`,
    recording.breaks.length && `resumed ${recording.breaks.length}×`,
  ];
  return html`<footer class="figures">${figures.filter(Boolean).map((text) => html`<span>${text}</span>`)}
    ${contextGauge(recording.response)}<a href="/ui/wire/${recording.id}" data-nav>${recording.events.length} events</a></footer>`;
}

/** @param {Json | null} response */
function contextGauge(response) {
  const context = models.value.find((one) => one.model === response?.model)?.context, used = response?.usage?.total_tokens;
  return context && used ? html`<span><meter aria-label="Context in use" max=${context} value=${used}></meter>
    ${used} of ${context} tokens of the context</span>` : '';
}

/** Calls of the last response that the user has to answer. @param {Lane} lane */
function pendingForm(lane) {
  const { response, state } = lastTurn(lane)?.recording ?? {};
  /** @type {Json[]} */
  const output = state === 'ended' ? response?.output : [];
  const calls = output.filter((item) => ['function_call', 'custom_tool_call', 'mcp_approval_request'].includes(item?.type));
  if (!calls.length) return '';
  const isComplete = calls.every((call) => answers.value[call.id] !== undefined);
  return html`<form class="pending" @submit=${(event) => { event.preventDefault(); sendAnswers(lane, calls); }}>
    ${calls.map((call) => call.type === 'mcp_approval_request' ? approvalRow(call) : html`<label>Output of ${call.name}
      <textarea rows="2" class="code" .value=${answers.value[call.id] ?? ''} @input=${(event) => answer(call.id, event.target.value)}></textarea></label>`)}
    <button class="primary" ?disabled=${!isComplete}>Continue</button></form>`;
}

/** @param {Json} call */
function approvalRow(call) {
  const given = answers.value[call.id];
  return html`<div class="row"><span>May <b>${call.server_label}</b> run <b>${call.name}</b>?</span><span class="grow"></span>
    ${['Approve', 'Deny'].map((text) => html`<button type="button" aria-pressed=${given === text} @click=${() => answer(call.id, text)}>${text}</button>`)}</div>`;
}

/** @param {string} id @param {string} value */
function answer(id, value) {
  answers.value = { ...answers.value, [id]: value };
}

/** @param {Lane} lane @param {Json[]} calls */
function sendAnswers(lane, calls) {
  const input = calls.map((call) => call.type === 'mcp_approval_request'
    ? { type: 'mcp_approval_response', approval_request_id: call.id, approve: answers.value[call.id] === 'Approve' }
    : { type: `${call.type}_output`, call_id: call.call_id, output: answers.value[call.id] });
  attempt(async () => { start(lane, input); answers.value = {}; });
}
