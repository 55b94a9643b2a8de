/** A WebSocket to the server, on which lanes carry responses side by side. */

import { apiKey, BASE } from './api.js';

/** @typedef {import('./recording.js').Channel} Channel */

/** @type {Channel | null} */
let current = null;

/** Return the open WebSocket, or a new one. @param {(data: string, channel: Channel) => void} listen gets no data at the end */
export function openSocket(listen) {
  if (current) return current;
  const url = new URL(`${BASE}/v1/responses`, location.href.replace(/^http/, 'ws'));
  // Headers cannot be set here, so the key is offered as a subprotocol, as OpenAI's clients do in browsers.
  const socket = new WebSocket(url, apiKey.value ? ['responses', `openai-insecure-api-key.${apiKey.value}`] : []);
  /** @type {Channel} */
  const channel = {
    send(message) {
      const send = () => socket.send(JSON.stringify(message));
      if (socket.readyState) send();
      else socket.addEventListener('open', send);
    },
    close() {
      if (current === channel) current = null;
      socket.close();
    },
  };
  socket.onmessage = ({ data }) => listen(data, channel);
  socket.onclose = () => {
    channel.close();
    listen('', channel);
  };
  return current = channel;
}
