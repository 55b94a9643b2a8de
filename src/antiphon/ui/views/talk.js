/** Talk: compose a request, see the answer grow, continue. */

import { html, nothing } from '../vendor/lit-html.js';
import { signal } from '../vendor/signals-core.js';
import { getJson } from '../api.js';
import { renderItem } from '../items.js';
import { buildRequest, DEFAULTS, EXAMPLE_FUNCTION, SNIPPETS } from '../request.js';
import { attempt, capabilities, findRecording, frame, makeRecording, models, navigate, notice, replacePath, route, touch, turns } from '../store.js';
import { pathTo } from '../tree.js';

/**
 * @typedef {import('../fold.js').Json} Json
 * @typedef {import('../store.js').Turn} Turn
 * @typedef {{name: string, part: Json}} Attachment
 */

const SETTINGS = 'antiphon-settings';
const EFFORTS = ['none', 'minimal', 'low', 'medium', 'high', 'xhigh'];
const MAX_ATTACHMENT = 20 * 1024 * 1024; // bytes
const MAX_ANCESTORS = 30; // responses that are loaded before the one that a link names

/** @type {import('../vendor/signals-core.js').Signal<import('../request.js').Settings>} */
const settings = signal({ ...DEFAULTS, ...JSON.parse(sessionStorage.getItem(SETTINGS) ?? '{}') });
const draft = signal('');
/** @type {import('../vendor/signals-core.js').Signal<Attachment[]>} */
const attachments = signal([]);
const isDragging = signal(false);
const snippet = signal('');
/** Outputs and approvals that the user has entered, by call. @type {import('../vendor/signals-core.js').Signal<Record<string, string>>} */
const answers = signal({});
let loadedId = '';

export function talkView() {
  frame.value; // turns grow without being replaced
  loadLinked();
  const last = turns.value[turns.value.length - 1];
  const isRunning = last?.recording.isRunning ?? false;
  return html`<section class="talk" aria-label="Talk" @dragover=${drag} @dragleave=${drag} @drop=${drop}>
    <div class="turns" aria-live="polite" aria-busy=${isRunning}>
      ${turns.value.length ? turns.value.map(renderTurn) : html`<p class="empty">Ask the model something, or drop a file here.</p>`}
    </div>
    ${last && !isRunning ? pendingForm(last) : nothing}
    <form class="composer ${isDragging.value ? 'dragging' : ''}" @submit=${submit}>
      ${attachments.value.length ? html`<div class="chips">${attachments.value.map((one, index) => html`<button type="button" class="chip"
          title="Remove" @click=${() => { attachments.value = attachments.value.filter((_, at) => at !== index); }}>${one.name} ✕</button>`)}</div>` : nothing}
      <label class="hidden" for="draft">Message</label>
      <textarea id="draft" rows="3" placeholder="Message (Enter sends, Shift+Enter is a new line)" .value=${draft.value}
        @input=${(/** @type {any} */ event) => { draft.value = event.target.value; }} @keydown=${keydown}></textarea>
      <div class="row">
        ${modelSelect()}
        <label class="button">Attach<input type="file" multiple class="hidden" @change=${(/** @type {any} */ event) => { attach(event.target.files); event.target.value = ''; }}></label>
        <span class="grow"></span>
        ${copyMenu()}
        ${turns.value.length ? html`<button type="button" @click=${clear}>New</button>` : nothing}
        ${isRunning ? html`<button type="button" class="stop" @click=${() => last.recording.stop()}>Stop</button>`
          : html`<button class="primary" ?disabled=${!draft.value.trim() && !attachments.value.length}>Send</button>`}
      </div>
      ${options()}
    </form>
    ${snippetDialog()}
  </section>`;
}

/** @param {Turn} turn @param {number} number */
function renderTurn({ input, request, recording }, number) {
  const { response } = recording;
  const output = response?.output ?? [];
  return html`<article class="turn">
    ${input.map((item, index) => renderItem(item, `${number}/i${index}`))}
    ${output.map((/** @type {Json} */ item, /** @type {number} */ index) => item
      ? renderItem(item, `${number}/o${index}`, recording.isRunning && index === output.length - 1) : nothing)}
    ${recording.state === 'connecting' ? html`<p class="muted">…</p>` : nothing}
    ${recording.state === 'resuming' ? html`<p class="muted">The connection was lost; taking the stream up again …</p>` : nothing}
    ${response?.error ? html`<p class="error" role="alert">${response.error.message}</p>` : nothing}
    ${recording.error ? html`<p class="error" role="alert">${recording.error}</p>` : nothing}
    ${response?.incomplete_details ? html`<p class="muted">Incomplete: ${response.incomplete_details.reason}</p>` : nothing}
    ${response && !recording.isRunning ? statistics(recording, request) : nothing}
  </article>`;
}

/** @param {import('../recording.js').Recording} recording @param {Json} request */
function statistics(recording, request) {
  const usage = recording.response?.usage, seconds = (recording.lastDelta - recording.firstDelta) / 1000;
  const isLive = recording.firstDelta && request.input; // not read again from the store
  const figures = [
    isLive && `first token ${Math.round(recording.firstDelta)} ms`,
    isLive && usage && seconds > 0.05 && `${(usage.output_tokens / seconds).toFixed(1)} tokens/s`,
    usage && `${usage.input_tokens} in${usage.input_tokens_details?.cached_tokens ? ` (${usage.input_tokens_details.cached_tokens} cached)` : ''}`,
    usage && `${usage.output_tokens} out${usage.output_tokens_details?.reasoning_tokens ? ` (${usage.output_tokens_details.reasoning_tokens} reasoning)` : ''}`,
    contextShare(recording.response),
    recording.breaks.length && `resumed ${recording.breaks.length}×`,
  ];
  return html`<footer class="figures">${figures.filter(Boolean).map((text) => html`<span>${text}</span>`)}
    <a href="/ui/wire/${recording.id}" data-nav>${recording.events.length} events</a></footer>`;
}

/** @param {Json | null} response */
function contextShare(response) {
  const context = models.value.find((one) => one.model === response?.model)?.context;
  return context && response?.usage ? `${Math.round((100 * response.usage.total_tokens) / context)} % of the context` : '';
}

function modelSelect() {
  const names = models.value.map((one) => one.model);
  if (names.length && !settings.value.model) queueMicrotask(() => change({ model: names[0] }));
  return html`<label class="hidden" for="model">Model</label><select id="model" @change=${(/** @type {any} */ event) => change({ model: event.target.value })}>
    ${names.map((name) => html`<option ?selected=${name === settings.value.model}>${name}</option>`)}</select>`;
}

function options() {
  const { instructions, effort, schema, functions, hosted, vectorStores, mcp, maxTokens, store, background } = settings.value;
  const tools = (capabilities.value?.tools ?? []).filter((/** @type {Json} */ tool) => tool.ready && tool.type !== 'mcp');
  const hasMcp = (capabilities.value?.tools ?? []).some((/** @type {Json} */ tool) => tool.type === 'mcp');
  return html`<details class="options"><summary>Instructions, tools, format</summary>
    <div class="grid">
      <label>Instructions<textarea rows="3" name="instructions" .value=${instructions} @input=${field('instructions')}></textarea></label>
      <label>Schema of the answer<textarea rows="3" class="code" name="schema" spellcheck="false" placeholder='{"type": "object", …}' .value=${schema} @input=${field('schema')}></textarea></label>
      <label>Functions<textarea rows="5" class="code" name="functions" spellcheck="false" .value=${functions} @input=${field('functions')}></textarea>
        ${functions ? nothing : html`<button type="button" class="link" @click=${() => change({ functions: EXAMPLE_FUNCTION })}>Insert an example</button>`}</label>
      <div>
        <div class="row"><label>Effort <select name="effort" @change=${field('effort')}><option value="">default</option>
          ${EFFORTS.map((one) => html`<option ?selected=${one === effort}>${one}</option>`)}</select></label>
        <label>Max tokens <input name="max" type="number" min="1" class="short" .value=${maxTokens} @input=${field('maxTokens')}></label></div>
        <label class="check"><input type="checkbox" .checked=${store} @change=${field('store')}> Store it</label>
        <label class="check"><input type="checkbox" .checked=${background && store} ?disabled=${!store} @change=${field('background')}>
          Run it in the background: it survives a lost connection, and Stop cancels it</label>
        ${tools.length ? html`<fieldset><legend>Tools of the server</legend>${tools.map((/** @type {Json} */ { type }) => html`<label class="check"><input
          type="checkbox" .checked=${hosted.includes(type)} @change=${() => change({ hosted: hosted.includes(type) ? hosted.filter((one) => one !== type) : [...hosted, type] })}> ${type.replaceAll('_', ' ')}</label>`)}
          ${hosted.includes('file_search') ? html`<label>Vector stores <input name="stores" placeholder="vs_…" .value=${vectorStores} @input=${field('vectorStores')}></label>` : nothing}</fieldset>` : nothing}
        ${hasMcp ? html`<fieldset><legend>MCP servers</legend>${mcp.map(mcpRow)}
          <button type="button" class="link" @click=${() => change({ mcp: [...mcp, { label: `mcp${mcp.length + 1}`, url: '', approval: true }] })}>Add a server</button></fieldset>` : nothing}
      </div>
    </div></details>`;
}

/** @param {import('../request.js').McpServer} server @param {number} index */
function mcpRow(server, index) {
  /** @param {Partial<import('../request.js').McpServer>} values */
  const update = (values) => change({ mcp: settings.value.mcp.map((one, at) => (at === index ? { ...one, ...values } : one)) });
  return html`<div class="row">
    <input class="short" aria-label="Label of the MCP server" .value=${server.label} @input=${(/** @type {any} */ event) => update({ label: event.target.value })}>
    <input class="grow" type="url" aria-label="URL of the MCP server" placeholder="https://…/mcp" .value=${server.url} @input=${(/** @type {any} */ event) => update({ url: event.target.value })}>
    <label class="check"><input type="checkbox" .checked=${server.approval} @change=${(/** @type {any} */ event) => update({ approval: event.target.checked })}> ask</label>
    <button type="button" class="link" aria-label="Remove the MCP server" @click=${() => change({ mcp: settings.value.mcp.filter((_, at) => at !== index) })}>✕</button></div>`;
}

/** Calls of the last response that the user has to answer. @param {Turn} turn */
function pendingForm({ recording }) {
  const calls = (recording.response?.output ?? []).filter((/** @type {Json} */ item) =>
    ['function_call', 'custom_tool_call', 'mcp_approval_request'].includes(item?.type) && recording.state === 'ended');
  if (!calls.length) return nothing;
  const isComplete = calls.every((/** @type {Json} */ call) => answers.value[call.id] !== undefined);
  return html`<form class="pending" @submit=${(/** @type {Event} */ event) => { event.preventDefault(); sendAnswers(calls); }}>
    ${calls.map((/** @type {Json} */ call) => call.type === 'mcp_approval_request' ? approvalRow(call) : html`<label>Output of ${call.name}
      <textarea rows="2" class="code" .value=${answers.value[call.id] ?? ''} @input=${(/** @type {any} */ event) => answer(call.id, event.target.value)}></textarea></label>`)}
    <button class="primary" ?disabled=${!isComplete}>Continue</button></form>`;
}

/** @param {Json} call */
function approvalRow(call) {
  const given = answers.value[call.id];
  return html`<div class="row"><span>May <b>${call.server_label}</b> run <b>${call.name}</b>?</span><span class="grow"></span>
    <button type="button" aria-pressed=${given === 'yes'} @click=${() => answer(call.id, 'yes')}>Approve</button>
    <button type="button" aria-pressed=${given === 'no'} @click=${() => answer(call.id, 'no')}>Deny</button></div>`;
}

/** @param {string} id @param {string} value */
function answer(id, value) {
  answers.value = { ...answers.value, [id]: value };
}

/** @param {Json[]} calls */
function sendAnswers(calls) {
  const input = calls.map((call) => call.type === 'mcp_approval_request'
    ? { type: 'mcp_approval_response', approval_request_id: call.id, approve: answers.value[call.id] === 'yes' }
    : { type: `${call.type}_output`, call_id: call.call_id, output: answers.value[call.id] });
  answers.value = {};
  start(input);
}

function copyMenu() {
  const show = (/** @type {any} */ event) => {
    snippet.value = event.target.value;
    event.target.value = '';
    /** @type {HTMLElement | null} */ (document.querySelector('.snippet'))?.focus();
  };
  return html`<select aria-label="Copy as" @change=${show}>
    <option value="">Copy as …</option>${Object.keys(SNIPPETS).map((name) => html`<option>${name}</option>`)}</select>`;
}

function snippetDialog() {
  if (!snippet.value) return nothing;
  let text;
  try {
    const last = turns.value[turns.value.length - 1]?.request;
    const body = draft.value || !last?.input ? buildRequest(settings.value, inputItems(), previousId()) : last;
    const { background, ...sent } = body; // these programs wait for the response
    const [only] = body.input;
    const isText = body.input.length === 1 && only.content?.length === 1 && only.content[0].type === 'input_text';
    text = SNIPPETS[snippet.value]({ ...sent, input: isText ? only.content[0].text : body.input }, location.origin);
  } catch (error) {
    text = String(error);
  }
  const close = () => {
    snippet.value = '';
    document.getElementById('draft')?.focus();
  };
  return html`<div class="dialog" role="dialog" aria-modal="true" aria-label=${`As ${snippet.value}`} @keydown=${(/** @type {KeyboardEvent} */ event) => { if (event.key === 'Escape') close(); }}>
    <pre class="snippet" tabindex="0">${text}</pre><div class="row"><span class="grow"></span>
    <button type="button" class="primary" @click=${() => attempt(async () => { await navigator.clipboard.writeText(text); close(); })}>Copy</button>
    <button type="button" @click=${close}>Close</button></div></div>`;
}

/** @param {KeyboardEvent} event */
function keydown(event) {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit(event);
}

/** @param {Event} event */
function submit(event) {
  event.preventDefault();
  const last = turns.value[turns.value.length - 1];
  if (last?.recording.isRunning || (!draft.value.trim() && !attachments.value.length)) return;
  if (start(inputItems())) {
    draft.value = '';
    attachments.value = [];
  }
}

/** @returns {Json[]} */
function inputItems() {
  const text = draft.value.trim() ? [{ type: 'input_text', text: draft.value }] : [];
  return [{ type: 'message', role: 'user', content: [...attachments.value.map((one) => one.part), ...text] }];
}

function previousId() {
  const last = turns.value.filter((turn) => turn.recording.response).pop()?.recording; // others never began
  return last?.response?.store && !last.response.conversation ? last.id : ''; // a fork of the conversation
}

/** Send items as the next turn. @param {Json[]} input */
function start(input) {
  const previous = previousId();
  const earlier = previous ? [] : turns.value.flatMap((turn) => [...turn.input, ...(turn.recording.response?.output ?? [])]);
  let request;
  try {
    request = buildRequest(settings.value, [...earlier, ...input], previous, turns.value.at(-1)?.recording.response?.tools);
  } catch (error) {
    notice.value = String(error instanceof Error ? error.message : error);
    return false;
  }
  const recording = makeRecording();
  turns.value = [...turns.value, { input, request, recording }];
  recording.create(request).then(() => {
    if (recording.rejected === 'background' && settings.value.background) { // a server that stores nothing
      turns.value = turns.value.filter((turn) => turn.recording !== recording);
      change({ background: false });
      start(input);
      return;
    }
    if (recording.id && recording.response?.store && route.value.view === 'talk') {
      loadedId = recording.id;
      replacePath(`/ui/talk/${recording.id}`);
    }
  });
  requestAnimationFrame(() => scrollTo(0, document.body.scrollHeight));
  return true;
}

function clear() {
  turns.value = [];
  loadedId = '';
  navigate('/ui/talk');
}

/** Load the response that the address names, and those before it. */
function loadLinked() {
  const { id } = route.value;
  if (!id || id === loadedId) return;
  loadedId = id;
  queueMicrotask(() => attempt(async () => {
    const path = pathTo((await getJson(`/v1/antiphon/responses/${encodeURIComponent(id)}/tree`)).data, id).slice(-MAX_ANCESTORS);
    turns.value = await Promise.all(path.map(async (name) => (
      { input: (await getJson(`/v1/responses/${name}/input_items?order=asc&limit=100`)).data, request: {}, recording: findRecording(name) })));
    touch();
  }));
}

/** @param {DragEvent} event */
function drag(event) {
  event.preventDefault();
  isDragging.value = event.type === 'dragover';
}

/** @param {DragEvent} event */
function drop(event) {
  drag(event);
  if (event.dataTransfer) attach(event.dataTransfer.files);
}

/** @param {FileList} files */
function attach(files) {
  for (const file of files) {
    if (file.size > MAX_ATTACHMENT) {
      notice.value = `${file.name} is larger than ${MAX_ATTACHMENT / 1024 / 1024} MB.`;
      continue;
    }
    const reader = new FileReader();
    reader.onload = () => {
      const url = String(reader.result);
      const part = file.type.startsWith('image/') ? { type: 'input_image', image_url: url } : { type: 'input_file', filename: file.name, file_data: url };
      attachments.value = [...attachments.value, { name: file.name, part }];
    };
    reader.readAsDataURL(file);
  }
}

/** @param {Partial<import('../request.js').Settings>} values */
function change(values) {
  settings.value = { ...settings.value, ...values };
  sessionStorage.setItem(SETTINGS, JSON.stringify(settings.value));
}

/** A listener that stores the value of its element. @param {keyof import('../request.js').Settings} name */
function field(name) {
  return (/** @type {any} */ event) => change({ [name]: event.target.type === 'checkbox' ? event.target.checked : event.target.value });
}
