/** The server's feed of responses that begin and end, followed while a view shows it. */

import { ApiError, getJson, needsKey, send } from './api.js';
import { readEvents } from './sse.js';
import { attempt, notice, route } from './store.js';
import { effect, signal } from './vendor/signals-core.js';

const VIEWS = ['log', 'inbox', 'items', 'timing'];
const PAUSE = 2000; // milliseconds until the feed is opened again
const MAX_ENTRIES = 200;

/** Responses without their contents, newest first. */
export const log = signal(/** @type {any[]} */ ([]));
export const isLive = signal(false);
/** Grows with every event of the feed. */
export const activity = signal(0);
let isFollowed = false;
let abort = new AbortController();

/** Follow the feed until the view changes. */
export function followFeed() {
  if (isFollowed || needsKey.value) return;
  isFollowed = true;
  queueMicrotask(() => run().finally(() => {
    isFollowed = isLive.value = false;
  }));
}

/** Read the list again, with the filters of the address. */
async function loadLog() {
  const query = new URLSearchParams(route.value.view === 'log' ? route.value.query : '');
  query.set('limit', '100');
  await attempt(async () => { log.value = (await getJson(`/v1/antiphon/responses?${query}`)).data; });
}

function isNeeded() {
  return VIEWS.includes(route.value.view) && !needsKey.value;
}

async function run() {
  while (isNeeded()) {
    abort = new AbortController();
    try {
      await follow(await send('/v1/antiphon/feed', { signal: abort.signal }));
    } catch (error) {
      if (error instanceof ApiError) {
        notice.value = error.message;
        if (error.status && error.status < 500 && error.status !== 429) return;
      }
    }
    isLive.value = false;
    if (isNeeded()) await new Promise((resolve) => { setTimeout(resolve, PAUSE); });
  }
}

/** @param {Response} reply */
async function follow(reply) {
  if (!reply.body) return;
  isLive.value = true;
  await loadLog(); // after the feed was opened, so that nothing is missed
  activity.value += 1;
  for await (const events of readEvents(reply.body)) {
    for (const { type, data } of events) {
      if (type === 'gap') await loadLog();
      else if (type === 'begun' || type === 'ended') put(JSON.parse(data).response);
    }
    activity.value += 1;
  }
}

/** @param {any} response */
function put(response) {
  const others = log.value.filter((one) => one.id !== response.id);
  log.value = [response, ...others].sort((one, other) => other.created_at - one.created_at).slice(0, MAX_ENTRIES);
}

effect(() => {
  if (!isNeeded()) abort.abort();
  else if (isFollowed) loadLog();
});
