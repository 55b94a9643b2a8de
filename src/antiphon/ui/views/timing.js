/** Timing: where the time of a response went, what its model has read, and why a cache was missed. */

import { followFeed, log } from '../feed.js';
import { navigate, route } from '../store.js';
import { keep, links } from '../tree.js';
import { html, svg } from '../vendor/lit-html.js';
import { countEqual } from './items.js';

export function timingView() {
  followFeed();
  const id = encodeURIComponent(route.value.id) || log.value[0]?.id, summary = log.value.find((one) => one.id === id);
  if (!id) return html`<p class="empty">No stored responses.</p>`;
  const read = (/** @type {string} */ name, path = 'prompt') => keep(`antiphon/responses/${name}/${path}`, summary?.status);
  const { error, spans, traced } = read(id, 'timing'), prompt = read(id);
  const other = encodeURIComponent(route.value.query.get('with') ?? summary?.previous_response_id ?? '');
  return html`<section aria-label="Timing"><p><code class="id">${id}</code> ${links(id, 'items', 'wire')}</p>
    ${spans ? waterfall(spans) : error}
    ${traced === false ? html`<p class="muted">There is no trace of it (--keep-traces).</p>` : ''}
    <form class="row" @submit=${(/** @type {any} */ event) => {
      event.preventDefault();
      navigate(`/ui/timing/${id}?with=${event.target.elements.id.value.trim()}`);
    }}><h2 class="grow">Prompt</h2><label>Compare with <input name="id" placeholder="resp_…" required></label><button>Show</button></form>
    ${other && explain(prompt, read(other))}${prompt.id ? promptText(prompt) : prompt.error}</section>`;
}

/** A lane of 34 pixels for each kind of work. @param {any[]} spans */
function waterfall(spans) {
  const first = spans[0].began, percent = 100 / (Math.max(...spans.map((span) => span.began + span.seconds)) - first || 1);
  const lanes = Object.entries(Object.groupBy(spans, ({ kind, name, error }) => [kind, name, error].join(' ')));
  return html`<svg height=${lanes.length * 34}>${lanes.map(([label, parts = []], at) => svg`<g transform="translate(0 ${at * 34})">
    <text y="14">${(1000 * parts.reduce((sum, part) => sum + part.seconds, 0)).toFixed(1)} ms ${label} ${parts.length > 1 ? `× ${parts.length}` : ''}</text>
    <rect class="track" y="19" width="100%" height="10"></rect>${parts.map(({ kind, error, began, seconds }) => svg`<rect class=${error ? 'bad' : kind} y="19" height="10"
      x="${percent * (began - first)}%" width="${Math.max(0.3, percent * seconds)}%"></rect>`)}</g>`)}</svg>`;
}

/** @param {any} prompt */
function promptText({ kind, segments, cached_tokens: cached, input_tokens: tokens, cached_prefix: prefix, changeable }) {
  return html`<p>${kind === 'chat' ? 'What the engine receives:' : html`<span class="control">Template</span>, <span class="cached">cached</span>:`}
      ${cached === null ? '' : `${cached} of ${tokens} tokens were cached${prefix === 'exact' ? '' : `; where they end is ${prefix}`}.`}${changeable ? ' The conversation may have changed.' : ''}</p>
    <pre tabindex="0" aria-label="Prompt">${segments.map((/** @type {any} */ one) => html`<span class="${one.control ? 'control' : ''} ${one.cached ? 'cached' : ''}">${one.text}</span>`)}</pre>`;
}

/** How far two prompts are equal. @param {any[]} prompts */
function explain(...prompts) {
  const [{ id, model, cached_tokens: cached, input_tokens: tokens }, other] = prompts;
  if (!id || !other.id) return other.error;
  const texts = prompts.map(({ segments }) => segments.map((/** @type {any} */ one) => one.text).join('')), equal = countEqual(texts);
  const share = Math.round((100 * equal) / texts[0].length), used = Math.round((100 * cached) / tokens);
  const reason = model !== other.model ? 'Models share no cache.' : cached === null ? ''
    : `${used} % of the tokens were cached${used < share - 5 ? ': the rest was evicted, or on another engine' : ''}.`;
  return html`<p role="status">${share} % (${equal} characters) are those of ${other.id}. ${reason}</p>
    <div class="columns">${texts.map((text, at) => html`<div class="comparison"><p>${at ? 'The other' : 'This one'}</p><pre tabindex="0">${text.slice(equal, equal + 300)}</pre></div>`)}</div>`;
}
