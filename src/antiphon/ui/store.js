/** The state of the page, as signals. Views read them while they render; a change renders the page again. */

import { BASE, getJson } from './api.js';
import { nextFrame, Recording } from './recording.js';
import { computed, signal } from './vendor/signals-core.js';

const MAX_RECORDINGS = 50;

export const route = signal(readLocation());
/** Grows with every change of a recording, at most once per frame. */
export const frame = signal(0);
export const capabilities = signal(/** @type {any} */ (null));
/** A sentence to show until it is dismissed. */
export const notice = signal('');
export const models = computed(() => [
  ...(capabilities.value?.data ?? []).filter((/** @type {any} */ one) => one.does.includes('generate')),
]);

/** Recordings of this page by the id of their response. @type {Map<string, Recording>} */
const recordings = new Map();
let isFrameRequested = false;

/** Render the page in the next frame: many events may arrive before it. */
export function touch() {
  if (isFrameRequested) return;
  isFrameRequested = true;
  nextFrame().then(() => {
    isFrameRequested = false;
    frame.value += 1;
  });
}

/** Make a recording, which is found by `findRecording` once its response has an id. @param {() => void} [ended] */
export function makeRecording(ended) {
  /** @type {Recording} */
  const recording = new Recording(() => {
    if (recording.id && !recordings.has(recording.id)) {
      recordings.set(recording.id, recording);
      if (recordings.size > MAX_RECORDINGS) recordings.delete(/** @type {string} */ (recordings.keys().next().value));
    }
    touch();
  }, ended);
  return recording;
}

/** @param {string} id @returns {Recording} that of this page, or a new one, which reads the stream again */
export function findRecording(id) {
  const found = recordings.get(id);
  if (found) return found;
  const recording = makeRecording();
  recordings.set(id, recording);
  recording.follow(id);
  return recording;
}

/** @param {string} id */
export function forgetRecording(id) {
  recordings.delete(id);
}

/** The recording that was made last. */
export function latestRecording() {
  return [...recordings.values()].pop();
}

/** @param {string} path below the server's */
export function navigate(path) {
  history.pushState(null, '', BASE + path);
  notice.value = '';
  route.value = readLocation();
}

/** Change the query of the current view without a new entry in the history. @param {Record<string, string>} values */
export function setQuery(values) {
  const query = new URLSearchParams(Object.entries(values).filter(([, value]) => value));
  replacePath(`${location.pathname.slice(BASE.length)}${query.size ? `?${query}` : ''}`);
}

/** @param {string} path below the server's */
export function replacePath(path) {
  history.replaceState(null, '', BASE + path);
  route.value = readLocation();
}

function readLocation() {
  const [, view = '', ...rest] = location.pathname.slice(BASE.length).replace(/^\/(?!ui\/|ui$)/, '/ui/').split('/').slice(1);
  return { view: view || 'talk', id: rest.join('/'), query: new URLSearchParams(location.search) };
}

addEventListener('popstate', () => { route.value = readLocation(); });

/** Load what the server can do. */
export async function loadCapabilities() {
  await attempt(async () => { capabilities.value = await getJson('/v1/capabilities'); });
}

/** Run a task and show its error. @param {() => Promise<unknown>} task */
export async function attempt(task) {
  try {
    await task();
  } catch (error) {
    if (!(error instanceof Error) || error.name === 'AbortError') return;
    notice.value = error.message;
  }
}
