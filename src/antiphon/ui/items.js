/** Items of a response as templates. All content is text: of models, tools, files and users alike. */

import { html, nothing } from './vendor/lit-html.js';
import { makeLink, renderMarkdown } from './markdown.js';

/** @typedef {import('./fold.js').Json} Json */

/** Render an item. @param {Json} item @param {string} key unique for it on the page @param {boolean} isOpen whether it is still growing */
export function renderItem(item, key, isOpen = false) {
  switch (item.type ?? 'message') {
    case 'message':
      return renderMessage(item, key);
    case 'reasoning':
      return renderReasoning(item, key, isOpen);
    case 'function_call':
    case 'custom_tool_call':
    case 'mcp_call':
      return renderCall(item);
    case 'function_call_output':
    case 'custom_tool_call_output':
      return box('tool output', item.call_id, outputText(item.output));
    case 'code_interpreter_call':
      return renderCode(item);
    case 'web_search_call':
      return box(`web search ${statusText(item)}`, item.action?.query ?? item.action?.queries?.join(' · ') ?? item.action?.url, '');
    case 'file_search_call':
      return box(`file search ${statusText(item)}`, list(item.queries).join(' · '), list(item.results).map((one) => `${one.filename} (${one.score})`).join('\n'));
    case 'image_generation_call':
      return html`<figure class="item">${item.result ? image(`data:image/${item.output_format ?? 'png'};base64,${item.result}`) : ''}
        <figcaption>image ${statusText(item)}</figcaption></figure>`;
    case 'shell_call':
      return box(`shell ${statusText(item)}`, '', list(item.action?.commands).join('\n'));
    case 'shell_call_output':
      return box('shell output', '', list(item.output).map((one) => `${one.stdout ?? ''}${one.stderr ?? ''}`).join('\n'));
    case 'mcp_list_tools':
      return box(`MCP ${item.server_label}`, `${item.tools?.length ?? 0} tools`,
        list(item.tools).map((tool) => `${tool.name}: ${tool.description ?? ''}`).join('\n'), false);
    case 'mcp_approval_request':
      return box(`MCP ${item.server_label} asks to call`, item.name, pretty(item.arguments));
    case 'mcp_approval_response':
      return box('approval', item.approve ? 'approved' : 'denied', item.reason ?? '');
    default:
      return box(item.type, item.status ?? '', pretty(item), false);
  }
}

/** @param {Json} item @param {string} key */
function renderMessage(item, key) {
  const parts = typeof item.content === 'string' ? [{ type: 'input_text', text: item.content }] : list(item.content);
  return html`<div class="item message ${item.role === 'assistant' ? 'assistant' : 'user'}">
    ${parts.map((part, index) => renderPart(part, `${key}/${index}`, item.role))}
  </div>`;
}

/** @param {Json} part @param {string} key @param {string} role */
function renderPart(part, key, role) {
  switch (part.type) {
    case 'output_text':
      return html`${renderMarkdown(key, part.text)}${citations(part.annotations ?? [])}`;
    case 'refusal':
      return html`<p class="refusal">${part.refusal}</p>`;
    case 'input_image':
      return part.image_url ? image(part.image_url) : html`<span class="chip">image ${part.file_id}</span>`;
    case 'input_file':
      return html`<span class="chip">${part.filename ?? part.file_id ?? part.file_url ?? 'file'}</span>`;
    default:
      return role === 'assistant'
        ? renderMarkdown(key, part.text ?? '')
        : html`<p class="plain">${part.text ?? pretty(part)}</p>`;
  }
}

/** @param {Json} item @param {string} key @param {boolean} isOpen */
function renderReasoning(item, key, isOpen) {
  const parts = [...list(item.summary), ...list(item.content)];
  if (!parts.length) return item.encrypted_content ? box('reasoning', 'encrypted', '') : nothing;
  return html`<details class="item reasoning" .open=${isOpen}><summary>${isOpen ? 'Reasoning …' : 'Reasoning'}</summary>
    ${parts.map((part, index) => renderMarkdown(`${key}/r${index}`, part.text ?? ''))}
  </details>`;
}

/** @param {Json} item */
function renderCall(item) {
  const label = item.type === 'mcp_call' ? `MCP ${item.server_label}` : item.type === 'function_call' ? 'function' : 'tool';
  const result = item.error ? pretty(item.error) : item.output ? outputText(item.output) : '';
  return html`${box(`${label} call ${statusText(item)}`, item.name, pretty(item.arguments ?? item.input ?? ''))}
    ${result ? box(item.error ? 'error' : 'output', '', result) : ''}`;
}

/** @param {Json} item */
function renderCode(item) {
  const outputs = list(item.outputs);
  const logs = outputs.filter((one) => one.type === 'logs');
  return html`${box(`code ${statusText(item)}`, '', item.code ?? '')}
    ${logs.length ? box('output', '', logs.map((one) => one.logs).join('\n')) : ''}
    ${outputs.filter((one) => one.type === 'image').map((one) => image(one.url))}`;
}

/** A box with a label, a name and text that can be folded. @param {string} label @param {string} name @param {string} text */
function box(label, name, text, isOpen = true) {
  if (!text) return html`<div class="item box"><span class="label">${label}</span> <b>${name}</b></div>`;
  return html`<details class="item box" ?open=${isOpen}>
    <summary><span class="label">${label}</span> <b>${name}</b></summary><pre tabindex="0">${text}</pre></details>`;
}

/** @param {string} url an image of the server or of the user; those of other hosts are links */
function image(url) {
  if (/^(data:image\/|blob:)/.test(url)) return html`<img class="picture" alt="image" src=${url}>`;
  return html`<span class="chip">${makeLink(url, url) ?? url}</span>`;
}

/** @param {Json[]} annotations */
function citations(annotations) {
  if (!annotations.length) return nothing;
  return html`<ol class="citations">${annotations.map((one) =>
    html`<li>${makeLink(one.url ?? '', one.title || one.url) ?? one.filename ?? one.file_id ?? one.type}</li>`)}</ol>`;
}

/** @param {any} value @returns {Json[]} */
function list(value) {
  return value ?? [];
}

/** @param {Json} item */
function statusText(item) {
  return item.status && item.status !== 'completed' ? `· ${item.status.replaceAll('_', ' ')}` : '';
}

/** @param {string | Json[] | unknown} output */
function outputText(output) {
  if (typeof output === 'string') return output;
  return Array.isArray(output) ? output.map((part) => part.text ?? `[${part.type}]`).join('\n') : pretty(output);
}

/**
 * A table with a row for each entry; nothing without entries.
 * @template T
 * @param {string[]} headings
 * @param {T[]} entries
 * @param {(entry: T) => unknown[]} cells
 */
export function table(headings, entries, cells) {
  if (!entries.length) return nothing;
  return html`<div class="scroll" tabindex="0"><table><thead><tr>${headings.map((one) => html`<th>${one}</th>`)}</tr></thead><tbody>
    ${entries.map((entry) => html`<tr>${cells(entry).map((cell) => html`<td>${typeof cell === 'number' ? cell.toLocaleString('en') : cell}</td>`)}</tr>`)}</tbody></table></div>`;
}

/** JSON with indentation; other text as it is. @param {unknown} value @returns {string} */
export function pretty(value) {
  if (typeof value !== 'string') return JSON.stringify(value, null, 2);
  try {
    return JSON.stringify(JSON.parse(value), null, 2);
  } catch {
    return value;
  }
}
