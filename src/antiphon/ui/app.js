/** The page: navigation, the key, and the view that the address names. */

import { html, nothing, render } from './vendor/lit-html.js';
import { effect } from './vendor/signals-core.js';
import { apiKey, BASE, needsKey, setKey } from './api.js';
import { loadCapabilities, navigate, notice, replacePath, route } from './store.js';
import { connectView } from './views/connect.js';
import { inboxView } from './views/inbox.js';
import { itemsView } from './views/items.js';
import { keysView } from './views/keys.js';
import { logView } from './views/log.js';
import { mcpView } from './views/mcp.js';
import { serverView } from './views/server.js';
import { talkView } from './views/talk.js';
import { timingView } from './views/timing.js';
import { wireView } from './views/wire.js';

/** @type {Record<string, [string, () => unknown]>} */
const VIEWS = {
  talk: ['Talk', talkView],
  wire: ['Wire', wireView],
  items: ['Items', itemsView],
  timing: ['Timing', timingView],
  inbox: ['Inbox', inboxView],
  log: ['Log', logView],
  server: ['Server', serverView],
  keys: ['Keys', keysView],
  mcp: ['MCP', mcpView],
  connect: ['Connect', connectView],
};

function page() {
  const [title, view] = VIEWS[route.value.view] ?? ['Not found', () => html`<p class="empty">There is no such view.</p>`];
  document.title = `${title} – Antiphon`;
  return html`<header class="top">
      <a class="name" href="/" data-nav>Antiphon</a>
      <nav aria-label="Views">${Object.entries(VIEWS).map(([name, [label]]) =>
        html`<a href="/ui/${name}" data-nav aria-current=${route.value.view === name ? 'page' : nothing}>${label}</a>`)}</nav>
      <span class="grow"></span>
      ${apiKey.value ? html`<button class="link" @click=${() => { setKey(''); location.reload(); }}>Forget the key</button>` : nothing}
    </header>
    ${notice.value ? html`<p class="notice" role="alert">${notice.value} <button class="link" @click=${() => { notice.value = ''; }}>Dismiss</button></p>` : nothing}
    <main><h1 class="hidden">${title}</h1>${needsKey.value ? keyForm() : show(view)}</main>`;
}

/** Render a view; an error in it does not take the navigation with it. @param {() => unknown} view */
function show(view) {
  try {
    return view();
  } catch (error) {
    console.error(error);
    return html`<p class="error" role="alert">This view cannot be shown: ${String(error)}</p>`;
  }
}

function keyForm() {
  return html`<form class="key" @submit=${takeKey}><h2>This server needs an API key</h2>
    <p>It is kept in this tab only. The page shows what the key may read.</p>
    <label for="key">API key</label><input id="key" name="key" type="password" autocomplete="off" required>
    <button class="primary">Use it</button></form>`;
}

/** @param {SubmitEvent} event */
function takeKey(event) {
  event.preventDefault();
  setKey(String(new FormData(/** @type {HTMLFormElement} */ (event.target)).get('key')));
  notice.value = '';
  replacePath(location.pathname.slice(BASE.length) + location.search);
  loadCapabilities();
}

addEventListener('click', (event) => {
  const link = event.target instanceof Element ? event.target.closest('a[data-nav]') : null;
  if (!(link instanceof HTMLAnchorElement) || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  navigate(link.pathname.slice(BASE.length) + link.search);
});

const root = /** @type {HTMLElement} */ (document.getElementById('app'));
root.replaceChildren();
effect(() => {
  render(page(), root);
  // Links name paths of the server; a prefix is added here.
  for (const link of root.querySelectorAll(`a[href^="/"]:not([href^="${BASE}/"])`)) link.setAttribute('href', BASE + link.getAttribute('href'));
});
loadCapabilities();
