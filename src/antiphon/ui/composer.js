/** The composer of Talk: the message, its attachments, and the settings of the request. */

import { html } from './vendor/lit-html.js';
import { signal } from './vendor/signals-core.js';
import { BASE } from './api.js';
import { addLane, change, chosenLane, clear, draft, isForAll, lanes, lastTurn, MAX_LANES, nextRequest, running, start, steer, targetLanes } from './lanes.js';
import { DEFAULTS, EXAMPLE_FUNCTION, SNIPPETS } from './request.js';
import { attempt, capabilities, models, notice } from './store.js';

const EFFORTS = ['none', 'minimal', 'low', 'medium', 'high', 'xhigh'];
const MAX_ATTACHMENT = 20 * 1024 * 1024; // bytes

/** @typedef {import('./fold.js').Json} Json */

const attachments = signal(/** @type {{name: string, part: Json}[]} */ ([]));
const isDragging = signal(false);
const snippet = signal('');

export function composer() {
  const { model, transport } = chosenLane().settings, names = models.value.map((one) => one.model), isBusy = targetLanes().some(running);
  if (names.length && !model) queueMicrotask(() => change({ model: names[0] }));
  return html`<form class="composer ${isDragging.value ? 'dragging' : ''}" @submit=${submit} @input=${enter}>
    ${attachments.value.length ? html`<div class="chips">${attachments.value.map((one) => html`<button type="button" class="chip"
        @click=${() => { attachments.value = attachments.value.filter((other) => other !== one); }}>${one.name} ✕</button>`)}</div>` : ''}
    <textarea id="draft" aria-label="Message" rows="3" placeholder="Message (Enter sends, Shift+Enter is a new line)" .value=${draft.value}
      @input=${({ target }) => { draft.value = target.value; }}
      @keydown=${(event) => { if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) submit(event); }}></textarea>
    <div class="row">
      <select id="model" name="model" aria-label="Model">${names.map((name) => html`<option .selected=${name === model}>${name}</option>`)}</select>
      <select aria-label="Transport" name="transport"><option value="sse">SSE</option>
        <option value="websocket" .selected=${transport === 'websocket'}>WebSocket</option></select>
      <label class="button">Attach<input type="file" multiple class="hidden" @change=${({ target }) => { attach(target.files); target.value = ''; }}></label>
      <button type="button" ?disabled=${lanes.value.length >= MAX_LANES} @click=${addLane}>Add a lane</button>
      ${lanes.value.length > 1 ? html`<label class="check"><input type="checkbox" name="all" .checked=${isForAll.value}
        @change=${() => { isForAll.value = !isForAll.value; }}> to all lanes</label>` : ''}
      <span class="grow"></span>
      ${copyMenu()}
      ${lanes.value.some(lastTurn) ? html`<button type="button" @click=${clear}>New</button>` : ''}
      ${isBusy ? html`<button type="button" class="stop" @click=${() => targetLanes().forEach((lane) => running(lane)?.stop())}>Stop</button>` : ''}
      ${canSend() ? html`<button class="primary" ?disabled=${isEmpty()}>${isBusy ? 'Steer' : 'Send'}</button>` : ''}
    </div>
    ${options()}
  </form>${snippetDialog()}`;
}

function isEmpty() {
  return !draft.value.trim() && !attachments.value.length;
}

/** Whether no lane has to end before: what runs on a WebSocket can be steered. */
function canSend() {
  return targetLanes().map(running).every((recording) => !recording || recording.channel);
}

function options() {
  const { instructions, effort, schema, functions, hosted, vectorStores, mcp, maxTokens, store, background, transport } = chosenLane().settings;
  /** @type {Json[]} */
  const served = capabilities.value?.tools ?? [];
  const tools = served.filter((tool) => tool.ready && tool.type !== 'mcp'), hasMcp = served.some((tool) => tool.type === 'mcp');
  const isDirect = !store || transport !== 'sse';
  return html`<details class="options"><summary>Instructions, tools, format</summary>
    <div class="grid">
      <label>Instructions<textarea rows="3" name="instructions" .value=${instructions}></textarea></label>
      <label>Schema of the answer<textarea rows="3" class="code" name="schema" placeholder='{"type": "object", …}' .value=${schema}></textarea></label>
      <label>Functions<textarea rows="5" class="code" name="functions" .value=${functions}></textarea>
        ${functions ? '' : html`<button type="button" class="link" @click=${() => change({ functions: EXAMPLE_FUNCTION })}>Insert an example</button>`}</label>
      <div>
        <div class="row"><label>Effort <select name="effort"><option value="">default</option>
          ${EFFORTS.map((one) => html`<option .selected=${one === effort}>${one}</option>`)}</select></label>
        <label>Max tokens <input name="maxTokens" type="number" min="1" class="short" .value=${maxTokens}></label></div>
        <label class="check"><input type="checkbox" name="store" .checked=${store}> Store it</label>
        <label class="check"><input type="checkbox" name="background" .checked=${background && !isDirect} ?disabled=${isDirect}>
          Run it in the background: it survives a lost connection, and Stop cancels it</label>
        ${tools.length ? html`<fieldset><legend>Tools of the server</legend>${tools.map(({ type }) => html`<label class="check"><input
          type="checkbox" .checked=${hosted.includes(type)} @change=${() => change({ hosted: hosted.includes(type) ? hosted.filter((one) => one !== type) : [...hosted, type] })}> ${type.replaceAll('_', ' ')}</label>`)}
          ${hosted.includes('file_search') ? html`<label>Vector stores <input name="vectorStores" placeholder="vs_…" .value=${vectorStores}></label>` : ''}</fieldset>` : ''}
        ${hasMcp ? html`<fieldset><legend>MCP servers</legend>${mcp.map(mcpRow)}
          <button type="button" class="link" @click=${() => change({ mcp: [...mcp, { label: `mcp${mcp.length + 1}`, url: '', approval: true }] })}>Add a server</button></fieldset>` : ''}
      </div>
    </div></details>`;
}

/** @param {import('./request.js').McpServer} server @param {number} index @param {import('./request.js').McpServer[]} mcp */
function mcpRow(server, index, mcp) {
  return html`<div class="row" @input=${({ target }) => change({ mcp: mcp.with(index, { ...server, ...readField(target) }) })}>
    <input class="short" name="label" aria-label="Label of the MCP server" .value=${server.label}>
    <input class="grow" name="url" type="url" aria-label="URL of the MCP server" placeholder="https://…/mcp" .value=${server.url}>
    <label class="check"><input type="checkbox" name="approval" .checked=${server.approval}> ask</label>
    <button type="button" class="link" aria-label="Remove the MCP server" @click=${() => change({ mcp: mcp.filter((one) => one !== server) })}>✕</button></div>`;
}

function copyMenu() {
  return html`<select aria-label="Copy as" @change=${({ target }) => {
    snippet.value = target.value;
    target.value = '';
    dialog().showModal();
  }}><option value="">Copy as …</option>${Object.keys(SNIPPETS).map((name) => html`<option>${name}</option>`)}</select>`;
}

function dialog() {
  return /** @type {HTMLDialogElement} */ (document.querySelector('dialog'));
}

function snippetDialog() {
  const text = snippet.value && makeSnippet(snippet.value);
  return html`<dialog aria-label="Copy as ${snippet.value}" @close=${() => { snippet.value = ''; }}><pre class="snippet" tabindex="0">${text}</pre>
    <div class="row"><button class="primary" @click=${() => attempt(async () => { await navigator.clipboard.writeText(text); dialog().close(); })}>Copy</button>
    <button @click=${() => dialog().close()}>Close</button></div></dialog>`;
}

/** @param {string} name */
function makeSnippet(name) {
  try {
    const lane = chosenLane(), last = lastTurn(lane)?.request;
    const { background, ...body } = draft.value || !last?.input ? nextRequest(lane, inputItems()) : last; // these programs wait for the response
    const [only] = body.input;
    const isText = body.input.length === 1 && only.content?.length === 1 && only.content[0].type === 'input_text';
    return SNIPPETS[name]({ ...body, input: isText ? only.content[0].text : body.input }, location.origin + BASE);
  } catch (error) {
    return String(error);
  }
}

/** @param {Event} event */
function submit(event) {
  event.preventDefault();
  if (isEmpty() || !canSend()) return;
  attempt(async () => {
    targetLanes().forEach((lane) => nextRequest(lane, [])); // if one is invalid, none is sent
    for (const lane of targetLanes()) (running(lane) ? steer : start)(lane, inputItems());
    draft.value = '';
    attachments.value = [];
  });
}

/** @returns {Json[]} */
function inputItems() {
  const text = draft.value.trim() ? [{ type: 'input_text', text: draft.value }] : [];
  return [{ type: 'message', role: 'user', content: [...attachments.value.map((one) => one.part), ...text] }];
}

/** A listener for files that are dragged onto Talk. @param {DragEvent} event */
export function dragging(event) {
  event.preventDefault();
  isDragging.value = event.type === 'dragover';
  if (event.type === 'drop' && event.dataTransfer) attach(event.dataTransfer.files);
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

/** @param {any} event */
function enter({ target }) {
  if (target.name in DEFAULTS) change(readField(target));
}

/** @param {HTMLInputElement} field */
function readField({ name, type, checked, value }) {
  return { [name]: type === 'checkbox' ? checked : value };
}
