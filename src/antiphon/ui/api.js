/** Requests to this server, with the key of the user. The page talks to no other host. */

import { signal } from './vendor/signals-core.js';

/** The path below which the server is mounted: nothing, or such as `/llm`. */
export const BASE = new URL('..', import.meta.url).pathname.slice(0, -1);
const KEY = 'antiphon-key'; // kept for this tab only

export const apiKey = signal(sessionStorage.getItem(KEY) ?? '');
/** Whether the last request was rejected for its key. */
export const needsKey = signal(false);

/** @param {string} key */
export function setKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
  apiKey.value = key;
  needsKey.value = false;
}

/** A reply with a status of 4xx or 5xx, or no reply at all (status 0). */
export class ApiError extends Error {
  /** @param {number} status @param {string} message @param {string | null} param */
  constructor(status, message, param = null) {
    super(param ? `${message} (${param})` : message);
    this.status = status;
    this.param = param;
  }
}

/**
 * Send a request and return the reply. Raises ApiError.
 * @param {string} path
 * @param {{method?: string, body?: any, signal?: AbortSignal}} [options]
 * @returns {Promise<Response>}
 */
export async function send(path, options = {}) {
  const { method = 'GET', body, signal } = options, key = apiKey.value;
  /** @type {Record<string, string>} */
  const headers = {};
  if (key) headers.authorization = `Bearer ${key}`;
  if (body !== undefined) headers['content-type'] = 'application/json';
  const init = { method, headers, signal, body: body && JSON.stringify(body) };
  const reply = await fetch(BASE + path, init).catch((error) => {
    throw error.name === 'AbortError' ? error : new ApiError(0, 'The server cannot be reached.');
  });
  if (reply.ok) return reply;
  if (reply.status === 401) {
    if (key !== apiKey.value) return send(path, options); // set meanwhile
    needsKey.value = true;
  }
  const { error } = await reply.json().catch(() => ({ error: null }));
  throw new ApiError(reply.status, error?.message ?? `The server replied with status ${reply.status}.`, error?.param);
}

/** @param {string} path @returns {Promise<any>} */
export async function getJson(path) {
  return (await send(path)).json();
}
