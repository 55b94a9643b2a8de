/** Responses that are connected: by what they continue, and by their conversations. */

import { apiKey, getJson } from './api.js';
import { frame, touch } from './store.js';
import { html } from './vendor/lit-html.js';

/** Replies and their versions. @type {Map<string, any>} */
const kept = new Map();

/** The reply to a path or its error, once it is there; it is loaded again for another version. @param {string} path @param {unknown} [version] */
export function keep(path, version = '') {
  frame.value; // renders the view again
  if (kept.size > 2000) kept.clear();
  const key = apiKey.value + path, known = kept.get(key), value = known?.value ?? {};
  if (known?.version !== version) {
    kept.set(key, { value, version });
    getJson(`/v1/${path}`).catch(({ message }) => ({ error: message })).then((reply) => {
      kept.set(key, { value: reply, version });
      touch();
    });
  }
  return value;
}

/** What each response continues: what it names, or the one before it in its conversation. @param {any[]} nodes oldest first */
export function findParents(nodes) {
  const latest = new Map(), parents = new Map();
  for (const { id, previous_response_id: previous, conversation, status } of nodes) {
    parents.set(id, previous ?? latest.get(conversation));
    if (conversation && /complete/.test(status)) latest.set(conversation, id);
  }
  return parents;
}

/** The ids of the responses up to one. @param {any[]} nodes @param {string} id */
export function pathTo(nodes, id) {
  const parents = findParents(nodes), path = [];
  for (let next = id; parents.has(next); next = parents.get(next)) path.unshift(next);
  return path;
}

/** @param {string} id @param {string[]} views */
export function links(id, ...views) {
  return views.map((view) => html`<a href="/ui/${view}/${id}" data-nav>${view}</a> `);
}
