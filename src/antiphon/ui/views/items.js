/** Items: the tree of responses, what each consists of, and the difference of two branches. */

import { activity, followFeed, log } from '../feed.js';
import { renderItem } from '../items.js';
import { route } from '../store.js';
import { findParents, keep, links, pathTo } from '../tree.js';
import { html } from '../vendor/lit-html.js';
import { composition } from './log.js';

const show = (/** @type {any} */ item) => renderItem(item, `items/${item.id}`);

export function itemsView() {
  followFeed();
  const id = encodeURIComponent(route.value.id) || log.value[0]?.id, other = route.value.query.get('with');
  if (!id) return html`<p class="empty">No stored responses.</p>`;
  const { error, has_more: hasMore, data } = keep(`antiphon/responses/${id}/tree`, activity.value);
  /** @type {any[]} */
  const nodes = data ?? [], parents = findParents(nodes);
  /** A response and what continues it, forks in lists of their own. @param {any} node @returns {unknown} */
  const branch = (node) => {
    const next = nodes.filter((one) => parents.get(one.id) === node.id).map(branch), isFork = next.length > 1;
    return html`<li>${row(node, id)}${isFork ? next.map((one) => html`<ul>${one}</ul>`) : ''}</li>${isFork ? '' : next}`;
  };
  return html`<section aria-label="Items"><p>${error ?? `${nodes.length}${hasMore ? '+' : ''} responses`}</p><div class="columns">
    <div class="detail tree" tabindex="0"><ul>${nodes.filter((node) => !parents.has(parents.get(node.id))).map(branch)}</ul></div>
    <div class="detail">${other ? difference(nodes, id, other) : html`<p><code class="id">${id}</code>
      <a class="button primary" href="/ui/talk/${id}" data-nav>Continue here</a> ${links(id, 'wire', 'timing')}</p>${itemsOf(nodes, [id]).map(show)}`}</div></div></section>`;
}

/** @param {any} node @param {string} shown */
function row({ id, status, items, created_at: created }, shown) {
  const [item] = keep(`responses/${id}/input_items?limit=1`).data ?? [];
  const text = (item?.content?.[0]?.text ?? item?.type ?? id).slice(0, 80);
  return html`${id === shown ? html`<b>${text}</b>` : html`<a href="/ui/items/${id}" data-nav>${text}</a> <a href="/ui/items/${shown}?with=${id}" data-nav>compare</a>`}
    <span class="muted">${new Date(created * 1000).toLocaleTimeString()} ${status}</span> ${composition(items)}`;
}

/** @param {any[]} nodes @param {string[]} ids of two responses */
function difference(nodes, ...ids) {
  const paths = ids.map((id) => pathTo(nodes, id)), common = countEqual(paths), sides = paths.map((path) => itemsOf(nodes, path.slice(common)));
  const equal = countEqual(sides.map((side) => side.map((item) => JSON.stringify({ ...item, id: '', call_id: '' }))));
  return html`<p role="status">Responses in common: ${common}, items: ${equal}</p>
    <div class="columns">${sides.map((side, at) => html`<div class="detail" tabindex="0"><code class="id">${ids[at]}</code>${side.slice(equal).map(show)}</div>`)}</div>`;
}

/** How many values at the beginning are equal. @param {ArrayLike<string>[]} lists */
export function countEqual([left, right]) {
  let count = 0;
  while (count < left.length && left[count] === right[count]) count += 1;
  return count;
}

/** Input and output of responses. @param {any[]} nodes @param {string[]} ids @returns {any[]} */
function itemsOf(nodes, ids) {
  return nodes.filter((node) => ids.includes(node.id)).flatMap(({ id, status }) => [
    ...keep(`responses/${id}/input_items?order=asc&limit=100&include=message.input_image.image_url`, status).data ?? [], ...keep(`responses/${id}`, status).output ?? []]);
}
