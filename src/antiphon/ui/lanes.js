/** The conversations of Talk: lanes side by side, each with its own settings and turns. */

import { ApiError, getJson } from './api.js';
import { buildRequest, DEFAULTS } from './request.js';
import { openSocket } from './socket.js';
import { attempt, findRecording, makeRecording, navigate, notice, replacePath, route } from './store.js';
import { pathTo } from './tree.js';
import { signal } from './vendor/signals-core.js';

/**
 * @typedef {import('./fold.js').Json} Json
 * @typedef {import('./request.js').Settings} Settings
 * @typedef {import('./recording.js').Recording} Recording
 * @typedef {{input: Json[], request: Json, recording: Recording}} Turn
 * `name`: on the WebSocket; the first lane has none, so that it works where lanes are off.
 * `steered`: input for the running response, which its successor takes.
 * @typedef {{name: string, settings: Settings, turns: Turn[], steered: Json[]}} Lane
 */

const SETTINGS = 'antiphon-settings';
const MAX_ANCESTORS = 30; // responses that are loaded before the one that a link names
export const MAX_LANES = 8;

export const lanes = signal([makeLane('', { ...DEFAULTS, ...JSON.parse(sessionStorage.getItem(SETTINGS) ?? '{}') })]);
/** The index of the lane whose settings the composer shows. */
export const chosen = signal(0);
export const isForAll = signal(true);
export const draft = signal('');
let loadedId = '';

/** @param {string} name @param {Settings} settings @returns {Lane} */
function makeLane(name, settings) {
  return { name, settings, turns: [], steered: [] };
}

export function addLane() {
  const count = lanes.value.length;
  lanes.value = [...lanes.value, makeLane(`lane-${count + 1}`, chosenLane().settings)];
  chosen.value = count;
}

export function removeLane() {
  leave(lanes.value[lanes.value.length - 1]);
  chosen.value = 0;
  lanes.value = lanes.value.slice(0, -1);
}

export function chosenLane() {
  return lanes.value[chosen.value];
}

/** The lanes that the composer sends to. */
export function targetLanes() {
  return isForAll.value ? lanes.value : [chosenLane()];
}

/** @param {Lane} lane @returns {Turn | undefined} */
export function lastTurn(lane) {
  return lane.turns[lane.turns.length - 1];
}

/** @param {Lane} lane @returns {Recording | undefined} that of its last turn, while it runs */
export function running(lane) {
  const recording = lastTurn(lane)?.recording;
  return recording?.isRunning ? recording : undefined;
}

/** Free a lane of the WebSocket for other turns. @param {Lane} lane */
function leave(lane) {
  const recording = running(lane);
  if (!recording?.channel) return;
  recording.stop();
  recording.lose();
}

/** Change settings of the chosen lane. @param {Partial<Settings>} values */
export function change(values) {
  const lane = chosenLane();
  lane.settings = { ...lane.settings, ...values };
  sessionStorage.setItem(SETTINGS, JSON.stringify(lane.settings));
  lanes.value = [...lanes.value];
}

/** Build the request of a lane's next turn. Raises SyntaxError. @param {Lane} lane @param {Json[]} input */
export function nextRequest({ settings, turns }, input) {
  const last = turns.filter((turn) => turn.recording.response).pop()?.recording; // others never began
  const previous = last?.response?.store && !last.response.conversation ? last.id : ''; // '': a fork of the conversation
  const earlier = previous ? [] : turns.flatMap((turn) => [...turn.input, ...(turn.recording.response?.output ?? [])]);
  return buildRequest(settings, [...earlier, ...input], previous, last?.response?.tools);
}

/** Send items as the next turn. Raises SyntaxError. @param {Lane} lane @param {Json[]} input */
export function start(lane, input) {
  const request = nextRequest(lane, input);
  notice.value = '';
  const recording = addTurn(lane, [...input, ...lane.steered], request); // the server adds input that waited for outputs
  if (lane.settings.transport === 'websocket') {
    recording.channel = openSocket(takeMessage);
    recording.channel.send({ type: 'response.create', ...(lane.name && { stream_id: lane.name }), ...request });
  } else {
    recording.create(request);
  }
  requestAnimationFrame(() => scrollTo(0, document.body.scrollHeight));
}

/** @param {Lane} lane @param {Json[]} input @param {Json} request */
function addTurn(lane, input, request) {
  /** @type {Recording} */
  const recording = makeRecording(() => {
    if (recording.rejected === 'background' && lane.settings.background) { // a server that stores nothing
      lane.turns = lane.turns.slice(0, -1);
      lane.settings = { ...lane.settings, background: false };
      start(lane, input);
    } else if (recording.response?.store && route.value.view === 'talk' && !lane.name) {
      loadedId = recording.id;
      replacePath(`/ui/talk/${loadedId}`);
    }
  });
  lane.steered = [];
  lane.turns = [...lane.turns, { input, request, recording }];
  lanes.value = [...lanes.value];
  return recording;
}

/** Send input to a running response: it ends, and another one continues it. @param {Lane} lane @param {Json[]} input */
export function steer(lane, input) {
  const recording = running(lane);
  lane.steered.push(...input);
  recording?.channel?.send({ type: 'response.steer', previous_response_id: recording.id, input });
}

/** Take a message of the WebSocket, or its end. @param {string} data @param {import('./recording.js').Channel} socket */
function takeMessage(data, socket) {
  if (!data) {
    for (const { turns } of lanes.value) for (const { recording } of turns) if (recording.channel === socket) recording.lose();
    return;
  }
  const event = JSON.parse(data), { type, error } = event;
  const lane = lanes.value.find(({ name }) => name === (event.stream_id ?? '')), last = lane && lastTurn(lane);
  let recording = last?.recording;
  if (type === 'response.steer.failed') {
    draft.value = event.steer.input[0].content.at(-1).text ?? '';
    for (const one of lanes.value) one.steered = [];
    notice.value = error.message;
  } else if (type === 'response.steer.pending') {
    notice.value = 'The message will be sent with the outputs of the calls.';
  } else if (type === 'error') {
    if (!recording?.id) recording?.end('failed', new ApiError(event.status, error.message, error.param));
  } else if (lane && last && recording?.channel === socket && type.startsWith('response.') && !event.steer) {
    if (!recording.isRunning) { // the successor of a steered response begins
      recording = addTurn(lane, lane.steered, last.request);
      recording.channel = socket;
    }
    // What comes before `response.created` belongs to a response that was abandoned.
    if (recording.id || type === 'response.created') recording.receive(event, data);
  }
}

export function clear() {
  lanes.value.forEach(leave);
  lanes.value = lanes.value.map(({ name, settings }) => makeLane(name, settings));
  loadedId = '';
  navigate('/ui/talk');
}

/** Load the response that the address names, and those before it, into the first lane. */
export function loadLinked() {
  const { id } = route.value;
  if (!id || id === loadedId) return;
  loadedId = id;
  queueMicrotask(() => attempt(async () => {
    const path = pathTo((await getJson(`/v1/antiphon/responses/${encodeURIComponent(id)}/tree`)).data, id).slice(-MAX_ANCESTORS);
    const turns = await Promise.all(path.map(async (name) => (
      { input: (await getJson(`/v1/responses/${name}/input_items?order=asc&limit=100&include=message.input_image.image_url`)).data, request: {}, recording: findRecording(name) })));
    lanes.value[0].turns = turns;
    lanes.value = [...lanes.value];
  }));
}
